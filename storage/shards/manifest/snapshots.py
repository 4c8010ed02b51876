"""Lists, reads and commits the snapshots of a dataset.

A dataset is a folder of content-addressed shards and numbered manifests. A manifest is written last, by put-if-absent,
and never changes, so readers see a whole snapshot or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from datetime import datetime

from concurrent_loader.storage.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    FormatError,
    NotFound,
    SnapshotDeleted,
)
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import MAX_MANIFEST_BYTES, decode, encode
from concurrent_loader.storage.shards.manifest.tags import read_tag
from concurrent_loader.storage.shards.manifest.tombstones import check_not_purged, was_deleted
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = [
    "NO_DATASET",
    "SnapshotName",
    "commit",
    "find_snapshot",
    "is_manifest_key",
    "latest_snapshot",
    "list_manifests",
    "list_snapshots",
    "load_manifest",
]

SnapshotName = int | str | datetime
"""A snapshot's number, a tag, or a time with a time zone: then it is the newest snapshot committed by that time."""

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
    return list(await list_manifests(source))


async def list_manifests(source: Store | FetchEngine) -> dict[int, ObjectMeta]:
    """Returns the metadata of all manifests by the snapshot's number, in ascending order.

    ``last_modified`` is the time of the commit by the store's clock, because a manifest is written once.
    """
    found = [(_KEY.match(meta.key), meta) for meta in await list_metas(_engine(source), "manifests/")]
    numbers = {int(match[1]): meta for match, meta in found if match is not None}
    return {number: numbers[number] for number in sorted(numbers) if number > 0}


async def latest_snapshot(source: Store | FetchEngine) -> int | None:
    """Returns the number of the newest snapshot, or None without a dataset."""
    snapshots = await list_snapshots(source)
    return snapshots[-1] if snapshots else None


async def find_snapshot(source: Store | FetchEngine, snapshot: SnapshotName) -> int:
    """Returns the number of a snapshot.

    Args:
        source: Store of the dataset, or an engine over it.
        snapshot: Number, which is returned as it is; tag; or time, which finds the newest snapshot committed by then.

    Raises:
        NotFound: There is no such tag, or no snapshot is that old.
        ConfigurationError: The time has no time zone, the tag is invalid, or the store keeps no times.
    """
    if isinstance(snapshot, str):
        return await read_tag(_engine(source), snapshot)
    if not isinstance(snapshot, datetime):
        return snapshot
    if snapshot.tzinfo is None:
        raise ConfigurationError("the time of a snapshot needs a time zone, such as UTC", got=snapshot.isoformat())
    engine = _engine(source)
    url = engine.store.url
    manifests = await list_manifests(engine)
    found = None
    for number, meta in manifests.items():
        if meta.last_modified is None:
            raise ConfigurationError("the store keeps no times; name the snapshot by its number or a tag", url=url)
        if meta.last_modified <= snapshot:
            found = number
    if found is None:
        what = "no snapshot is that old" if manifests else NO_DATASET
        raise NotFound(what, url=url, got=snapshot.isoformat())
    return found


async def load_manifest(source: Store | FetchEngine, snapshot: SnapshotName | None = None) -> Manifest:
    """Reads one snapshot of a dataset.

    Args:
        source: Store of the dataset, or an engine over it.
        snapshot: Number of the snapshot, a tag, or a time with a time zone, which means the newest snapshot committed
            by then. Default: the newest.

    Raises:
        NotFound: The store holds no dataset, or no such snapshot.
        SnapshotDeleted: The snapshot was collected as garbage, or purged.
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
        snapshot = await find_snapshot(engine, snapshot)
        try:
            data = await _file_of(engine, snapshot)
        except SnapshotDeleted:
            raise
        except NotFound as error:
            raise await _missing(engine, snapshot, error) from error
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


async def _missing(engine: FetchEngine, snapshot: int, error: NotFound) -> NotFound:
    """Returns the error for a snapshot without a manifest. Numbers are never used twice, so it tells if it existed."""
    newest = await latest_snapshot(engine)
    if (newest is None or snapshot > newest) and not await was_deleted(engine, snapshot):
        return NotFound("no such snapshot", url=error.url, key=error.key, expected=newest and f"1 to {newest}")
    return SnapshotDeleted(
        f"the snapshot was deleted by garbage collection; the newest is {newest or 'not visible yet'}",
        url=error.url, key=error.key, got=snapshot,
    )  # fmt: skip


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
            meta = await engine.call_with_retries(lambda: engine.store.head(key), key)
            check(meta)
            return (await engine.fetch(key, 0, meta.size)).data  # with time for its size
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
