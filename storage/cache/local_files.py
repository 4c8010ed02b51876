"""Reads the shards of a dataset on the local drive in place, without copying them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import xxhash

from concurrent_loader.storage.cache.blocking_io import Drive, in_thread
from concurrent_loader.storage.cache.file_values import read_exactly
from concurrent_loader.storage.cache.open_shard import FileShard, OpenShard
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.errors import CorruptData
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import OpenSource
from concurrent_loader.storage.stores.backends.local import LocalStore

__all__ = ["InPlaceShards"]

_MAX_OPEN = 128  # open files; further shards are read into memory, as from any other store
_PIECE_BYTES = 1 << 20


class InPlaceShards(ShardCache):
    """Opens the files of a local dataset instead of caching them.

    Opening a shard compares the chunks that hold its index with the manifest's digests, and asks the system to read
    ahead. Values are read and checked against the index's digests when a batch needs them, as from a cached file. A
    file that differs from the manifest is fetched like an object of any store, chunk by chunk, which raises the same
    errors.

    Args:
        engine: Engine over ``store``.
        store: Folder of the dataset.
        open_source: Function that opens the store of adopted data; see `ShardFetcher`.
    """

    def __init__(self, engine: FetchEngine, store: LocalStore, *, open_source: OpenSource | None = None) -> None:
        super().__init__(engine, open_source=open_source)
        self._store = store
        self._drive = Drive()
        self._in_use: set[str] = set()  # digests of shards whose files are open or being opened
        self._mismatched: set[str] = set()  # digests of shards whose files differ from the manifest

    async def is_local(self, entry: ShardEntry) -> bool:
        return entry.source is None

    async def _load(self, entry: ShardEntry) -> OpenShard:
        if entry.source is None and entry.digest not in self._mismatched and len(self._in_use) < _MAX_OPEN:
            self._in_use.add(entry.digest)
            shard = None
            try:
                shard = await in_thread(lambda: self._open_file(entry), _close)
            finally:
                if shard is None or entry.digest not in self._pins:  # no caller is left: the shard is closed
                    self._in_use.discard(entry.digest)
            if shard is not None:
                self._counters.add(num_hits=1)
                return shard
        self._counters.add(num_misses=1)
        return await self._fetch_into_memory(entry)

    def release(self, entry: ShardEntry, *, done_for_epoch: bool = False) -> None:
        super().release(entry, done_for_epoch=done_for_epoch)
        if entry.digest not in self._pins:
            self._in_use.discard(entry.digest)

    def _open_file(self, entry: ShardEntry) -> OpenShard | None:
        """Opens a shard's file; returns None if that fails or the file differs: fetching it raises the right error."""
        try:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            fd = os.open(self._store.path_of(entry.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        pinned = False
        try:
            pinned = self._is_pinned(fd, entry)
        finally:
            if not pinned:
                os.close(fd)
        if not pinned:
            return None
        try:
            return FileShard(entry, fd, drive=self._drive)  # closes the file if it raises
        except CorruptData:
            return None

    def _is_pinned(self, fd: int, entry: ShardEntry) -> bool:
        """Returns whether a file's index is the one that the manifest pins; every other shard has another index."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                return False
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):  # the file system does not support the advice
                    os.posix_fadvise(fd, 0, entry.size, os.POSIX_FADV_WILLNEED)
            chunks = split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES)
            return all(
                self._digest(fd, span, entry) == digest
                for span, digest in zip(chunks, entry.chunk_digests, strict=True)
                if span.end > entry.tail_start
            )
        except (CorruptData, OSError):
            return False

    def _digest(self, fd: int, span: ByteRange, entry: ShardEntry) -> int:
        hashed = xxhash.xxh3_64()
        for start in range(span.start, span.end, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, span.end)
            hashed.update(read_exactly(self._drive, fd, start, end, shard=entry.key))
        return hashed.intdigest()

    def _discard(self, entry: ShardEntry | BundleEntry) -> None:
        self._mismatched.add(entry.digest)


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
