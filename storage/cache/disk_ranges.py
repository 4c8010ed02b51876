"""Ranges of shards, and raw objects, in the cache folder: read from whole shards or from sparse files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import xxhash

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.cache.budget import CacheBudget
from concurrent_loader.storage.cache.file_values import read_exactly
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.range_reader import LocalRanges
from concurrent_loader.storage.cache.sparse_file import SparseFiles
from concurrent_loader.storage.cache.stats import CacheCounters
from concurrent_loader.storage.cache.warn_once import CacheWarnings
from concurrent_loader.storage.errors import CorruptData, DigestMismatch
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry

__all__ = ["DiskRanges"]

T = TypeVar("T")


class DiskRanges(LocalRanges):
    """Local copies of ranges in a cache folder.

    Args:
        folder: Folder of the cache.
        sparse: Sparse files of that folder.
        budget: Budget from which new ranges take their room.
        discard_shard: Function that deletes the file of a whole shard; called on a thread.
        counters: Counters of the cache.
        warnings: Log of the cache.
    """

    def __init__(
        self,
        folder: CacheFolder,
        sparse: SparseFiles,
        budget: CacheBudget,
        *,
        discard_shard: Callable[[ShardEntry | BundleEntry], None],
        counters: CacheCounters,
        warnings: CacheWarnings,
    ) -> None:
        self._folder = folder
        self._sparse = sparse
        self._budget = budget
        self._discard_shard = discard_shard
        self._counters = counters
        self._warnings = warnings

    async def read(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        return await in_thread(lambda: self._read(entry, start, end, decode))

    def _read(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        for read, discard in (
            (self._read_whole, self._discard_shard),
            (self._read_sparse, self._discard_sparse),
        ):
            try:
                data = read(entry, start, end)
                if data is not None:
                    return (decode(memoryview(data)),)
            except CorruptData as error:
                self._warnings.file_corrupt(error)
                discard(entry)
            except OSError as error:
                self._warnings.drive_failed(error)
        return None

    def _read_whole(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> bytes | None:
        fd = self._folder.open(entry.digest, size=entry.size)
        if fd is None:
            return None
        try:
            return read_exactly(self._folder.drive, fd, start, end, shard=entry.key)
        finally:
            self._folder.drive.close(fd)

    def _read_sparse(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> bytes | None:
        return self._sparse.read(entry.digest, start, end, size=entry.size)

    def _discard_sparse(self, entry: ShardEntry | BundleEntry | ObjectEntry) -> None:
        self._counters.add(num_quarantined=1)
        try:
            self._sparse.discard(entry.digest)
        except OSError as error:
            self._warnings.drive_failed(error)

    async def keep(self, entry: ShardEntry | BundleEntry | ObjectEntry, start: int, data: memoryview) -> None:
        try:
            async with self._budget.room(self._sparse.cost_bytes(start, start + len(data))) as granted:
                if granted:
                    await in_thread(lambda: self._sparse.add(entry.digest, start, data, size=entry.size))
        except OSError as error:
            self._warnings.drive_failed(error)

    async def read_object(self, entry: ObjectEntry) -> memoryview | None:
        def read() -> memoryview | None:
            try:
                data = self._sparse.read_object(entry.digest, size=entry.size)
                # It may have been cached before the digest was known.
                if data is not None and entry.content not in (None, got := xxhash.xxh3_64_intdigest(data)):
                    raise DigestMismatch(
                        "a cached object does not have its stored digest",
                        expected=f"{entry.content:016x}", got=f"{got:016x}",
                    )  # fmt: skip
                return data
            except CorruptData as error:
                error.locate(key=entry.key)
                self._warnings.file_corrupt(error)
                self._discard_sparse(entry)
            except OSError as error:
                self._warnings.drive_failed(error)
            return None

        return await in_thread(read)

    async def keep_object(self, entry: ObjectEntry, data: memoryview) -> None:
        try:
            async with self._budget.room(self._sparse.cost_bytes(0, entry.size)) as granted:
                if granted:
                    await in_thread(lambda: self._sparse.add_object(entry.digest, data))
        except OSError as error:
            self._warnings.drive_failed(error)
