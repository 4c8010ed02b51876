"""Finds the datasets below a bucket, prefix or folder."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from concurrent_loader.storage.errors import CorruptData, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.lifecycle.references import FOLDERS
from concurrent_loader.storage.listing import scan_objects
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["DatasetInfo", "list_datasets"]

_KEY = re.compile(rf"(?:(?P<root>.*)/)?(?P<folder>{'|'.join(each.rstrip('/') for each in FOLDERS)})/(?P<rest>.+)")
_MANIFEST = re.compile(r"(\d{10})\.clm")
_MAX_MANIFESTS = 4  # read and parsed at once: a manifest may have 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """A dataset below a URL.

    Attributes:
        path: Path of the dataset below the URL; empty for the URL itself.
        num_samples: Number of samples of the newest snapshot; None if its manifest cannot be read.
        num_bytes: Size of the newest snapshot's shards in bytes; None if its manifest cannot be read.
        stored_bytes: Size in bytes of everything in the dataset's folders: all snapshots, and what garbage collection
            could delete.
        snapshots: Numbers of the snapshots, ascending.
        modified: Time of the newest commit by the store's clock; None if the store keeps no times.
        columns: Column types by name of the newest snapshot.
        problem: Message of the error, if the newest manifest cannot be read.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import list_datasets, open_store
        >>> [info] = asyncio.run(list_datasets(open_store("photos")))
        >>> info.path, info.num_samples, info.snapshots
        ('', 20, (1,))
    """

    path: str
    num_samples: int | None
    num_bytes: int | None
    stored_bytes: int
    snapshots: tuple[int, ...]
    modified: datetime | None
    columns: dict[str, str]
    problem: str | None = None


async def list_datasets(source: Store | FetchEngine) -> list[DatasetInfo]:
    """Finds all datasets below a URL, at any depth.

    Lists every object below the URL, a thousand per request, and reads the newest manifest of each dataset. Memory
    grows with the number of folders that may be datasets, not with the number of objects.

    Args:
        source: Store rooted at a bucket, prefix or folder, or an engine over it.

    Returns:
        Datasets by path. A dataset whose newest manifest is damaged is included with its problem.

    Raises:
        StorageError: The objects cannot be listed, or a manifest cannot be fetched.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import list_datasets, open_store
        >>> len(asyncio.run(list_datasets(open_store("photos"))))
        1
    """
    engine = source if isinstance(source, FetchEngine) else FetchEngine(source)
    found = (await scan_objects(engine, "", _Folders)).found
    limit = asyncio.Semaphore(_MAX_MANIFESTS)

    async def describe(root: str) -> DatasetInfo:
        async with limit:
            return await _describe(engine, root, found[root])

    return await map_concurrently(describe, sorted(root for root, each in found.items() if each.snapshots))


@dataclass
class _Folder:
    """What the listing shows of a folder that may be a dataset."""

    stored_bytes: int = 0
    snapshots: dict[int, datetime | None] = field(default_factory=dict)


class _Folders:
    """Collects the folders that may be datasets."""

    def __init__(self) -> None:
        self.found: defaultdict[str, _Folder] = defaultdict(_Folder)

    def add(self, meta: ObjectMeta) -> None:
        match = _KEY.fullmatch(meta.key)
        if match is None:
            return
        folder = self.found[match["root"] or ""]
        folder.stored_bytes += meta.size
        number = match["folder"] == "manifests" and _MANIFEST.fullmatch(match["rest"])
        if number and int(number[1]) > 0:
            folder.snapshots[int(number[1])] = meta.last_modified

    def refuse(self, error: StorageError) -> None:
        """Ignores an entry that cannot be listed: no dataset has such a key."""


async def _describe(engine: FetchEngine, root: str, folder: _Folder) -> DatasetInfo:
    newest = max(folder.snapshots)
    manifest: Manifest | None = None
    problem = None
    try:
        data = (await engine.fetch_object(f"{root}/{manifest_key(newest)}" if root else manifest_key(newest))).data
        manifest = decode(data, url=engine.store.url)
    except (CorruptData, NotFound) as error:
        problem = str(error)
    return DatasetInfo(
        path=root,
        num_samples=None if manifest is None else manifest.num_samples,
        num_bytes=None if manifest is None else manifest.num_bytes,
        stored_bytes=folder.stored_bytes,
        snapshots=tuple(sorted(folder.snapshots)),
        modified=folder.snapshots[newest],
        columns=dict(manifest.schema) if manifest else {},
        problem=problem,
    )
