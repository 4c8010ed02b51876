"""The rows that a snapshot has deleted without writing their shards again. No I/O.

*Stored* rows are those of all shards, in order. *Live* rows are the ones that are left, and their numbers are the
sample numbers that users see. Deleted rows are kept as runs, so memory and time depend on the size of the manifest, and
not on the rows that it claims: seven bytes can delete 2**48 rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError

__all__ = ["DeletedRows"]

Indices = npt.NDArray[np.int64]

_PIECE = 1 << 16  # numbers to encode at once: each takes 200 bytes meanwhile
_MAX_DIGITS = 8  # bytes of a number: 7 bits each hold every count of the format, which is below 2**53


class DeletedRows:
    """The deleted rows of a snapshot, as runs of consecutive rows.

    Args:
        starts: (r,) int64, at least one: first stored row of each run, in ascending order.
        ends: (r,) int64: one past the last row of each run. A live row lies between two runs.

    Attributes:
        starts: (r,) int64, read-only.
        ends: (r,) int64, read-only.

    Thread-safety: Immutable.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
        >>> deleted = DeletedRows.of(np.array([1, 2, 5]))
        >>> len(deleted), deleted.stored(np.arange(4)).tolist()
        (3, [0, 3, 4, 6])
    """

    __slots__ = ("_before", "_first_live", "ends", "starts")

    def __init__(self, starts: Indices, ends: Indices) -> None:
        self.starts, self.ends = _frozen(starts), _frozen(ends)
        self._before = _frozen(np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)]))
        self._first_live = _frozen(starts - self._before[:-1])  # sample number of the live row behind each run

    @classmethod
    def of(cls, rows: Indices) -> DeletedRows:
        """Returns the runs of stored rows, which are given in any order, at least one."""
        numbers = np.unique(rows)
        return cls.of_runs(numbers, numbers + 1)

    @classmethod
    def of_runs(cls, starts: Indices, ends: Indices) -> DeletedRows:
        """Returns runs, given in ascending order of their starts, with those joined that touch or overlap."""
        reached = np.maximum.accumulate(ends)
        is_first = np.concatenate([[True], starts[1:] > reached[:-1]])
        return cls(starts[is_first], reached[np.concatenate([is_first[1:], [True]])])

    def __len__(self) -> int:
        return int(self._before[-1])

    def union(self, other: DeletedRows | None) -> DeletedRows:
        """Returns the rows that are deleted in either."""
        if other is None:
            return self
        starts, ends = np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends])
        order = np.argsort(starts, kind="stable")
        return self.of_runs(starts[order], ends[order])

    def stored(self, samples: npt.ArrayLike) -> Indices:
        """Returns the stored rows of samples, which are given by their numbers, in any shape."""
        numbers = np.asarray(samples, np.int64)
        run = np.searchsorted(self._first_live, numbers, side="right")
        return np.asarray(numbers + self._before[run])

    def num_live_before(self, rows: npt.ArrayLike) -> Indices:
        """Returns how many live rows are in front of stored rows. For a live row, this is its sample number."""
        stored = np.asarray(rows, np.int64)
        run = np.searchsorted(self.starts, stored, side="right") - 1  # the last one that starts at or before the row
        inside = np.minimum(stored, self.ends[run]) - self.starts[run]
        return np.asarray(stored - np.where(run < 0, 0, self._before[run] + inside))

    def contains(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Returns whether each stored row is deleted."""
        stored = np.asarray(rows, np.int64)
        run = np.searchsorted(self.starts, stored, side="right") - 1
        return np.asarray((run >= 0) & (stored < self.ends[run]))

    def live_rows(self, first: int, end: int) -> Indices:
        """Returns the live rows among the stored rows [first, end), in ascending order."""
        low, high = self.num_live_before([first, end]).tolist()
        return self.stored(np.arange(low, high))

    def tobytes(self) -> bytes:
        """Returns the runs as varints: live rows in front of a run, length of the run, and so on."""
        gaps = self.starts - np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        numbers = np.stack([gaps, self.ends - self.starts], axis=1).reshape(-1)
        return b"".join(_varints(numbers[at : at + _PIECE]) for at in range(0, len(numbers), _PIECE))

    @classmethod
    def frombytes(cls, data: bytes) -> DeletedRows:
        """Parses what `tobytes` returns; nothing in it is trusted.

        Raises:
            FormatError: The bytes are no such varints, or the runs are empty, touch each other or exceed 2**53 - 1.
        """
        numbers = _parse_varints(data)
        if not len(numbers) or len(numbers) % 2:
            raise FormatError("deleted rows must be pairs of numbers, at least one", got=len(numbers))
        if (numbers[1:] < 1).any():
            raise FormatError("runs of deleted rows must have rows, and live rows between them")
        # Each number is below 2**56, so this sum of doubles tells whether the exact one below fits.
        if numbers.sum(dtype=np.float64) >= 2.0**53:
            raise FormatError("deleted rows go beyond 2**53 - 1")
        bounds = np.cumsum(numbers)
        return cls(bounds[::2].copy(), bounds[1::2].copy())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeletedRows):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]  # like Manifest

    def __repr__(self) -> str:
        return f"DeletedRows(<{len(self)} rows in {len(self.starts)} runs>)"


def _frozen(array: Indices) -> Indices:
    array.flags.writeable = False
    return array


def _varints(numbers: Indices) -> bytes:
    """Returns LEB128: seven bits a byte, the lowest first; the high bit says that another byte follows."""
    digits = (numbers[:, None] >> np.arange(0, 7 * _MAX_DIGITS, 7)) & 0x7F
    length = np.maximum(1, np.where(digits > 0, np.arange(1, _MAX_DIGITS + 1), 0).max(axis=1, initial=0))
    place = np.arange(_MAX_DIGITS)
    more = np.where(place < length[:, None] - 1, 0x80, 0)
    return bytes((digits | more)[place < length[:, None]].astype(np.uint8).data)


def _parse_varints(data: bytes) -> Indices:
    digits = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(digits < 0x80)
    if len(digits) and (not len(last) or last[-1] != len(digits) - 1):
        raise FormatError("a number of the deleted rows is cut off")
    length = np.diff(last, prepend=-1)
    if (length > _MAX_DIGITS).any():
        raise FormatError("a number of the deleted rows is too long", expected=_MAX_DIGITS, got=int(length.max()))
    if ((digits[last] == 0) & (length > 1)).any():
        raise FormatError("a number of the deleted rows is not in its shortest form")
    if not len(last):
        return np.empty(0, np.int64)
    firsts = last + 1 - length
    place = np.arange(len(digits)) - np.repeat(firsts, length)
    return np.add.reduceat((digits & 0x7F).astype(np.int64) << (7 * place), firsts)
