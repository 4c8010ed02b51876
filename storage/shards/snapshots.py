"""The snapshots of a data set in its store: listed, read, committed.

A data set is a folder of content-addressed shards plus numbered manifests. A manifest is written last, by
put-if-absent, and never changes: readers see a whole snapshot or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

from storage.errors import AlreadyExists, CommitConflict, FormatError, NotFound
from storage.fetch import FetchEngine, RetryPolicy
from storage.shards.manifest import MAX_MANIFEST_BYTES, Manifest, decode, encode, manifest_key
from storage.shards.uploading import Uploader
from storage.stores.protocol import ObjectMeta, Store

__all__ = ["NO_DATASET", "commit", "is_manifest_key", "latest_snapshot", "list_snapshots", "load_manifest"]

NO_DATASET = (
    "no data set here: it has no manifest (plain files are read by ObjectDataset, or made into one by "
    "`concurrent-loader ingest`)"
)

_KEY = re.compile(r"manifests/(\d{10})\.clm\Z")


def is_manifest_key(key: str) -> bool:
    """Whether a key below a data set's URL is a snapshot's."""
    return _KEY.match(key) is not None


async def list_snapshots(source: Store | FetchEngine) -> list[int]:
    """Returns the numbers of all committed snapshots, ascending; none where there is no data set."""

    async def list_manifests() -> list[int]:
        found = [_KEY.match(meta.key) async for meta in engine.store.list("manifests/")]
        return sorted(int(match[1]) for match in found if match is not None and int(match[1]) > 0)

    engine = _engine(source)
    return await engine.insist(list_manifests, "manifests/")


async def latest_snapshot(source: Store | FetchEngine) -> int | None:
    """Returns the number of the newest snapshot, or None where there is no data set."""
    snapshots = await list_snapshots(source)
    return snapshots[-1] if snapshots else None


async def load_manifest(source: Store | FetchEngine, snapshot: int | None = None) -> Manifest:
    """Reads one snapshot of a data set.

    Args:
        source: Where the data set is.
        snapshot: Its number; the newest by default.

    Raises:
        NotFound: No data set here, or no such snapshot.
        FormatError: The manifest is damaged, or is another snapshot's.
    """
    engine = _engine(source)
    url = engine.store.url
    if snapshot is None:
        snapshot, data = await _newest_file(engine)
    else:
        data = await _file_of(engine, snapshot)
    key = manifest_key(snapshot)
    try:
        manifest = decode(data, url=url)
    except FormatError as error:
        error.locate(key=key)
        raise
    if manifest.snapshot != snapshot:
        raise FormatError("a manifest under another's name", url=url, key=key, expected=snapshot, got=manifest.snapshot)
    return manifest


async def _newest_file(engine: FetchEngine) -> tuple[int, memoryview]:
    """Returns the newest snapshot's number and file.

    Most data sets have one snapshot. So the first is asked for while the list is on its way: opening them takes as long
    as one answer, not two.
    """
    first = asyncio.create_task(_file_of(engine, 1))
    try:
        newest = await latest_snapshot(engine)
        if newest is None:
            raise NotFound(NO_DATASET, url=engine.store.url, key="manifests/")
        if newest == 1:
            with contextlib.suppress(NotFound):  # asked for just before it was committed: it is asked for again
                return 1, await first
        return newest, await _file_of(engine, newest)
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def _file_of(engine: FetchEngine, snapshot: int) -> memoryview:
    key = manifest_key(snapshot)

    def check(meta: ObjectMeta) -> None:
        if meta.size > MAX_MANIFEST_BYTES:
            raise FormatError(
                "too large for a manifest", url=engine.store.url, key=key, expected=MAX_MANIFEST_BYTES, got=meta.size
            )

    try:
        if not engine.store.streams:  # its answer would come whole before there is a size to look at
            check(await engine.insist(lambda: engine.store.head(key), key))
        return (await engine.fetch_object(key, accept=check)).data
    except NotFound as error:
        raise NotFound("no such snapshot", url=engine.store.url, key=key) from error


async def commit(source: Store | FetchEngine, manifest: Manifest, *, retry: RetryPolicy | None = None) -> None:
    """Makes a snapshot visible, if nobody else has made one of the same number.

    Args:
        source: Where the data set is.
        manifest: To be committed; what it names must be in the store.
        retry: When to insist.

    Raises:
        CommitConflict: Somebody has; the data set is as they left it.
    """
    store = _engine(source).store
    try:
        await Uploader(store=store, retry=RetryPolicy.of(retry)).put_once(
            manifest_key(manifest.snapshot), encode(manifest)
        )
    except AlreadyExists as error:
        raise CommitConflict(
            "another writer committed this snapshot first; commit(rebase=True) puts the new shards on top of it",
            url=store.url, key=manifest_key(manifest.snapshot),
        ) from error  # fmt: skip


def _engine(source: Store | FetchEngine) -> FetchEngine:
    return source if isinstance(source, FetchEngine) else FetchEngine(source)
