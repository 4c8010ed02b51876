"""Opens the cache that a data set's options ask for, or the next best: before the first shard is fetched."""

from __future__ import annotations

import errno
import logging
import os

from storage.cache.disk_cache import DiskShardCache
from storage.cache.files import CacheFolder
from storage.cache.in_place import InPlaceShards
from storage.cache.shard_cache import MemoryShardCache, ShardCache
from storage.errors import ConfigurationError
from storage.fetch.engine import FetchEngine
from storage.sizes import Size
from storage.stores.local import LocalStore

__all__ = ["open_shard_cache"]

log = logging.getLogger(__name__)


def open_shard_cache(
    engine: FetchEngine,
    root: str | os.PathLike[str] | None,
    *,
    budget_bytes: Size | None = None,
    required: bool = True,
) -> ShardCache:
    """Opens a cache in a folder, or none where none is asked for.

    Without one, shards on the local drive are read where they lie, others live in memory while they are in use.

    Args:
        engine: Fetches what is missing.
        root: The folder, or None.
        budget_bytes: Half of what is free on the drive by default.
        required: Whether a folder that cannot be made or written to is an error. Otherwise a warning says so, and what
            is in it is used, or none.

    Raises:
        ConfigurationError: Others may write into the folder, the budget is no size, or the folder is required and
            cannot be used.
    """
    if root is None:
        return _no_cache(engine)
    try:
        if required:
            _check_writable(root)
        return DiskShardCache(
            engine, root, budget_bytes=_half_of_the_drive(root) if budget_bytes is None else budget_bytes
        )
    except OSError as error:
        if required:
            raise ConfigurationError(
                f"the cache folder cannot be used ({error.strerror or error}): name another cache_dir, or pass "
                "cache_required=False to go on without a cache",
                got=os.fspath(root),
            ) from error
        log.warning("the cache folder %s cannot be used (%s); going on without it", root, error)
        return _no_cache(engine)


def _no_cache(engine: FetchEngine) -> ShardCache:
    return InPlaceShards(engine, engine.store) if isinstance(engine.store, LocalStore) else MemoryShardCache(engine)


def _check_writable(root: str | os.PathLike[str]) -> None:
    folder = CacheFolder(root)
    try:
        if not folder.may_write():
            raise PermissionError(errno.EACCES, "no files can be made in it", str(folder.root))
    finally:
        folder.close()


def _half_of_the_drive(root: str | os.PathLike[str]) -> int:
    """Of what is free, and of what the cache has there already: the next run's budget is then the same."""
    folder = CacheFolder(root)
    try:
        drive = os.statvfs(folder.root)
        return (drive.f_bavail * drive.f_frsize + sum(file.num_bytes for file in folder.files())) // 2
    finally:
        folder.close()
