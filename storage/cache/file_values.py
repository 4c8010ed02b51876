"""Reads values of local files: of several files with one call, and small neighbours together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.blocking_io import Drive, cut_values
from concurrent_loader.storage.errors import CorruptData, StoreError

__all__ = ["read_exactly", "read_file_values"]

Indices = npt.NDArray[np.int64]

# Of values that are read together. A call of the system takes as long as copying 16 KiB.
_MAX_GAP_BYTES = 8 << 10
_MAX_JOINED_BYTES = 16 << 10  # larger values gain nothing
_MAX_READ_BYTES = 1 << 20

_MEAN_BYTES = 4 << 10  # of values that are copied out of what was read together


def read_file_values(
    drive: Drive, fds: Indices, starts: Indices, ends: Indices, *, key_of: Callable[[int], str]
) -> tuple[list[bytes | memoryview], Sequence[int]]:
    """Reads values of open files.

    Args:
        drive: System calls.
        fds: (n,) int64, descriptor of each value's file.
        starts: (n,) int64, first byte of each value.
        ends: (n,) int64, one past the last byte of each value.
        key_of: Function from a value's number to the key of its shard, for errors.

    Returns:
        The values, unverified, and the number of the first value of each of the m ranges that were read.

    Raises:
        CorruptData: Bytes cannot be read, or a file is too short.
        StoreError: A range does not fit into memory.
    """
    joined_ranges = _ranges(fds, starts, ends)
    if joined_ranges is None:
        return _read(drive, fds, starts, ends, key_of), range(len(starts))
    firsts, lasts = joined_ranges
    begins = starts[firsts]
    ranges = _read(drive, fds[firsts], begins, ends[lasts], lambda at: key_of(int(firsts[at])))
    ranges.reverse()
    values: list[bytes | memoryview] = []
    bases = np.repeat(begins, lasts - firsts + 1)
    from_base, to_base = starts - bases, ends - bases
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        data = ranges.pop()  # so that a range is freed as soon as its values are copied
        if first == last:
            values.append(data)
            continue
        begins_at, ends_at = from_base[first : last + 1], to_base[first : last + 1]
        # Python's garbage collector traverses everything again and again for many small views, not for bytes.
        if len(data) <= _MEAN_BYTES * (last + 1 - first):
            values += cut_values(data, begins_at, ends_at)
        else:
            view = memoryview(data)
            values += [view[start:end] for start, end in zip(begins_at.tolist(), ends_at.tolist(), strict=True)]
    return values, firsts.tolist()


def _read(
    drive: Drive, fds: Indices, starts: Indices, ends: Indices, key_of: Callable[[int], str]
) -> list[bytes | memoryview]:
    found = drive.read_many(fds, starts, ends)
    return [
        read_exactly(drive, int(fds[at]), int(starts[at]), int(ends[at]), shard=key_of(at)) if data is None else data
        for at, data in enumerate(found)
    ]


def _ranges(fds: Indices, starts: Indices, ends: Indices) -> tuple[Indices, Indices] | None:
    """Returns the numbers of the first and of the last value of each range that is read; None for each value alone."""
    gaps = starts[1:] - ends[:-1]
    joins = (gaps >= 0) & (gaps <= _MAX_GAP_BYTES) & (ends[1:] - starts[1:] <= _MAX_JOINED_BYTES)
    if not joins.any():
        return None
    joins &= fds[1:] == fds[:-1]
    pairs = np.array(list(_cut(joins, starts, ends)), np.int64)
    return pairs[:, 0], pairs[:, 1]


def _cut(joins: npt.NDArray[np.bool_], starts: Indices, ends: Indices) -> Iterator[tuple[int, int]]:
    """Yields the first and the last value of each range, none of which is much longer than its bound."""
    for first, stop in pairwise([0, *(np.flatnonzero(~joins) + 1).tolist(), len(starts)]):
        while first < stop:
            last_end = starts[first] + _MAX_READ_BYTES
            count = int(np.searchsorted(ends[first:stop], last_end, side="right")) if stop - first > 1 else 1
            yield first, first + max(1, count) - 1
            first += max(1, count)


def read_exactly(drive: Drive, fd: int, start: int, end: int, *, shard: str) -> bytes:
    """Reads the bytes [start, end) of a local copy of a shard.

    Raises:
        CorruptData: The bytes cannot be read, or the file is too short.
        StoreError: The bytes do not fit into memory.
    """
    try:
        data = drive.read(fd, end - start, start)
    except OSError as error:
        raise CorruptData(
            f"the cached file cannot be read: {error.strerror}", shard=shard, start=start, end=end
        ) from error
    except MemoryError as error:
        raise StoreError(
            "a range of a shard does not fit into memory", shard=shard, start=start, end=end, got=f"{end - start} bytes"
        ) from error
    if len(data) != end - start:
        raise CorruptData("the cached file is shorter than the shard", shard=shard, start=start, end=end, got=len(data))
    return data
