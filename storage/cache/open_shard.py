"""A whole shard in a cache file or in memory: returns any value of any row, verified, without a request."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.errors import CorruptData, DigestMismatch, StoreError
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import HEADER_BYTES, parse_header
from concurrent_loader.storage.shards.format.schema import ColumnKind
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry

__all__ = ["FileShard", "MemoryShard", "OpenShard", "read_exactly"]

# Of values that are read together. A call of the system takes as long as copying 16 KiB.
_MAX_GAP_BYTES = 8 << 10
_MAX_JOINED_BYTES = 16 << 10  # larger values gain nothing
_MAX_READ_BYTES = 1 << 20

# A shard of small samples is read as a whole, once it has been read this often: 1,000 calls cost more than 8 MiB.
_READS_BEFORE_WHOLE = 64
_SMALL_SAMPLE_BYTES = 4 << 10  # on average
_MAX_WHOLE_BYTES = 128 << 20  # of all shards of this process


def _nothing() -> None:
    """Gives nothing back."""


class OpenShard(ABC):
    """A shard whose bytes are all local.

    Thread-safety: reading methods may be called from any number of threads until `close`.
    """

    def __init__(self, entry: ShardEntry) -> None:
        self.entry = entry
        parse_header(self.read(0, HEADER_BYTES), shard=entry.key)
        self.index = ShardIndex.parse(
            self.read(entry.tail_start, entry.size), tail_start=entry.tail_start, size=entry.size, shard=entry.key
        )
        if self.index.num_samples != entry.num_samples:
            raise CorruptData(
                "the shard does not have the number of samples that its manifest states",
                shard=entry.key, expected=entry.num_samples, got=self.index.num_samples,
            )  # fmt: skip

    @property
    def key(self) -> str:
        """Key of the shard, relative to the dataset's URL."""
        return self.entry.key

    @property
    @abstractmethod
    def cached(self) -> bool:
        """Whether the bytes come from a file that can be deleted and fetched again if it is corrupt."""

    @abstractmethod
    def read(self, start: int, end: int) -> bytes | memoryview:
        """Returns exactly the bytes [start, end) of the shard, unverified."""

    def read_many(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[bytes | memoryview]:
        """Returns the bytes [start, end) of several places, unverified."""
        return [self.read(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def payload(self, column: str, rows: npt.NDArray[np.int64]) -> Sequence[bytes | memoryview | None]:
        """Returns the stored bytes of a column for given rows, None for nulls.

        Each value is checked against its digest, if it has one.

        Args:
            column: Name of a column of kind PAYLOAD, or of kind SMALL, whose values are UTF-8 text.
            rows: (n,) int64: row numbers in the shard, in any order.

        Raises:
            DigestMismatch: A value differs from what was written; the error names shard, row and column.
        """
        index = self.index
        if index.schema[column].kind is ColumnKind.SMALL:
            values: Sequence[bytes | memoryview | None] = index.encoded(column, rows)
        else:
            values = self._verified(column, rows)
        if (valid := index.valid(column)) is not None:
            return [data if has_value else None for data, has_value in zip(values, valid[rows].tolist(), strict=True)]
        return values

    def _verified(self, column: str, rows: npt.NDArray[np.int64]) -> list[bytes | memoryview]:
        """Reads payload values and checks their digests."""
        starts = self.index.payload_starts(column)[rows].astype(np.int64)
        ends = self.index.payload_ends(column)[rows].astype(np.int64)
        values = self.read_many(starts, ends)
        if self.index.has_digests:
            expected = self.index.payload_digests(column)[rows].tolist()
            if (digests := list(map(xxhash.xxh3_64_intdigest, values))) != expected:
                at = next(at for at, digest in enumerate(digests) if digest != expected[at])
                raise DigestMismatch(
                    "a sample differs from what was written",
                    shard=self.entry.key, sample=int(rows[at]), column=column, start=int(starts[at]), end=int(ends[at]),
                    expected=f"{expected[at]:016x}", got=f"{digests[at]:016x}",
                )  # fmt: skip
        return values

    def values(self, column: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic] | Sequence[object]:
        """Returns one column's values for given rows, decoded as by `Column.decode`; images stay encoded.

        Returns:
            FIXED columns: an array (n, *shape) of the column's dtype, in which nulls are masked. Others: a list of n
            values, None for nulls.
        """
        spec = self.index.schema[column]
        if spec.kind is not ColumnKind.PAYLOAD:
            return self.index.values(column, rows)
        payload = self.payload(column, rows)
        if self.index.valid(column) is None:
            return spec.decode_many(payload)  # type: ignore[arg-type]
        return [None if data is None else spec.decode(data) for data in payload]

    def close(self) -> None:
        """Releases the bytes."""


class MemoryShard(OpenShard):
    """A shard in memory, in the transfer chunks that were fetched."""

    def __init__(self, entry: ShardEntry, chunks: Sequence[memoryview], *, chunk_bytes: int) -> None:
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        super().__init__(entry)

    @property
    def cached(self) -> bool:
        return False

    def read(self, start: int, end: int) -> memoryview:
        first, last = start // self._chunk_bytes, max(start, end - 1) // self._chunk_bytes
        if first == last:
            base = first * self._chunk_bytes
            return self._chunks[first][start - base : end - base] if start < end else memoryview(b"")
        joined = bytearray()
        for number in range(first, last + 1):
            base = number * self._chunk_bytes
            joined += self._chunks[number][max(0, start - base) : end - base]
        return memoryview(joined).toreadonly()


class FileShard(OpenShard):
    """A shard in a local file.

    Values are read by ``pread`` into new memory, not mapped. So resident memory does not grow with the local part of a
    dataset, and a file that is truncated while in use raises an error instead of SIGBUS. Shards of small samples are
    copied into memory when many of their values have been read, up to 128 MiB of them in a process.

    Args:
        entry: Entry of the shard.
        fd: Descriptor of the open file, owned by this object from now on. While it is open, no process evicts the file.
        drive: System calls.
    """

    def __init__(self, entry: ShardEntry, fd: int, *, drive: Drive | None = None) -> None:
        self._fd = fd
        self._drive = drive or Drive()
        self._num_reads = 0
        self._whole: bytes | None = None  # what is in front of the tail
        self._give_back: Callable[[], object] = _nothing  # the room that it takes
        try:
            super().__init__(entry)
        except BaseException:
            self.close()
            raise

    @property
    def cached(self) -> bool:
        return True

    def read(self, start: int, end: int) -> bytes:
        return read_exactly(self._drive, self._fd, start, end, shard=self.entry.key)

    def read_many(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[bytes | memoryview]:
        """Reads small values that are close together with one call of the system."""
        if (whole := self._whole) is not None:
            return [whole[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        values: list[bytes | memoryview] = []
        for first, stop in _joined_reads(starts, ends):
            base = int(starts[first])
            data = self.read(base, int(ends[stop - 1]))
            self._num_reads += 1
            if stop == first + 1:
                values.append(data)
            else:
                # Python's garbage collector traverses everything again and again for many small views, not for bytes.
                joined = data if len(data) <= _SMALL_SAMPLE_BYTES * (stop - first) else memoryview(data)
                edges = zip((starts[first:stop] - base).tolist(), (ends[first:stop] - base).tolist(), strict=True)
                values += [joined[start:end] for start, end in edges]
        if self._num_reads >= _READS_BEFORE_WHOLE:
            self._read_whole()
        return values

    def _read_whole(self) -> None:
        """Copies the payload of a shard of small samples into memory, if there is room for it."""
        size = self.entry.tail_start
        if size > _SMALL_SAMPLE_BYTES * self.entry.num_samples:
            self._num_reads = -sys.maxsize
        elif _whole_shards.take(size):
            self._give_back = weakref.finalize(self, _whole_shards.give_back, size)
            self._num_reads = -sys.maxsize
            try:
                self._whole = self.read(0, size)
            except StoreError:  # too little memory; the values are read one by one, as before
                self._give_back()

    def close(self) -> None:
        self._whole = None
        self._give_back()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._drive.close(fd)


def _joined_reads(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the first of the values that are read together, and one past the last of them."""
    gaps = starts[1:] - ends[:-1]
    joins = (gaps >= 0) & (gaps <= _MAX_GAP_BYTES) & (ends[1:] - starts[1:] <= _MAX_JOINED_BYTES)
    for first, stop in pairwise([0, *(np.flatnonzero(~joins) + 1).tolist(), len(starts)]):
        while first < stop:
            last_end = starts[first] + _MAX_READ_BYTES
            count = int(np.searchsorted(ends[first:stop], last_end, side="right")) if stop - first > 1 else 1
            yield first, first + max(1, count)
            first += max(1, count)


class _Room:
    """Bytes that all threads together may take."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self._lock = threading.Lock()
        self._returned: deque[int] = deque()  # by finalizers, which may run in the thread that holds the lock

    def take(self, num_bytes: int) -> bool:
        """Takes some bytes; returns whether there were enough."""
        with self._lock:
            while self._returned:
                self._left += self._returned.popleft()
            if num_bytes > self._left:
                return False
            self._left -= num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Gives bytes back."""
        self._returned.append(num_bytes)


_whole_shards = _Room(_MAX_WHOLE_BYTES)


def read_exactly(drive: Drive, fd: int, start: int, end: int, *, shard: str) -> bytes:
    """Reads the bytes [start, end) of a local copy of a shard.

    Raises:
        CorruptData: The bytes cannot be read, or the file is too short.
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
