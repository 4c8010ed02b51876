"""Opens the cache that a dataset's options ask for, or the next best one."""

from __future__ import annotations

import errno
import logging
import os

from concurrent_loader.storage.cache.disk_cache import DiskShardCache
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.local_files import InPlaceShards
from concurrent_loader.storage.cache.memory_cache import MemoryShardCache
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.shard_fetcher import OpenSource
from concurrent_loader.storage.sizes import Size
from concurrent_loader.storage.stores.backends.local import LocalStore

__all__ = ["open_shard_cache"]

log = logging.getLogger(__name__)


def open_shard_cache(
    engine: FetchEngine,
    root: str | os.PathLike[str] | None,
    *,
    budget_bytes: Size | None = None,
    required: bool = True,
    open_source: OpenSource | None = None,
) -> ShardCache:
    """Opens a cache in a folder, or a cache without a folder.

    Without a folder, shards on the local drive are read in place, and other shards live in memory while in use.

    Args:
        engine: Engine that fetches missing bytes.
        root: Path of the folder, or None.
        budget_bytes: Upper bound of the size of all cached files; half of the free space of the drive by default.
        required: Whether an unusable folder is an error. If false, a warning is logged, and the files already in the
            folder are used if they can be read.
        open_source: Function that opens the store of adopted data; see `ShardFetcher`.

    Raises:
        ConfigurationError: Other users may write to the folder, the budget is not a size, or the folder is required
            and cannot be used.
    """
    if root is None:
        return _no_cache(engine, open_source)
    try:
        if required:
            _check_writable(root)
        return DiskShardCache(
            engine,
            root,
            budget_bytes=_half_of_the_drive(root) if budget_bytes is None else budget_bytes,
            open_source=open_source,
        )
    except OSError as error:
        if required:
            raise ConfigurationError(
                f"the cache folder cannot be used ({error.strerror or error}): choose another cache_dir, or pass "
                "cache_required=False to continue without a cache",
                got=os.fspath(root),
            ) from error
        log.warning("the cache folder %s cannot be used (%s); continuing without a cache", root, error)
        return _no_cache(engine, open_source)


def _no_cache(engine: FetchEngine, open_source: OpenSource | None) -> ShardCache:
    if isinstance(engine.store, LocalStore):
        return InPlaceShards(engine, engine.store, open_source=open_source)
    return MemoryShardCache(engine, open_source=open_source)


def _check_writable(root: str | os.PathLike[str]) -> None:
    folder = CacheFolder(root)
    try:
        if not folder.may_write():
            raise PermissionError(errno.EACCES, "files cannot be created in it", str(folder.root))
    finally:
        folder.close()


def _half_of_the_drive(root: str | os.PathLike[str]) -> int:
    """Returns half of the free space plus the cache's own files, so that the next run gets the same budget."""
    folder = CacheFolder(root)
    try:
        drive = os.statvfs(folder.root)
        return (drive.f_bavail * drive.f_frsize + sum(file.num_bytes for file in folder.files())) // 2
    finally:
        folder.close()
