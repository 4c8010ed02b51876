"""Reads ranges of shards, and raw objects, from the local copies or from the store; used by every cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.cache.single_flight import LeaderFlight
from concurrent_loader.storage.cache.stats import CacheCounters
from concurrent_loader.storage.errors import CorruptData, DatasetChanged, DigestMismatch, NotFound, ObjectChanged
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher

__all__ = ["LocalRanges", "RangeReader", "dataset_changed", "not_pinned"]

T = TypeVar("T")

_THREAD_BYTES = 256 * 1024  # smaller ranges are decoded on the event loop: handing them to a thread costs as much


class LocalRanges:
    """Local copies of ranges and of raw objects. This base class keeps none."""

    async def read(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        """Returns the decoded range if a local copy is sound, else None; deletes corrupt copies."""
        return None

    async def keep(self, entry: ShardEntry | BundleEntry | ObjectEntry, start: int, data: memoryview) -> None:
        """Stores a range that was fetched and verified."""

    async def read_object(self, entry: ObjectEntry) -> memoryview | None:
        """Returns a raw object if a local copy is sound, else None; deletes a corrupt copy."""
        return None

    async def keep_object(self, entry: ObjectEntry, data: memoryview) -> None:
        """Stores a raw object that was fetched."""


class RangeReader:
    """Reads ranges and raw objects from the nearest place.

    Usable from one event loop.

    Args:
        fetcher: Fetcher of missing bytes.
        local: Local copies.
        counters: Counters of the cache.
    """

    def __init__(self, fetcher: ShardFetcher, local: LocalRanges, counters: CacheCounters) -> None:
        self._fetcher = fetcher
        self._engine = fetcher.engine
        self._local = local
        self._counters = counters
        self._objects: LeaderFlight[str, memoryview] = LeaderFlight()

    # -- ranges of shards ------------------------------------------------------------------------------------------

    async def read(self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]) -> T:
        """Reads and decodes a range of a shard; see `ShardCache.read`."""
        local = await self._local.read(entry, start, end, decode)
        if local is not None:
            self._counters.add(num_sparse_hits=1)
            return local[0]
        self._counters.add(num_sparse_misses=1)
        data = await self._fetch(entry, start, end)
        try:
            value = await _decode(decode, data)
        except CorruptData:
            data = await self._fetch(entry, start, end)
            try:
                value = await _decode(decode, data)
            except CorruptData as error:
                error.locate(attempts=2, start=start, end=end)
                await self._check_object(entry, start, end, error)
                raise error from None
        await self._local.keep(entry, start, data)
        return value

    async def _fetch(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> memoryview:
        try:
            return await self._fetcher.fetch(entry, start, end)
        except DatasetChanged:
            raise
        except ObjectChanged as error:
            raise dataset_changed(entry, error) from error

    async def _check_object(self, entry: ShardEntry | BundleEntry, start: int, end: int, error: CorruptData) -> None:
        """Compares the chunks around a corrupt range with the manifest, which has digests of chunks, not of ranges.

        Raises:
            DatasetChanged: The object in the bucket differs from the one that the manifest pins.
        """

        async def drop(position: int, piece: memoryview) -> None:
            """Ignores a piece: only its digest matters."""

        chunks = split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES)
        for span, digest in zip(chunks, entry.chunk_digests, strict=True):
            if span.start >= end or span.end <= start:
                continue
            try:
                await self._fetcher.fetch_into(entry, span.start, span.end, drop, digest=digest)
            except DatasetChanged:
                raise
            except ObjectChanged as changed:
                raise dataset_changed(entry, changed) from changed
            except DigestMismatch as mismatch:
                if mismatch.is_steady:
                    raise not_pinned(entry, error) from mismatch

    # -- raw objects -----------------------------------------------------------------------------------------------

    async def read_object(self, entry: ObjectEntry) -> memoryview:
        """Reads a whole object; see `ShardCache.read_object`."""
        if not entry.size:
            return memoryview(b"")
        return await self._objects.run(entry.digest, lambda: self._read_object(entry))

    async def _read_object(self, entry: ObjectEntry) -> memoryview:
        local = await self._local.read_object(entry)
        if local is not None:
            self._counters.add(num_sparse_hits=1)
            return local
        self._counters.add(num_sparse_misses=1)
        data = await self._fetch_object(entry)
        await self._local.keep_object(entry, data)
        return data

    async def _fetch_object(self, entry: ObjectEntry) -> memoryview:
        # A weak ETag never matches (RFC 9110, 13.1.1), so it is compared after the request.
        strong = None if entry.etag is None or entry.etag.startswith("W/") else entry.etag
        try:
            result = await self._engine.fetch(
                entry.key, 0, entry.size, if_match=strong, digest=entry.content, object_size=entry.size
            )
        except DigestMismatch as error:
            if error.is_steady:
                raise DatasetChanged(
                    "an object's bytes are not those whose digest was stored: it was replaced, or damaged in storage",
                    url=error.url, key=entry.key, expected=error.expected, got=error.got, attempts=error.attempts,
                ) from error  # fmt: skip
            raise
        except (ObjectChanged, NotFound) as error:
            change = "deleted" if isinstance(error, NotFound) else "replaced"
            raise DatasetChanged(
                f"an object was {change} after it was listed; list again with refresh=True",
                url=error.url, key=entry.key, start=error.start, end=error.end,
                expected=error.expected, got=error.got, attempts=error.attempts,
            ) from error  # fmt: skip
        if entry.etag is not None and result.meta.etag not in (None, entry.etag):
            raise DatasetChanged(
                "an object was replaced after it was listed; list again with refresh=True",
                url=self._engine.store.url, key=entry.key, expected=entry.etag, got=result.meta.etag,
            )  # fmt: skip
        return result.data


async def _decode(decode: Callable[[memoryview], T], data: memoryview) -> T:
    return decode(data) if len(data) < _THREAD_BYTES else await in_thread(lambda: decode(data))


def dataset_changed(entry: ShardEntry | BundleEntry, error: ObjectChanged) -> DatasetChanged:
    """Returns the error for an object that was replaced while its manifest was in use."""
    return DatasetChanged(
        "a shard was replaced, but its manifest was not; open the dataset again",
        url=error.url, key=entry.key, shard=entry.key, start=error.start, end=error.end,
        expected=error.expected, got=error.got, attempts=error.attempts,
    )  # fmt: skip


def not_pinned(entry: ShardEntry | BundleEntry, error: CorruptData) -> DatasetChanged:
    """Returns the error for an object whose stored bytes differ from the manifest."""
    return DatasetChanged(
        "the object in the bucket is not the one that the manifest pins: it was replaced, or damaged in storage; "
        "run `concurrent-loader verify` to list what is damaged",
        url=error.url, key=entry.key, shard=entry.key, sample=error.sample, column=error.column, start=error.start,
        end=error.end, expected=error.expected, got=error.got, attempts=error.attempts,
    )  # fmt: skip
