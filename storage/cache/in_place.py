"""Shards of a data set that lies on the local drive, read where they lie: nothing is copied, and nothing kept."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from storage.cache.open_shard import FileShard, OpenShard
from storage.cache.shard_cache import ShardCache
from storage.cache.threads import in_thread
from storage.errors import CorruptData
from storage.fetch.engine import FetchEngine
from storage.shards.manifest import ShardEntry
from storage.stores.local import LocalStore

__all__ = ["InPlaceShards"]

_MAX_OPEN = 128  # descriptors; beyond them shards are read into memory, as those of other stores are


class InPlaceShards(ShardCache):
    """No cache: a shard in use is an open file of the data set.

    Values are read, and checked against their digests, when a batch wants them, as they are from a cache's file; the
    system is told which files will be read, so that those ahead are on their way from the drive. A file that is not
    what the manifest pins is fetched like any store's object, whole and chunk by chunk: so its error is the same.

    Args:
        engine: Its store is the data set's folder.
        store: That store.
    """

    def __init__(self, engine: FetchEngine, store: LocalStore) -> None:
        super().__init__(engine)
        self._store = store
        self._wrong: set[str] = set()  # digests of shards whose files are not what they should be

    async def _load(self, entry: ShardEntry) -> OpenShard:
        if entry.digest not in self._wrong and len(self._open) < _MAX_OPEN:
            shard = await in_thread(lambda: self._open_file(entry), _close)
            if shard is not None:
                self._count(num_hits=1)
                return shard
        self._count(num_misses=1)
        return await self._fetch_into_memory(entry)

    def _open_file(self, entry: ShardEntry) -> OpenShard | None:
        """Opens a shard's file; None if it cannot be opened or is another: fetching it will say what is the matter."""
        try:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            fd = os.open(self._store.path_of(entry.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            os.close(fd)
            return None
        try:
            shard = FileShard(entry, fd)  # it closes the file if it fails
        except CorruptData:
            return None
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice that a file system does not take
                os.posix_fadvise(fd, 0, entry.size, os.POSIX_FADV_WILLNEED)
        return shard

    def _discard(self, entry: ShardEntry) -> None:
        self._wrong.add(entry.digest)


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
