"""Shards of a data set that lies on the local drive, read where they lie: nothing is copied, and nothing kept."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import xxhash

from storage.cache.drive import Drive
from storage.cache.open_shard import FileShard, OpenShard, read_exactly
from storage.cache.shard_cache import ShardCache
from storage.cache.threads import in_thread
from storage.errors import CorruptData
from storage.fetch.engine import FetchEngine
from storage.ranges import ByteRange, split
from storage.shards.layout import CHUNK_BYTES
from storage.shards.manifest import ShardEntry
from storage.stores.local import LocalStore

__all__ = ["InPlaceShards"]

_MAX_OPEN = 128  # descriptors; beyond them shards are read into memory, as those of other stores are
_PIECE_BYTES = 1 << 20


class InPlaceShards(ShardCache):
    """No cache: a shard in use is an open file of the data set.

    When it is opened, the chunks that hold its index are compared with the manifest's digests, and the system is told
    that the rest will be read. Values are read, and checked against the index's digests, when a batch wants them, as
    they are from a cache's file. A file that is not what the manifest pins is fetched like any store's object, whole
    and chunk by chunk: so its error is the same.

    Args:
        engine: Its store is the data set's folder.
        store: That store.
    """

    def __init__(self, engine: FetchEngine, store: LocalStore) -> None:
        super().__init__(engine)
        self._store = store
        self._drive = Drive()
        self._here: set[str] = set()  # digests of shards whose files are open, or being opened
        self._wrong: set[str] = set()  # digests of shards whose files are not what they should be

    async def _load(self, entry: ShardEntry) -> OpenShard:
        if entry.digest not in self._wrong and len(self._here) < _MAX_OPEN:
            self._here.add(entry.digest)
            shard = None
            try:
                shard = await in_thread(lambda: self._open_file(entry), _close)
            finally:
                if shard is None or entry.digest not in self._pins:  # nobody waits for it any more: it is closed
                    self._here.discard(entry.digest)
            if shard is not None:
                self._count(num_hits=1)
                return shard
        self._count(num_misses=1)
        return await self._fetch_into_memory(entry)

    def release(self, entry: ShardEntry, *, spent: bool = False) -> None:
        super().release(entry, spent=spent)
        if entry.digest not in self._pins:
            self._here.discard(entry.digest)

    def _open_file(self, entry: ShardEntry) -> OpenShard | None:
        """Opens a shard's file; None if it cannot be opened or is another: fetching it will say what is the matter."""
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
            return FileShard(entry, fd, drive=self._drive)  # it closes the file if it fails
        except CorruptData:
            return None

    def _is_pinned(self, fd: int, entry: ShardEntry) -> bool:
        """Whether a file's index is the one that the manifest pins: a shard that is whole, but another, has its own."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                return False
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):  # advice that a file system does not take
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

    def _discard(self, entry: ShardEntry) -> None:
        self._wrong.add(entry.digest)


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
