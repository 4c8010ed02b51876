"""Fetches ranges of shards, and assembles the ranges of virtual shards from the places of their bytes.

A virtual shard looks like any other shard: header, payload, padding and tail. Only the header and the padding are made
here. The payload is fetched from the adopted object, whose ETag must not have changed, and the tail from the dataset.
Both requests run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import xxhash

from concurrent_loader.storage.errors import (
    ConfigurationError,
    DatasetChanged,
    DigestMismatch,
    FormatError,
    NotFound,
    ObjectChanged,
    SnapshotDeleted,
)
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.fetch.transfer import Write
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.footer_cache import FooterCache
from concurrent_loader.storage.shards.format.layout import HEADER, HEADER_BYTES, padded
from concurrent_loader.storage.shards.format.transforms import is_parquet, transform, transform_row_group
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots
from concurrent_loader.storage.shards.manifest.source_ranges import SourceRange
from concurrent_loader.storage.shards.manifest.tombstones import was_deleted

__all__ = ["OpenSource", "ShardFetcher", "check_source"]

OpenSource = Callable[[str], FetchEngine]
"""Returns an engine over the store of adopted data, given its URL."""

Entry = ShardEntry | BundleEntry


def check_source(url: str, source: str) -> None:
    """Checks that a dataset may name a store of adopted data. A manifest may come from a stranger.

    A dataset on the local drive may name any store. Any other may only name a store of its own kind.

    Args:
        url: URL of the dataset.
        source: URL of the adopted data, from the manifest.

    Raises:
        ConfigurationError: They are of different kinds.
    """
    if _scheme(url) not in (_scheme(source), "file"):
        raise ConfigurationError(
            "the dataset refers to data in another kind of store; if you trust it, pass source_options={} "
            "(or the options of that store)",
            url=url, got=source,
        )  # fmt: skip


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "file"


_MAX_UNITS, _MAX_UNIT_BYTES = 4, 128 << 20  # decoded payloads kept for the other chunks of their shards: either limit


class ShardFetcher:
    """Fetches ranges of the shards of one dataset.

    Args:
        engine: Engine over the dataset's store.
        open_source: Function that opens the store of adopted data; None if adopted data cannot be read here.

    Attributes:
        snapshot: Number of the snapshot that is read, by which a missing shard is explained; None if unknown.
        adopted: Name of the format of adopted data, for the advice to adopt it again.

    Usable from one event loop.
    """

    def __init__(self, engine: FetchEngine, open_source: OpenSource | None = None) -> None:
        self.engine = engine
        self.snapshot: int | None = None
        self.adopted = "FORMAT"
        self._open_source = open_source
        self._sources: dict[str, FetchEngine] = {}
        self._units: dict[str, asyncio.Task[memoryview]] = {}
        self._unit_bytes: dict[str, int] = {}
        self._footers = FooterCache()

    async def fetch(self, entry: Entry, start: int, end: int, *, digest: int | None = None) -> memoryview:
        """Fetches the bytes [start, end) of a shard.

        Args:
            entry: Entry of the shard.
            start: First byte.
            end: One past the last byte.
            digest: xxh3_64 of the bytes. After a mismatch they are fetched once more.

        Raises:
            DatasetChanged: The adopted object was replaced or deleted.
            SnapshotDeleted: The shard and the snapshot that it belongs to were deleted.
            ObjectChanged: The shard's object does not have the size in the manifest.
            DigestMismatch: The bytes differ from the manifest, twice.
            StorageError: The range could not be fetched.
        """
        if entry.source is None:
            try:
                result = await self.engine.fetch(entry.key, start, end, digest=digest, object_size=entry.size)
            except NotFound as error:
                await self._check_snapshot(error)
                raise
            return result.data.toreadonly()
        pieces = await self._verified_pieces(entry, entry.source, start, end, digest)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    async def fetch_into(self, entry: Entry, start: int, end: int, write: Write, *, digest: int | None = None) -> None:
        """Fetches a range and passes it on piece by piece; see `FetchEngine.fetch_into`.

        The pieces of a virtual shard are verified before the first one is passed on.
        """
        if entry.source is None:
            try:
                await self.engine.fetch_into(entry.key, start, end, write, digest=digest, object_size=entry.size)
            except NotFound as error:
                await self._check_snapshot(error)
                raise
            return
        for piece in await self._verified_pieces(entry, entry.source, start, end, digest):
            await write(start, piece)
            start += len(piece)

    async def close(self) -> None:
        """Closes the stores of adopted data. Idempotent."""
        units, self._units = self._units, {}
        for unit in units.values():
            unit.cancel()
        await asyncio.gather(*units.values(), return_exceptions=True)
        await self._footers.close()
        sources, self._sources = self._sources, {}
        for engine in sources.values():
            await engine.store.close()

    # -- virtual shards --------------------------------------------------------------------------------------------

    async def _verified_pieces(
        self, entry: ShardEntry, source: SourceRange, start: int, end: int, digest: int | None
    ) -> list[memoryview]:
        """Returns the bytes [start, end) in pieces, whose digest is right; after a mismatch they are fetched again."""
        pieces = await self._pieces(entry, source, start, end)
        if digest is None or (first := _digest_of(pieces)) == digest:
            return pieces
        self.engine.counters.num_refetched += 1
        self.engine.counters.wasted_bytes += end - start
        self._units.pop(entry.digest, None)
        pieces = await self._pieces(entry, source, start, end)
        second = _digest_of(pieces)
        if second == digest:
            return pieces
        error = DigestMismatch(
            "the bytes differ from what was adopted", url=source.file.url, key=source.file.key, shard=entry.key,
            start=start, end=end, expected=f"{digest:016x}", got=f"{second:016x}", attempts=2,
        )  # fmt: skip
        error.is_steady = first == second
        raise error

    async def _pieces(self, entry: ShardEntry, source: SourceRange, start: int, end: int) -> list[memoryview]:
        """Returns the bytes [start, end) of a virtual shard, in order: header, payload, padding, tail."""
        tail = entry.tail_start
        payload_end = tail if source.file.transform else HEADER_BYTES + source.end - source.start
        first, last = max(start, HEADER_BYTES), min(end, payload_end)
        parts: list[Coroutine[Any, Any, memoryview]] = []
        has_payload = first < last
        if has_payload:
            fetch = self._transformed if source.file.transform else self._fetch_source
            parts.append(fetch(entry, source, first, last))
        if end > tail:
            parts.append(self._fetch_tail(entry, source, max(start, tail), end))
        found = await _all(parts)
        pieces = [memoryview(HEADER)[start:end]] if start < HEADER_BYTES else []
        if has_payload:
            pieces.append(found[0])
        padding = min(end, tail) - start - sum(map(len, pieces))
        if padding > 0:
            pieces.append(memoryview(bytes(padding)))
        if end > tail:
            pieces.append(found[-1])
        return pieces

    async def _fetch_tail(self, entry: ShardEntry, source: SourceRange, start: int, end: int) -> memoryview:
        shift = source.tail_offset - entry.tail_start
        try:
            return (await self.engine.fetch(source.tail_key, start + shift, end + shift)).data.toreadonly()
        except NotFound as error:
            await self._check_snapshot(error)
            raise

    async def _check_snapshot(self, error: NotFound) -> None:
        """Checks, after an object of the dataset was not found, that its snapshot exists.

        Raises:
            SnapshotDeleted: The snapshot is gone, too, and a newer one is there, or what a deletion leaves: not the
                whole dataset has gone.
        """
        if self.snapshot is None:
            return
        try:
            snapshots = await list_snapshots(self.engine)
        except NotFound:  # the bucket
            return
        if self.snapshot in snapshots:
            return
        has_newer = bool(snapshots) and self.snapshot < snapshots[-1]
        if has_newer or await was_deleted(self.engine, self.snapshot):
            newest = f", {snapshots[-1]}" if has_newer else ""
            raise SnapshotDeleted(
                f"snapshot {self.snapshot} was deleted while it was read; open the newest one{newest} "
                "(a tag keeps a snapshot from garbage collection)",
                url=self.engine.store.url, key=error.key, shard=error.shard, start=error.start, end=error.end,
                attempts=error.attempts,
            ) from error  # fmt: skip

    async def _fetch_source(self, entry: ShardEntry, source: SourceRange, start: int, end: int) -> memoryview:
        shift = source.start - HEADER_BYTES
        return await self._fetch_object(entry, source, ByteRange(start + shift, end + shift))

    async def _fetch_object(self, entry: ShardEntry, source: SourceRange, span: ByteRange) -> memoryview:
        file = source.file
        engine = self._engine_of(file.url)
        # A weak ETag never matches (RFC 9110, 13.1.1), so it is compared after the request.
        strong = None if file.etag is None or file.etag.startswith("W/") else file.etag
        try:
            result = await engine.fetch(file.key, span.start, span.end, if_match=strong, object_size=file.size)
        except (ObjectChanged, NotFound) as error:
            raise self._source_changed(entry, source, error) from error
        if file.etag is not None and result.meta.etag not in (None, file.etag):
            raise self._source_changed(entry, source, ObjectChanged("", expected=file.etag, got=result.meta.etag))
        return result.data.toreadonly()

    async def _transformed(self, entry: ShardEntry, source: SourceRange, start: int, end: int) -> memoryview:
        """Returns part of the payload of a transformed range, which is fetched and decoded once for all chunks."""
        unit = self._units.get(entry.digest)
        if unit is None:
            self._evict_units(entry.tail_start)
            self._unit_bytes[entry.digest] = entry.tail_start
            unit = self._units[entry.digest] = asyncio.create_task(self._fetch_unit(entry, source))
        try:
            payload = await asyncio.shield(unit)
        except BaseException:
            if unit.done() and self._units.get(entry.digest) is unit:
                del self._units[entry.digest]
            raise
        if end == entry.tail_start and self._units.get(entry.digest) is unit:
            self._units[entry.digest] = self._units.pop(entry.digest)  # its last chunk: the others come soon
        return payload[start - HEADER_BYTES : min(end - HEADER_BYTES, len(payload))]

    def _evict_units(self, num_bytes: int) -> None:
        """Makes room for a unit: at most four units stay, or more if they are small."""
        for digest in [digest for digest in self._unit_bytes if digest not in self._units]:
            del self._unit_bytes[digest]
        while len(self._units) >= _MAX_UNITS and sum(self._unit_bytes.values()) + num_bytes > _MAX_UNIT_BYTES:
            oldest = next(iter(self._units))
            del self._units[oldest], self._unit_bytes[oldest]

    async def _fetch_unit(self, entry: ShardEntry, source: SourceRange) -> memoryview:
        file, span = source.file, ByteRange(source.start, source.end)
        most = entry.tail_start - HEADER_BYTES
        try:
            payload: bytes | bytearray
            if is_parquet(file.transform):
                footer = await self._footers.get(
                    file, lambda start, end: self._fetch_object(entry, source, ByteRange(start, end))
                )
                data = await self._fetch_object(entry, source, span)
                payload = await asyncio.to_thread(
                    transform_row_group, file.transform, footer, span, data, max_bytes=most
                )
            else:
                data = await self._fetch_object(entry, source, span)
                payload = await asyncio.to_thread(transform, file.transform, data, max_bytes=most)
            if padded(HEADER_BYTES + len(payload)) != entry.tail_start:
                raise FormatError(
                    "a transformed range is shorter than its index states", expected=most, got=len(payload)
                )
        except FormatError as error:
            error.locate(url=file.url, key=file.key, shard=entry.key)
            raise
        return memoryview(payload).toreadonly()

    def _engine_of(self, url: str) -> FetchEngine:
        engine = self._sources.get(url)
        if engine is None:
            if self._open_source is None:
                raise ConfigurationError("adopted data cannot be read here: no way to open its source", url=url)
            engine = self._sources[url] = self._open_source(url)
        return engine

    def _source_changed(
        self, entry: ShardEntry, source: SourceRange, error: ObjectChanged | NotFound
    ) -> DatasetChanged:
        file = source.file
        change = "deleted" if isinstance(error, NotFound) else "replaced"
        return DatasetChanged(
            f"an adopted object was {change}; adopt its source again, into a new index or with --overwrite: "
            f"`concurrent-loader adopt {self.adopted} {file.url} {self.engine.store.url} --overwrite`",
            url=file.url, key=file.key, shard=entry.key, start=source.start, end=source.end,
            expected=error.expected, got=error.got, attempts=error.attempts,
        )  # fmt: skip


def _digest_of(pieces: list[memoryview]) -> int:
    hashed = xxhash.xxh3_64()
    for piece in pieces:
        hashed.update(piece)
    return hashed.intdigest()


async def _all(parts: list[Coroutine[Any, Any, memoryview]]) -> list[memoryview]:
    """Runs coroutines concurrently; the first error cancels the others and is raised as it is."""
    if len(parts) <= 1:
        return [await part for part in parts]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]
