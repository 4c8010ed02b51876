"""Describes and names the snapshots of a dataset."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from concurrent_loader.storage.errors import FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.snapshots import (
    NO_DATASET,
    SnapshotName,
    find_snapshot,
    list_manifests,
    load_manifest,
)
from concurrent_loader.storage.shards.manifest.tags import (
    check_tag_name,
    delete_tag_object,
    read_tag,
    read_tags,
    write_tag,
)
from concurrent_loader.storage.stores.store import Store

__all__ = ["SnapshotInfo", "delete_tag", "describe_snapshots", "list_tags", "tag_snapshot"]

_MAX_MANIFESTS = 4  # read and parsed at once: a manifest may have 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """The main facts of a snapshot.

    Attributes:
        snapshot: Number of the snapshot.
        committed: Time of the commit by the store's clock; None if the store keeps no times.
        tags: Tags of the snapshot, sorted.
        num_samples: Number of samples.
        num_bytes: Size of its shards in bytes.
        num_shards: Number of shards.
        columns: Column types by name.
        digest: Digest of the manifest, as 32 hex digits.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import describe_snapshots, open_store
        >>> [info] = asyncio.run(describe_snapshots(open_store("photos")))
        >>> info.snapshot, info.num_samples, info.columns
        (1, 20, {'image': 'jpeg', 'label': 'int64'})
    """

    snapshot: int
    committed: datetime | None
    tags: tuple[str, ...]
    num_samples: int
    num_bytes: int
    num_shards: int
    columns: dict[str, str]
    digest: str


async def describe_snapshots(source: Store | FetchEngine) -> list[SnapshotInfo]:
    """Reads the manifests of all snapshots of a dataset.

    Args:
        source: Store of the dataset, or an engine over it.

    Returns:
        One entry per snapshot, by ascending number.

    Raises:
        NotFound: The store holds no dataset.
        FormatError: A manifest or tag is damaged.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import describe_snapshots, open_store
        >>> len(asyncio.run(describe_snapshots(open_store("photos"))))
        1
    """
    engine = _engine(source)
    manifests = await list_manifests(engine)
    if not manifests:
        raise NotFound(NO_DATASET, url=engine.store.url, key="manifests/")
    tags = defaultdict(list)
    for name, snapshot in (await read_tags(engine)).items():
        tags[snapshot].append(name)
    limit = asyncio.Semaphore(_MAX_MANIFESTS)

    async def describe(snapshot: int) -> SnapshotInfo | None:
        async with limit:
            try:
                manifest = await load_manifest(engine, snapshot)
            except NotFound:
                return None  # deleted after it was listed
        return snapshot_info(manifest, manifests[snapshot].last_modified, tuple(tags[snapshot]))

    found = await map_concurrently(describe, list(manifests))
    return [info for info in found if info is not None]


def snapshot_info(manifest: Manifest, committed: datetime | None, tags: tuple[str, ...]) -> SnapshotInfo:
    """Returns the main facts of a snapshot."""
    return SnapshotInfo(
        snapshot=manifest.snapshot,
        committed=committed,
        tags=tags,
        num_samples=manifest.num_samples,
        num_bytes=manifest.num_bytes,
        num_shards=len(manifest.shards),
        columns=dict(manifest.schema),
        digest=manifest.digest,
    )


async def list_tags(source: Store | FetchEngine) -> dict[str, int]:
    """Returns the snapshots' numbers by tag, sorted by tag.

    Args:
        source: Store of the dataset, or an engine over it.

    Raises:
        FormatError: A tag's object is damaged.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import list_tags, open_store, tag_snapshot
        >>> asyncio.run(tag_snapshot(open_store("photos"), "paper"))
        1
        >>> asyncio.run(list_tags(open_store("photos")))
        {'paper': 1}
    """
    return await read_tags(_engine(source))


async def tag_snapshot(
    source: Store | FetchEngine, name: str, snapshot: SnapshotName | None = None, *, move: bool = False
) -> int:
    """Names a snapshot. Garbage collection keeps snapshots that have a tag.

    Args:
        source: Store of the dataset, or an engine over it.
        name: 1 to 100 letters, digits, ``.``, ``_`` and ``-``; not a number.
        snapshot: Snapshot as for `load_manifest`: a number, another tag, or a time. Default: the newest.
        move: Whether a tag that names another snapshot may be moved. By default, that is an error.

    Returns:
        Number of the snapshot.

    Raises:
        AlreadyExists: The tag names another snapshot, and ``move`` is false.
        NotFound: There is no such snapshot.
        ConfigurationError: The name is invalid.

    Example:
        >>> import asyncio
        >>> from concurrent_loader import ShardDataset
        >>> from concurrent_loader.storage import open_store, tag_snapshot
        >>> asyncio.run(tag_snapshot(open_store("photos"), "v1.0"))
        1
        >>> ShardDataset("photos", snapshot="v1.0").manifest.snapshot
        1
    """
    engine = _engine(source)
    check_tag_name(name)
    number = None if snapshot is None else await find_snapshot(engine, snapshot)
    number = (await load_manifest(engine, number)).snapshot
    before = None
    if move:
        with suppress(NotFound, FormatError):
            before = await read_tag(engine, name)
    await write_tag(engine, name, number, move=move)
    # Garbage collection may have deleted the snapshot meanwhile. It looks at the tags once more after it has deleted a
    # manifest, and restores it. So either the manifest is missing here, or the collection sees this tag.
    try:
        await engine.call_with_retries(lambda: engine.store.head(manifest_key(number)), manifest_key(number))
    except NotFound:
        if before is None:
            await delete_tag_object(engine, name)
        else:
            await write_tag(engine, name, before, move=True)
        raise
    return number


async def delete_tag(source: Store | FetchEngine, name: str) -> None:
    """Deletes a tag. Its snapshot stays, but garbage collection may delete it. A missing tag is no error.

    Args:
        source: Store of the dataset, or an engine over it.
        name: Name of the tag.

    Raises:
        ConfigurationError: The name is invalid.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import delete_tag, list_tags, open_store
        >>> asyncio.run(delete_tag(open_store("photos"), "v1.0"))
        >>> asyncio.run(list_tags(open_store("photos")))
        {}
    """
    await delete_tag_object(_engine(source), name)


def _engine(source: Store | FetchEngine) -> FetchEngine:
    return source if isinstance(source, FetchEngine) else FetchEngine(source)
