"""Copies a dataset with all snapshots and tags to another place, also between clouds.

Objects come first, in parallel, then the manifests in order, then the tags. So the copy is whole at every moment, like
a dataset that is written. A second run continues, or adds what is new.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import xxhash

from concurrent_loader.storage.errors import AlreadyExists, DigestMismatch, NotFound, StorageError, StoreError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.lifecycle.references import COPYING, DATA, data_digest, named_keys
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import scan_objects
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.shards.manifest.snapshots import NO_DATASET, list_snapshots
from concurrent_loader.storage.shards.manifest.tags import read_tags, write_tag
from concurrent_loader.storage.stores.objects import Buffer, ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["CopyProgress", "CopyReport", "copy_dataset"]

_LOG = logging.getLogger(__name__)

_MD5 = re.compile(r'"[0-9a-f]{32}(?:-[0-9]+)?"')  # an ETag that is made from the bytes
_MAX_BYTES = 256 << 20  # in memory at once, or one larger object
_MAX_SERVER_BYTES = 256 << 20  # of an object that is copied on the server in one request
_MAX_ROUNDS = 3  # after which objects that keep disappearing are an error


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """Progress of a copy.

    Attributes:
        num_bytes: Size of the objects that are in their place.
        num_bytes_total: Size of all objects.

    Example:
        >>> from concurrent_loader.storage import CopyProgress
        >>> CopyProgress(num_bytes=1, num_bytes_total=4).num_bytes
        1
    """

    num_bytes: int
    num_bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a copy did.

    Attributes:
        snapshots: Numbers of the snapshots that the copy has.
        num_new_snapshots: Number of snapshots that this run added.
        num_objects: Number of objects that this run copied, without manifests and tags.
        num_bytes: Their size in bytes.
        num_server_side: Number of objects that the server copied, so that no byte passed through this machine.
        num_kept: Number of objects that were in their place already.
        sources: URLs of adopted data that the dataset refers to, and that was not copied.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import copy_dataset, open_store
        >>> report = asyncio.run(copy_dataset(open_store("photos"), open_store("photos-copy")))
        >>> report.snapshots, report.num_kept
        ((1,), 0)
    """

    snapshots: tuple[int, ...]
    num_new_snapshots: int
    num_objects: int
    num_bytes: int
    num_server_side: int
    num_kept: int
    sources: tuple[str, ...]


async def copy_dataset(
    source: Store | FetchEngine,
    target: Store | FetchEngine,
    *,
    in_flight: int = 16,
    on_progress: Callable[[CopyProgress], None] | None = None,
) -> CopyReport:
    """Copies a dataset with all snapshots and tags.

    Every object is verified: its bytes against its digest before they are written; or, if the server copied it, by its
    ETag or by reading it. Numbers and digests of snapshots stay, so states of loaders fit the copy. Times do not. A
    repeated call continues, or copies what is new in the source.

    Args:
        source: Store of the dataset, or an engine over it.
        target: Store of the copy, or an engine over it: empty, or with an earlier copy of the same dataset.
        in_flight: Number of objects that are copied at once; their bytes are at most 256 MiB, or one object.
        on_progress: Callback for progress, called on the event loop.

    Raises:
        NotFound: The source holds no dataset, or an object of it was deleted meanwhile.
        AlreadyExists: The target holds another dataset. Nothing was overwritten.
        DigestMismatch: An object of the source is damaged. No snapshot was added.
        StorageError: Source or target failed; call it again to continue.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import copy_dataset, open_store
        >>> first = asyncio.run(copy_dataset(open_store("photos"), open_store("photos-copy")))
        >>> asyncio.run(copy_dataset(open_store("photos"), open_store("photos-copy"))).num_objects
        0
    """
    origin = source if isinstance(source, FetchEngine) else FetchEngine(source)
    other = target if isinstance(target, FetchEngine) else FetchEngine(target)
    return await _Copy(origin, other, in_flight, on_progress).run()


@dataclass
class _Needed:
    """The objects of all snapshots.

    Attributes:
        digests: xxh3_128 of the objects by key.
        sizes: Sizes in bytes by key.
        sources: URLs of adopted data.
    """

    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)

    def add(self, data: Buffer, manifest: Manifest, there: Mapping[str, ObjectMeta]) -> None:
        """Adds the objects of a snapshot.

        Args:
            data: The manifest's file.
            manifest: The same, decoded.
            there: All data objects of the source.
        """
        table = manifest.table
        entries = list(zip(table.keys, table.digests, table.sizes.tolist(), strict=True))
        if table.ranges is not None:
            entries = [each for each, place in zip(entries, table.ranges.is_virtual, strict=True) if not place]
            self.sources.update(file.url for file in table.ranges.files)
            tails = table.ranges.tail_keys
            entries += [(key, data_digest(key) or "", there[key].size if key in there else 0) for key in tails]
        entries += [(bundle.key, bundle.digest, bundle.size) for bundle in manifest.bundles]
        # Whatever else the manifest names: its fields may be newer than this function.
        others = named_keys(data).difference(self.digests, (key for key, _, _ in entries))
        entries += [(key, data_digest(key) or "", there[key].size) for key in others if key in there]
        for key, digest, size in entries:
            self.digests[key], self.sizes[key] = digest, size


class _Copy:
    """One run."""

    def __init__(
        self,
        source: FetchEngine,
        target: FetchEngine,
        in_flight: int,
        on_progress: Callable[[CopyProgress], None] | None,
    ) -> None:
        self._source = source
        self._target = target
        self._uploader = Uploader(store=target.store, retry=target.policy)
        self._gate = InFlightGate(max_requests=in_flight, max_bytes=_MAX_BYTES)
        self._on_progress = on_progress
        self._needed = _Needed()
        self._etags: dict[str, str | None] = {}
        self._on_server = True
        self._num_server_side = 0
        self._copied: dict[str, int] = {}
        self._done_bytes = self._total_bytes = 0

    async def run(self) -> CopyReport:
        snapshots = await list_snapshots(self._source)
        if not snapshots:
            raise NotFound(NO_DATASET, url=self._source.store.url, key="manifests/")
        # Listed after the snapshots, whose objects were written before them.
        there = await self._list(self._source)
        files = {number: await self._manifest(number, there) for number in snapshots}
        self._etags = {key: there[key].etag for key in self._needed.digests if key in there}
        new = await self._new_snapshots(snapshots, files)
        record = await self._protect()
        num_kept = await self._copy_objects()
        await self._uploader.confirm_replaced()
        for number in new:
            await self._put_manifest(number)
        for name, number in (await read_tags(self._source)).items():
            if number in files:
                await write_tag(self._target, name, number, move=True)
        await self._target.call_with_retries(lambda: self._target.store.delete(record), record)
        return CopyReport(
            snapshots=tuple(snapshots),
            num_new_snapshots=len(new),
            num_objects=len(self._copied),
            num_bytes=sum(self._copied.values()),
            num_server_side=self._num_server_side,
            num_kept=num_kept,
            sources=tuple(sorted(self._needed.sources)),
        )

    # -- manifests -------------------------------------------------------------------------------------------------

    async def _manifest(self, number: int, there: Mapping[str, ObjectMeta]) -> str:
        """Reads a snapshot of the source; returns the digest of its manifest."""
        data = (await self._source.fetch_object(manifest_key(number))).data
        self._needed.add(data, decode(data, url=self._source.store.url), there)
        return xxhash.xxh3_128_hexdigest(data)

    async def _new_snapshots(self, snapshots: list[int], files: dict[int, str]) -> list[int]:
        """Returns the numbers of the snapshots that the target does not have.

        Raises:
            AlreadyExists: The target has another dataset.
        """
        there = await list_snapshots(self._target)
        common = [number for number in there if number in files]
        for number in common:
            data = (await self._target.fetch_object(manifest_key(number))).data
            if xxhash.xxh3_128_hexdigest(data) != files[number]:
                raise self._other_dataset(number)
        if there and (not common or there[-1] > snapshots[-1]):
            raise self._other_dataset(there[-1])
        return [number for number in snapshots if number not in there]

    async def _put_manifest(self, number: int) -> None:
        key = manifest_key(number)
        data = (await self._source.fetch_object(key)).data
        try:
            await self._uploader.put_once(key, data)
        except AlreadyExists as error:
            found = (await self._target.fetch_object(key)).data
            if found != data:  # not another copy of the same dataset
                raise self._other_dataset(number) from error

    def _other_dataset(self, number: int) -> AlreadyExists:
        return AlreadyExists(
            "the destination has a snapshot that the source does not have: it is another dataset, or was written to; "
            "choose another place",
            url=self._target.store.url, key=manifest_key(number),
        )  # fmt: skip

    # -- objects ---------------------------------------------------------------------------------------------------

    async def _protect(self) -> str:
        """Writes a record of all objects, so that no garbage collection deletes those of an interrupted copy."""
        keys = sorted(self._needed.digests)
        data = msgspec.json.encode(keys)
        key = f"{COPYING}{xxhash.xxh3_128_hexdigest(data)}/keys.json"
        await self._uploader.put(key, data)
        return key

    async def _copy_objects(self) -> int:
        """Copies what is not there until everything is there; returns the number of objects that were there."""
        num_kept = 0
        for attempt in range(_MAX_ROUNDS):
            there = await self._list(self._target)
            missing = [key for key in self._needed.digests if not self._is_there(key, there.get(key))]
            if attempt == 0:
                num_kept = len(self._needed.digests) - len(missing)
                self._total_bytes = sum(self._needed.sizes.values())
                self._done_bytes = self._total_bytes - sum(self._needed.sizes.get(key, 0) for key in missing)
                self._report(0)
            if not missing:
                return num_kept
            await map_concurrently(self._copy, missing)
        raise StoreError(
            "objects of the copy disappear; is something else deleting them?", url=self._target.store.url,
            key=missing[0],
        )  # fmt: skip

    async def _list(self, engine: FetchEngine) -> dict[str, ObjectMeta]:
        found: dict[str, ObjectMeta] = {}
        for prefix in DATA:
            found |= (await scan_objects(engine, prefix, _Objects)).found
        return found

    def _is_there(self, key: str, meta: ObjectMeta | None) -> bool:
        """Returns whether an object has the size in the manifest. Objects appear whole, and keys name the content."""
        return meta is not None and meta.size == self._needed.sizes.get(key)

    async def _copy(self, key: str) -> None:
        size = self._needed.sizes.get(key, 0)
        await self._gate.enter(size)
        try:
            if not await self._copy_on_server(key, size):
                await self._transfer(key, size)
        finally:
            self._gate.leave(size)
        self._copied[key] = size
        self._report(size)

    async def _copy_on_server(self, key: str, size: int) -> bool:
        """Copies an object on the server and verifies it; returns whether it is there and right."""
        if not self._on_server or size > _MAX_SERVER_BYTES:
            return False
        target, source = self._target.store, self._source.store
        try:
            if not await self._target.call_with_retries(lambda: target.copy_from(source, key, key), key):
                self._on_server = False
                return False
        except StorageError as error:
            # Such as: the server does not know the operation, or the identity may not read the source from there.
            _LOG.info("%s cannot copy on the server, so objects are transferred: %s", target.url, error)
            self._on_server = False
            return False
        meta = await self._target.call_with_retries(lambda: target.head(key), key)
        etag = self._etags.get(key)
        is_same = etag is not None and _MD5.fullmatch(etag) is not None and meta.etag == etag and meta.size == size
        if not is_same and await self._digest(self._target, key, size) != self._needed.digests[key]:
            return False
        self._num_server_side += 1
        return True

    async def _transfer(self, key: str, size: int) -> None:
        expected = self._needed.digests[key]
        data = await self._fetch(self._source, key, size)
        if (got := xxhash.xxh3_128_hexdigest(data)) != expected:
            data = await self._fetch(self._source, key, size)  # once more: the bytes may have changed on their way
            if (again := xxhash.xxh3_128_hexdigest(data)) != expected:
                error = DigestMismatch(
                    "an object of the source is damaged, so nothing was committed; `concurrent-loader verify` lists "
                    "what is damaged",
                    url=self._source.store.url, key=key, start=0, end=size, expected=expected, got=again, attempts=2,
                )  # fmt: skip
                error.is_steady = got == again
                raise error
        await self._uploader.put_content_addressed(key, data)

    async def _fetch(self, engine: FetchEngine, key: str, size: int) -> memoryview:
        """Fetches an object. Where it comes in one piece, its time grows with its size only if that is known."""
        if size and not engine.store.streams:
            return memoryview((await engine.fetch(key, 0, size)).data)
        return memoryview((await engine.fetch_object(key)).data)

    async def _digest(self, engine: FetchEngine, key: str, size: int) -> str:
        return xxhash.xxh3_128_hexdigest(await self._fetch(engine, key, size))

    def _report(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        if self._on_progress is not None:
            self._on_progress(CopyProgress(num_bytes=self._done_bytes, num_bytes_total=self._total_bytes))


class _Objects:
    """Collects the metadata of objects."""

    def __init__(self) -> None:
        self.found: dict[str, ObjectMeta] = {}

    def add(self, meta: ObjectMeta) -> None:
        self.found[meta.key] = meta

    def refuse(self, error: StorageError) -> None:
        """Ignores an entry that cannot be listed: it is no object of a dataset."""
