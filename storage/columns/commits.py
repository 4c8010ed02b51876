"""Opens a dataset and commits snapshots in which only columns change, on top of whatever others commit meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from concurrent_loader.storage.checked_url import check_there
from concurrent_loader.storage.errors import CommitConflict, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.manifest.commit_tokens import snapshot_of
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit, load_manifest
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["commit_change", "committed_before", "opened"]

_MAX_ATTEMPTS = 20  # each failure means that another writer has succeeded


@contextmanager
def opened(
    url: str | os.PathLike[str], client: str, storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[LoopThread, FetchEngine]]:
    """Opens an event loop, and an engine over a dataset.

    Raises:
        ConfigurationError: The URL or an option is invalid.
        NotFound: The dataset is a path that does not exist.
    """
    check_there(os.fspath(url))
    store = open_for(url, client, dict(storage_options or {}))
    with LoopThread("storage-columns") as loop:
        try:
            yield loop, FetchEngine(store)
        finally:
            loop.run(store.close())


async def committed_before(engine: FetchEngine, newest: Manifest, token: str | None) -> Manifest | None:
    """Returns the snapshot that was committed with a token, if the newest snapshot lists it."""
    number = snapshot_of(newest, token)
    if number is None:
        return None
    try:
        return await load_manifest(engine, number)
    except NotFound:  # that snapshot was deleted; the newest one has its change
        return newest


async def commit_change(
    engine: FetchEngine, change: Callable[[Manifest], Manifest], *, token: str | None = None
) -> Manifest:
    """Commits a change of the newest snapshot; after a conflict, changes the snapshot of the other writer.

    Args:
        engine: Engine over the dataset.
        change: Function that makes the next snapshot from the newest one.
        token: Name of the commit. A change with a name that the newest snapshot lists is not committed again.

    Returns:
        The committed snapshot, or that of the earlier commit.

    Raises:
        CommitConflict: Other writers committed first, 20 times.
        StorageError: The change does not fit the newest snapshot, or the store failed.
    """
    attempt = 0
    while True:
        newest = await load_manifest(engine)
        if (before := await committed_before(engine, newest, token)) is not None:
            return before
        made = change(newest)
        attempt += 1
        try:
            await commit(engine, made)
        except CommitConflict:
            if attempt == _MAX_ATTEMPTS:
                raise
        else:
            return made
