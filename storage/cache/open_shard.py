"""A whole shard in a cache file or in memory: returns any value of any row, verified, without a request.

`read_payload` and `read_values` read rows of several shards at once, which is faster for files.
"""

from __future__ import annotations

import bisect
import itertools
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.cache.blocking_io import Drive, cut_values
from concurrent_loader.storage.cache.file_values import read_exactly, read_file_values
from concurrent_loader.storage.errors import CorruptData, DigestMismatch, StoreError
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import HEADER_BYTES, parse_header
from concurrent_loader.storage.shards.format.schema import ColumnKind
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry

__all__ = ["FileShard", "MemoryShard", "OpenShard", "read_payload", "read_values"]

Indices = npt.NDArray[np.int64]
Payload = Sequence[bytes | memoryview | None]

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

    def encoding(self, column: str) -> str:
        """Returns the encoding of a column's stored values; empty for this project's own."""
        return self.index.schema[column].encoding

    def payload(self, column: str, rows: Indices) -> Payload:
        """Returns the stored bytes of a column for given rows, None for nulls.

        Each value is checked against its digest, if it has one.

        Args:
            column: Name of a column of kind PAYLOAD, or of kind SMALL, whose values are UTF-8 text.
            rows: (n,) int64: row numbers in the shard, in any order.

        Raises:
            DigestMismatch: A value differs from what was written; the error names shard, row and column.
        """
        if self.index.schema[column].kind is ColumnKind.SMALL:
            return self._with_nulls(column, rows, self.index.encoded(column, rows))
        starts, ends = self._places(column, rows)
        return self._verified(column, rows, starts, ends, self.read_many(starts, ends))

    def _places(self, column: str, rows: Indices) -> tuple[Indices, Indices]:
        """Returns where the payload values of some rows start and end."""
        index = self.index  # offsets lie below 2**63
        return index.payload_starts(column)[rows].view(np.int64), index.payload_ends(column)[rows].view(np.int64)

    def _verified(
        self, column: str, rows: Indices, starts: Indices, ends: Indices, values: Sequence[bytes | memoryview]
    ) -> Payload:
        """Returns payload values, None for nulls, after checking their digests."""
        if self.index.has_digests:
            expected = self.index.payload_digests(column)[rows].tolist()
            if (digests := list(map(xxhash.xxh3_64_intdigest, values))) != expected:
                at = next(at for at, digest in enumerate(digests) if digest != expected[at])
                raise DigestMismatch(
                    "a sample differs from what was written",
                    shard=self.entry.key, sample=int(rows[at]), column=column, start=int(starts[at]), end=int(ends[at]),
                    expected=f"{expected[at]:016x}", got=f"{digests[at]:016x}",
                )  # fmt: skip
        return self._with_nulls(column, rows, values)

    def _with_nulls(self, column: str, rows: Indices, values: Sequence[bytes | memoryview]) -> Payload:
        if (valid := self.index.valid(column)) is None:
            return values
        return [data if has_value else None for data, has_value in zip(values, valid[rows].tolist(), strict=True)]

    def values(self, column: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic] | Sequence[object]:
        """Returns one column's values for given rows, decoded as by `Column.decode`; images stay encoded.

        Returns:
            FIXED columns: an array (n, *shape) of the column's dtype, in which nulls are masked. Others: a list of n
            values, None for nulls.
        """
        spec = self.index.schema[column]
        if spec.kind is not ColumnKind.PAYLOAD:
            return self.index.values(column, rows)
        return self._decoded(column, self.payload(column, rows))

    def _decoded(self, column: str, payload: Payload) -> Sequence[object]:
        spec = self.index.schema[column]
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

    def read_many(self, starts: Indices, ends: Indices) -> list[bytes | memoryview]:
        return _read_files([self], [starts], [ends])

    def _count_reads(self, count: int) -> None:
        self._num_reads += count
        if self._num_reads >= _READS_BEFORE_WHOLE:
            self._read_whole()

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


def read_payload(shards: Sequence[Any], rows: Sequence[Indices], column: str) -> list[bytes | memoryview | None]:
    """Returns the stored bytes of a column for rows of several shards, verified; the values of files with one call.

    Args:
        shards: Open shards, or other units with a method like `OpenShard.payload`.
        rows: (n,) int64 for each shard: row numbers in any order.
        column: Name of the column, as for `OpenShard.payload`.

    Raises:
        CorruptData: A file cannot be read, or a value differs from what was written.
    """
    if len(shards) < 2 or not _are_files(shards, column):
        return [data for shard, its in zip(shards, rows, strict=True) for data in shard.payload(column, its)]
    places = [file._places(column, its) for file, its in zip(shards, rows, strict=True)]
    values = _read_files(shards, [starts for starts, _ in places], [ends for _, ends in places])
    if all(file.index.valid(column) is None for file in shards) and _are_as_written(shards, rows, column, values):
        return values
    # Each by itself: for its nulls, or for an error that names the damaged value.
    runs = itertools.pairwise(itertools.accumulate(map(len, rows), initial=0))
    return [
        data
        for file, its, place, (start, stop) in zip(shards, rows, places, runs, strict=True)
        for data in file._verified(column, its, *place, values[start:stop])
    ]


def read_values(shards: Sequence[Any], rows: Sequence[Indices], column: str) -> list[Any]:
    """Returns a column's values for rows of several shards in runs, arrays or lists; see `OpenShard.values`."""
    if not _are_files(shards, column) or any(file.index.valid(column) is not None for file in shards):
        return [shard.values(column, its) for shard, its in zip(shards, rows, strict=True)]
    spec = shards[0].index.schema[column]
    if any(file.index.schema[column] != spec for file in shards):  # of a mixture: one is adopted, in another encoding
        return [file.values(column, its) for file, its in zip(shards, rows, strict=True)]
    payload: list[Any] = read_payload(shards, rows, column)
    return [spec.decode_many(payload)]


def _are_files(shards: Sequence[Any], column: str) -> bool:
    """Returns whether all shards are files, and a column's values lie in their payload."""
    is_file = bool(shards) and all(isinstance(shard, FileShard) for shard in shards)
    return is_file and shards[0].index.schema[column].kind is ColumnKind.PAYLOAD


def _are_as_written(
    files: Sequence[FileShard], rows: Sequence[Indices], column: str, values: Sequence[bytes | memoryview]
) -> bool:
    if not all(file.index.has_digests for file in files):
        return False
    expected: list[int] = []
    for file, its in zip(files, rows, strict=True):
        expected += file.index.payload_digests(column)[its].tolist()
    return list(map(xxhash.xxh3_64_intdigest, values)) == expected


def _read_files(files: Sequence[FileShard], starts: Sequence[Indices], ends: Sequence[Indices]) -> list[Any]:
    """Returns the bytes of places in several files, unverified."""
    if len(files) > 1 and any(file._whole is not None or file._drive is not files[0]._drive for file in files):
        places = zip(files, starts, ends, strict=True)
        return [data for file, first, last in places for data in file.read_many(first, last)]
    # With several files, another thread may have made the first one whole since.
    if len(files) == 1 and (whole := files[0]._whole) is not None:
        return cut_values(whole, starts[0], ends[0])
    counts = list(map(len, starts))
    bounds = list(itertools.accumulate(counts, initial=0))
    values, firsts = read_file_values(
        files[0]._drive,
        np.repeat(np.array([file._fd for file in files], np.int64), counts),
        np.concatenate(starts),
        np.concatenate(ends),
        key_of=lambda at: files[bisect.bisect_right(bounds, at) - 1].key,
    )
    if len(firsts) < len(values):
        edges = [bisect.bisect_left(firsts, bound) for bound in bounds]
        counts = [stop - start for start, stop in itertools.pairwise(edges)]
    for file, count in zip(files, counts, strict=True):
        file._count_reads(count)
    return values
