"""Opens a dataset to change it, and commits a change on top of the newest snapshot, whoever else commits meanwhile."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from concurrent_loader.storage.checked_url import check_there
from concurrent_loader.storage.errors import CommitConflict, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.manifest.commit_tokens import snapshot_of, with_token
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit, load_manifest
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, check_source
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["EditedSnapshot", "OpenDataset", "commit_edit", "committed_before", "open_to_edit"]

_MAX_ATTEMPTS = 20  # each one that fails means that another writer succeeded


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """A dataset that is being changed.

    Attributes:
        loop: Event loop of the engine.
        engine: Engine over the dataset's store.
        open_source: Function that opens the store of adopted data.
    """

    loop: LoopThread
    engine: FetchEngine
    open_source: OpenSource


@dataclass(frozen=True, slots=True)
class EditedSnapshot:
    """The outcome of a change.

    Attributes:
        manifest: Newest snapshot, with the change.
        is_new: Whether this call committed it; otherwise there was nothing to change.
    """

    manifest: Manifest
    is_new: bool


@contextmanager
def open_to_edit(
    url: str | os.PathLike[str],
    client: str,
    storage_options: Mapping[str, Any] | None,
    source_options: Mapping[str, Any] | None = None,
) -> Iterator[OpenDataset]:
    """Opens a dataset, and closes it at the end of the block.

    Raises:
        NotFound: The URL is a path that does not exist.
        ConfigurationError: The store cannot be opened.
    """
    check_there(os.fspath(url))
    store = open_for(url, client, dict(storage_options or {}))
    options = dict((storage_options if source_options is None else source_options) or {})

    def open_source(source: str) -> FetchEngine:
        if source_options is None:
            check_source(store.url, source)
        return FetchEngine(open_for(source, client, options))

    with LoopThread("storage-edit") as loop:
        try:
            yield OpenDataset(loop, FetchEngine(store), open_source)
        finally:
            loop.run(store.close())


async def committed_before(engine: FetchEngine, newest: Manifest, token: str | None) -> Manifest | None:
    """Returns the snapshot that was committed with a token, if the newest snapshot lists it."""
    number = snapshot_of(newest, token)
    if number is None:
        return None
    try:
        return await load_manifest(engine, number)
    except NotFound:  # that snapshot was removed; the newest one has its change
        return newest


async def commit_edit(
    engine: FetchEngine, make: Callable[[Manifest], Awaitable[Manifest | None]], *, token: str | None = None
) -> EditedSnapshot:
    """Commits a change of the newest snapshot. After a conflict the change is made again, on the then newest snapshot.

    Args:
        engine: Engine over the dataset's store.
        make: Function that returns the changed snapshot, given the newest one; None if there is nothing to change. Its
            number, parent and token are set here.
        token: Name of the commit. If the newest snapshot lists it, nothing is done.

    Raises:
        CommitConflict: Other writers were faster 20 times in a row.
        NotFound: There is no dataset.
        StorageError: The store failed in spite of retries.
    """
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        newest = await load_manifest(engine)
        before = await committed_before(engine, newest, token)
        if before is not None:
            return EditedSnapshot(before, is_new=False)
        made = await make(newest)
        if made is None:
            return EditedSnapshot(newest, is_new=False)
        snapshot = newest.snapshot + 1
        metadata = with_token(made.metadata, token, snapshot)
        made = replace(made, snapshot=snapshot, parent=newest.digest, metadata=metadata)
        try:
            await commit(engine, made, retry=engine.policy)
        except CommitConflict as error:
            if attempt == _MAX_ATTEMPTS:
                error.what = "other writers committed first, 20 times in a row; run it again when they are done"
                raise
        else:
            return EditedSnapshot(made, is_new=True)
    raise AssertionError("unreachable")
