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
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import scan_objects
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["DatasetInfo", "list_datasets"]

_KEY = re.compile(rf"(?:(?P<root>.*)/)?(?P<folder>{'|'.join(each.rstrip('/') for each in FOLDERS)})/(?P<rest>.+)")
_MANIFEST = re.compile(r"(\d{10})\.clm")
_DATA_NAME = re.compile(r"[0-9a-f]{32}\.[a-z]+")
_BEHIND_DATA = "g"  # greater than every digest
_MANY_OBJECTS = 1000  # a page of a listing, which costs as much as one request to skip the rest
_MAX_MANIFESTS = 4  # read and parsed at once: a manifest may have 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """A dataset below a URL.

    Attributes:
        path: Path of the dataset below the URL; empty for the URL itself.
        num_samples: Number of samples of the newest snapshot; None if its manifest cannot be read.
        num_bytes: Size of the newest snapshot's shards in bytes; None if its manifest cannot be read.
        stored_bytes: Size in bytes of everything in the dataset's folders: all snapshots, and what garbage collection
            could delete. None if a folder has more than 1,000 objects, which were not counted.
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
    stored_bytes: int | None
    snapshots: tuple[int, ...]
    modified: datetime | None
    columns: dict[str, str]
    problem: str | None = None


async def list_datasets(source: Store | FetchEngine, *, stored: bool = False) -> list[DatasetInfo]:
    """Finds all datasets below a URL, at any depth.

    Lists the objects below the URL, a thousand per request, and reads the newest manifest of each dataset. From the
    thousandth shard on, the rest of a folder of shards is skipped, so that a dataset of a million shards takes about
    ten requests. Memory grows with the number of folders that may be datasets, not with the number of objects.

    Args:
        source: Store rooted at a bucket, prefix or folder, or an engine over it.
        stored: Whether to list every object, so that ``stored_bytes`` is known for large datasets, too.

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
    found = (await scan_objects(engine, "", lambda: _Folders(stored))).found
    limit = asyncio.Semaphore(_MAX_MANIFESTS)

    async def describe(root: str) -> DatasetInfo:
        async with limit:
            return await _describe(engine, root, found[root])

    return await map_concurrently(describe, sorted(root for root, each in found.items() if each.snapshots))


@dataclass
class _Folder:
    """What the listing shows of a folder that may be a dataset."""

    stored_bytes: int | None = 0
    snapshots: dict[int, datetime | None] = field(default_factory=dict)


class _Folders:
    """Collects the folders that may be datasets."""

    def __init__(self, is_complete: bool) -> None:
        self.found: defaultdict[str, _Folder] = defaultdict(_Folder)
        self._is_complete = is_complete
        self._folder, self._num_objects = "", 0

    def add(self, meta: ObjectMeta) -> str | None:
        match = _KEY.fullmatch(meta.key)
        if match is None:
            return None
        folder = self.found[match["root"] or ""]
        number = match["folder"] == "manifests" and _MANIFEST.fullmatch(match["rest"])
        if number and int(number[1]) > 0:
            folder.snapshots[int(number[1])] = meta.last_modified
        if folder.stored_bytes is not None:
            folder.stored_bytes += meta.size
        if self._is_complete or _DATA_NAME.fullmatch(match["rest"]) is None:
            return None
        path = meta.key[: -len(match["rest"])]
        self._num_objects = self._num_objects + 1 if path == self._folder else 1
        self._folder = path
        if self._num_objects <= _MANY_OBJECTS:
            return None
        folder.stored_bytes = None
        return path + _BEHIND_DATA

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
