"""Holds shards between the fetch engine and the shard reader: the interface and the work that all caches share.

A shard is fetched once, however many callers ask for it. While it is in use it is *pinned*.
`concurrent_loader.storage.cache.disk_cache` adds the local drive,
`concurrent_loader.storage.cache.range_reader` reads parts of shards.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.cache.eviction import UseSchedule
from concurrent_loader.storage.cache.open_shard import MemoryShard, OpenShard
from concurrent_loader.storage.cache.range_reader import LocalRanges, RangeReader, dataset_changed, not_pinned
from concurrent_loader.storage.cache.single_flight import SingleFlight
from concurrent_loader.storage.cache.stats import CacheCounters, CacheStats
from concurrent_loader.storage.errors import DatasetChanged, DigestMismatch, ObjectChanged, StorageError, StoreClosed
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, ShardFetcher

__all__ = ["ShardCache"]

T = TypeVar("T")


class ShardCache(ABC):
    """Whole shards, pinned while in use, and ranges of shards.

    Usable from one event loop. `acquire` and `release` come in pairs.

    Args:
        engine: Engine that fetches missing bytes. The cache does not close its store.
        open_source: Function that opens the store of adopted data; see `ShardFetcher`.
        clock: Source of monotonic seconds.

    Attributes:
        fetcher: Fetcher of ranges of shards.
    """

    def __init__(
        self,
        engine: FetchEngine,
        *,
        open_source: OpenSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fetcher = ShardFetcher(engine, open_source)
        self._clock = clock
        self._flight: SingleFlight[str, OpenShard] = SingleFlight()
        self._replacing: SingleFlight[str, OpenShard] = SingleFlight()
        self._open: dict[str, OpenShard] = {}
        self._pins: dict[str, int] = {}
        self._retired: dict[str, list[OpenShard]] = {}  # replaced, but a thread may still be reading them
        self._fetched: dict[str, tuple[float, float | None]] = {}  # of pinned shards: start and end of their fetch
        self._counters = CacheCounters()
        self._ranges = RangeReader(self.fetcher, LocalRanges(), self._counters)
        self._closed = False

    @property
    def stats(self) -> CacheStats:
        """Counters so far."""
        return self._counters.snapshot()

    # -- whole shards ----------------------------------------------------------------------------------------------

    async def acquire(self, entry: ShardEntry) -> OpenShard:
        """Pins a shard and returns it; fetches it if it is not local.

        Raises:
            DatasetChanged: The object in the bucket is not the one that the manifest pins.
            StorageError: The shard could not be fetched, or is corrupt in the bucket.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", shard=entry.key)
        name = entry.digest
        self._pins[name] = self._pins.get(name, 0) + 1
        try:
            shard = self._open.get(name)
            if shard is None:
                shard = await self._flight.run(name, lambda: self._load_and_register(entry))
            return shard
        except BaseException:
            self.release(entry)
            raise

    def release(self, entry: ShardEntry, *, done_for_epoch: bool = False) -> None:
        """Releases one pin.

        Args:
            entry: Entry of the acquired shard.
            done_for_epoch: Whether no rank needs the shard any more in the epoch of the current schedule.
        """
        name = entry.digest
        if self._closed:
            return
        if done_for_epoch:
            self._mark_done_for_epoch(name)
        self._pins[name] -= 1
        if self._pins[name] == 0:
            del self._pins[name]
            self._fetched.pop(name, None)
            for shard in (self._open.pop(name, None), *self._retired.pop(name, ())):
                if shard is not None:
                    shard.close()

    async def is_local(self, entry: ShardEntry) -> bool:
        """Returns whether a shard can probably be acquired without a request."""
        return entry.digest in self._open

    def fetched(self, entry: ShardEntry) -> tuple[float, float | None] | None:
        """Returns the start and the end of the fetch of a pinned shard, in monotonic seconds.

        The end is None while the fetch runs. The result is None if the shard was not fetched.

        Thread-safety: May be called from any thread.
        """
        return self._fetched.get(entry.digest)

    async def replace(self, entry: ShardEntry, corrupt: OpenShard) -> OpenShard:
        """Deletes a local file that turned out corrupt, and fetches the shard again; pins stay as they are.

        The first of several callers that found the same corruption replaces the file; the others get the new shard.
        """
        current = self._open.get(entry.digest)
        if current is not None and current is not corrupt:
            return current
        return await self._replacing.run(entry.digest, lambda: self._replace(entry))

    async def _replace(self, entry: ShardEntry) -> OpenShard:
        corrupt = self._open.pop(entry.digest, None)
        if corrupt is not None:
            self._retired.setdefault(entry.digest, []).append(corrupt)
        await in_thread(lambda: self._discard(entry))
        return await self._flight.run(entry.digest, lambda: self._load_and_register(entry))

    async def close(self) -> None:
        """Closes all files and the stores of adopted data, and drops the remaining pins. Idempotent."""
        self._closed = True
        for shard in (*self._open.values(), *(old for retired in self._retired.values() for old in retired)):
            shard.close()
        self._open.clear()
        self._retired.clear()
        self._pins.clear()
        self._fetched.clear()
        await self.fetcher.close()

    async def _load_and_register(self, entry: ShardEntry) -> OpenShard:
        shard = await self._load(entry)
        if self._pins.get(entry.digest):
            self._open[entry.digest] = shard
        else:
            shard.close()
        return shard

    # -- ranges and raw objects ------------------------------------------------------------------------------------

    async def read(self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]) -> T:
        """Reads and decodes a range of a shard from the nearest place, without fetching the whole shard.

        Args:
            entry: Entry of the shard.
            start: First byte.
            end: One past the last byte.
            decode: Function that decodes the bytes and checks their digests; called on a thread or on the event loop.

        Returns:
            The result of ``decode``.

        Raises:
            CorruptData: ``decode`` raised it for bytes that were fetched twice, although the object is the right one.
            DatasetChanged: The object in the bucket is not the one that the manifest pins.
            StorageError: The range could not be fetched.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", shard=entry.key)
        shard = self._open.get(entry.digest)
        if shard is not None and not shard.cached:
            return decode(memoryview(shard.read(start, end)))  # in memory, and verified when it arrived
        return await self._ranges.read(entry, start, end, decode)

    async def read_object(self, entry: ObjectEntry) -> memoryview:
        """Reads a whole object from the nearest place.

        Raises:
            DatasetChanged: The object was deleted or replaced after it was listed.
            StorageError: The object could not be fetched.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", key=entry.key)
        return await self._ranges.read_object(entry)

    # -- what a cache on a drive overrides -------------------------------------------------------------------------

    async def set_schedule(self, make_schedule: Callable[[], UseSchedule]) -> None:
        """Sets the plan of future uses, at the start of an epoch; it replaces the previous plan.

        Args:
            make_schedule: Function that computes the plan; called on a thread, and only by a cache that evicts.
        """

    def set_step(self, step: int) -> None:
        """Sets the current step of the epoch that the schedule describes."""

    def _mark_done_for_epoch(self, name: str) -> None:
        """Notes that a shard is not needed any more in this epoch."""

    @abstractmethod
    async def _load(self, entry: ShardEntry) -> OpenShard:
        """Opens a shard that is not open."""

    def _discard(self, entry: ShardEntry | BundleEntry) -> None:
        """Deletes the local copy of a shard; called on a thread."""

    # -- fetching --------------------------------------------------------------------------------------------------

    async def _fetch(
        self, entry: ShardEntry, fetch_chunk: Callable[[int, ByteRange], Coroutine[Any, Any, None]]
    ) -> None:
        """Fetches a shard's transfer chunks, as many at once as the engine admits; each is verified on arrival.

        Args:
            entry: Entry of the shard.
            fetch_chunk: Function that fetches one chunk, given its number and range.
        """
        began_s = self._clock()
        self._fetched[entry.digest] = (began_s, None)
        try:
            chunks = enumerate(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES))
            await map_concurrently(lambda chunk: fetch_chunk(*chunk), list(chunks))
        except Exception as first:
            if isinstance(first, ObjectChanged) and not isinstance(first, DatasetChanged):
                raise dataset_changed(entry, first) from first
            if isinstance(first, DigestMismatch) and first.is_steady:
                raise not_pinned(entry, first) from first
            if isinstance(first, StorageError):
                first.locate(shard=entry.key)
            raise
        finally:
            if self._pins.get(entry.digest):
                self._fetched[entry.digest] = (began_s, self._clock())
            else:
                self._fetched.pop(entry.digest, None)

    async def _fetch_into_memory(self, entry: ShardEntry) -> OpenShard:
        chunks: dict[int, memoryview] = {}

        async def fetch_chunk(number: int, span: ByteRange) -> None:
            chunks[number] = await self.fetcher.fetch(entry, span.start, span.end, digest=entry.chunk_digests[number])

        await self._fetch(entry, fetch_chunk)
        ordered = [chunks[number] for number in range(len(chunks))]
        return await in_thread(lambda: MemoryShard(entry, ordered, chunk_bytes=CHUNK_BYTES), MemoryShard.close)
