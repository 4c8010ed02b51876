"""Lists, reads and commits the snapshots of a dataset.

A dataset is a folder of content-addressed shards and numbered manifests. A manifest is written last, by put-if-absent,
and never changes, so readers see a whole snapshot or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

from concurrent_loader.storage.errors import AlreadyExists, CommitConflict, FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import MAX_MANIFEST_BYTES, decode, encode
from concurrent_loader.storage.shards.manifest.tombstones import check_not_purged
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["NO_DATASET", "commit", "is_manifest_key", "latest_snapshot", "list_snapshots", "load_manifest"]

NO_DATASET = (
    "no dataset here: there is no manifest (ObjectDataset reads plain files; they become a dataset by "
    "`concurrent-loader ingest`)"
)

_KEY = re.compile(r"manifests/(\d{10})\.clm\Z")


def is_manifest_key(key: str) -> bool:
    """Returns whether a key below a dataset's URL is that of a manifest."""
    return _KEY.match(key) is not None


async def list_snapshots(source: Store | FetchEngine) -> list[int]:
    """Returns the numbers of all committed snapshots in ascending order; an empty list without a dataset."""

    async def list_manifests() -> list[int]:
        found = [_KEY.match(meta.key) async for meta in engine.store.list("manifests/")]
        return sorted(int(match[1]) for match in found if match is not None and int(match[1]) > 0)

    engine = _engine(source)
    return await engine.call_with_retries(list_manifests, "manifests/")


async def latest_snapshot(source: Store | FetchEngine) -> int | None:
    """Returns the number of the newest snapshot, or None without a dataset."""
    snapshots = await list_snapshots(source)
    return snapshots[-1] if snapshots else None


async def load_manifest(source: Store | FetchEngine, snapshot: int | None = None) -> Manifest:
    """Reads one snapshot of a dataset.

    Args:
        source: Store of the dataset, or an engine over it.
        snapshot: Number of the snapshot; the newest by default.

    Raises:
        NotFound: The store holds no dataset, or no such snapshot.
        SnapshotDeleted: The snapshot was purged.
        FormatError: The manifest is damaged, or belongs to another snapshot.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import load_manifest, open_store
        >>> manifest = asyncio.run(load_manifest(open_store("photos")))
        >>> manifest.num_samples, manifest.schema
        (20, {'image': 'jpeg', 'label': 'int64'})
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
        raise FormatError(
            "the manifest has the key of another snapshot", url=url, key=key, expected=snapshot, got=manifest.snapshot
        )
    return manifest


async def _newest_file(engine: FetchEngine) -> tuple[int, memoryview]:
    """Returns the newest snapshot's number and file.

    Most datasets have one snapshot. So the first snapshot is requested together with the list, and opening such a
    dataset takes one round trip instead of two.
    """
    first = asyncio.create_task(_file_of(engine, 1))
    try:
        newest = await latest_snapshot(engine)
        if newest is None:
            raise NotFound(NO_DATASET, url=engine.store.url, key="manifests/")
        if newest == 1:
            with contextlib.suppress(NotFound):  # requested just before it was committed, so it is requested again
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
                "the object is too large for a manifest",
                url=engine.store.url,
                key=key,
                expected=MAX_MANIFEST_BYTES,
                got=meta.size,
            )

    try:
        if not engine.store.streams:  # the whole object would arrive before its size could be checked
            check(await engine.call_with_retries(lambda: engine.store.head(key), key))
        return (await engine.fetch_object(key, accept=check)).data
    except NotFound as error:
        await check_not_purged(engine, snapshot)
        raise NotFound("no such snapshot", url=engine.store.url, key=key) from error


async def commit(source: Store | FetchEngine, manifest: Manifest, *, retry: RetryPolicy | None = None) -> None:
    """Makes a snapshot visible, unless another writer has committed the same number.

    Args:
        source: Store of the dataset, or an engine over it.
        manifest: Snapshot to commit; its shards and bundles must be in the store.
        retry: Retry policy.

    Raises:
        CommitConflict: Another writer committed this number first; its snapshot is unchanged.
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
