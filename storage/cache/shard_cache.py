"""Keeps shards at hand between the fetch engine and the shard reader: what every cache does, and the one in memory.

A shard is fetched once however many ask for it. While it is in use it is *pinned*. `storage.cache.disk_cache` adds the
local drive.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from storage.cache.object_entry import ObjectEntry
from storage.cache.open_shard import MemoryShard, OpenShard
from storage.cache.schedule import UseSchedule
from storage.cache.single_flight import LedFlight, SingleFlight
from storage.cache.threads import in_thread
from storage.errors import (
    CorruptData,
    DatasetChanged,
    DigestMismatch,
    NotFound,
    ObjectChanged,
    StorageError,
    StoreClosed,
)
from storage.fetch.engine import FetchEngine
from storage.map_concurrently import map_concurrently
from storage.ranges import ByteRange, split
from storage.shards.layout import CHUNK_BYTES
from storage.shards.manifest import BundleEntry, ShardEntry

__all__ = ["CacheStats", "MemoryShardCache", "ShardCache"]

T = TypeVar("T")

_THREAD_BYTES = 256 * 1024  # less is decoded on the loop: a hop to a thread costs as much


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache has done so far; a snapshot.

    Attributes:
        num_hits: Shards found locally.
        num_misses: Shards fetched.
        num_evicted: Files deleted to make room.
        num_quarantined: Files thrown away because their bytes had decayed.
        num_bypassed: Shards kept in memory: the drive refused them, or they were not worth what would have had to go.
        num_sparse_hits: Ranges of single samples and indexes found locally, in parts of a shard or in a whole one; and
            raw objects.
        num_sparse_misses: Such ranges and objects fetched.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_evicted: int = 0
    num_quarantined: int = 0
    num_bypassed: int = 0
    num_sparse_hits: int = 0
    num_sparse_misses: int = 0


class ShardCache(ABC):
    """Whole shards, pinned while in use, and ranges of them.

    Usable from one event loop. `acquire` and `release` come in pairs.

    Args:
        engine: Fetches what is missing.
        now: Monotonic seconds.
    """

    def __init__(self, engine: FetchEngine, *, now: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._flight: SingleFlight[str, OpenShard] = SingleFlight()
        self._replacing: SingleFlight[str, OpenShard] = SingleFlight()
        self._objects: LedFlight[str, memoryview] = LedFlight()
        self._open: dict[str, OpenShard] = {}
        self._pins: dict[str, int] = {}
        self._retired: dict[str, list[OpenShard]] = {}  # replaced, perhaps still being read by a thread
        self._fetched: dict[str, tuple[float, float | None]] = {}  # of pinned shards: when their fetch began and ended
        self._now = now
        self._stats = CacheStats()
        self._counting = threading.Lock()
        self._closed = False

    @property
    def stats(self) -> CacheStats:
        """Counters so far."""
        return self._stats

    # -- whole shards ----------------------------------------------------------------------------------------------

    async def acquire(self, entry: ShardEntry) -> OpenShard:
        """Returns a shard, fetched where it is not at hand, and pins it.

        Raises:
            DatasetChanged: The object in the bucket is not the one that the manifest pins.
            StorageError: It could not be fetched, or is damaged in the bucket.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", shard=entry.key)
        name = entry.digest
        self._pins[name] = self._pins.get(name, 0) + 1
        try:
            shard = self._open.get(name)
            if shard is None:
                shard = await self._flight.run(name, lambda: self._bring(entry))
            return shard
        except BaseException:
            self.release(entry)
            raise

    def release(self, entry: ShardEntry, *, spent: bool = False) -> None:
        """Gives back one pin.

        Args:
            entry: What was acquired.
            spent: Nobody needs it any more in the epoch of the schedule that is followed.
        """
        name = entry.digest
        if self._closed:
            return
        if spent:
            self._note_spent(name)
        self._pins[name] -= 1
        if self._pins[name] == 0:
            del self._pins[name]
            self._fetched.pop(name, None)
            for shard in (self._open.pop(name, None), *self._retired.pop(name, ())):
                if shard is not None:
                    shard.close()

    def fetched(self, entry: ShardEntry) -> tuple[float, float | None] | None:
        """Says when the fetch of a pinned shard from the store began and ended (None: not yet), in monotonic seconds.

        None if it was not fetched. May be called from any thread.
        """
        return self._fetched.get(entry.digest)

    async def replace(self, entry: ShardEntry, decayed: OpenShard) -> OpenShard:
        """Throws away a local file whose bytes turned out wrong, and fetches the shard again; pins stay as they are.

        Of several callers that found the same damage the first replaces the file, the others get the new shard.
        """
        current = self._open.get(entry.digest)
        if current is not None and current is not decayed:
            return current
        return await self._replacing.run(entry.digest, lambda: self._replace(entry))

    async def _replace(self, entry: ShardEntry) -> OpenShard:
        decayed = self._open.pop(entry.digest, None)
        if decayed is not None:
            self._retired.setdefault(entry.digest, []).append(decayed)
        await in_thread(lambda: self._discard(entry))
        return await self._flight.run(entry.digest, lambda: self._bring(entry))

    async def close(self) -> None:
        """Closes all files; pins that are left are void. Idempotent."""
        self._closed = True
        for shard in (*self._open.values(), *(old for retired in self._retired.values() for old in retired)):
            shard.close()
        self._open.clear()
        self._retired.clear()
        self._pins.clear()
        self._fetched.clear()

    async def _bring(self, entry: ShardEntry) -> OpenShard:
        shard = await self._load(entry)
        if self._pins.get(entry.digest):
            self._open[entry.digest] = shard
        else:
            shard.close()
        return shard

    # -- ranges ----------------------------------------------------------------------------------------------------

    async def read(self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]) -> T:
        """Reads a range of a shard and what is in it, from where it is nearest; the shard is not fetched for it.

        Args:
            entry: The shard.
            start: First byte.
            end: One past the last byte.
            decode: Makes something of the bytes and finds out, by digests, whether they are right; called from a
                thread or from the loop.

        Returns:
            What ``decode`` returned.

        Raises:
            CorruptData: What ``decode`` raised on bytes that were fetched twice, although the object is the right one.
            DatasetChanged: The object in the bucket is not the one that the manifest pins.
            StorageError: They could not be fetched.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", shard=entry.key)
        shard = self._open.get(entry.digest)
        if shard is not None and not shard.cached:
            return decode(memoryview(shard.read(start, end)))  # in memory, and verified when it arrived
        local = await self._read_local(entry, start, end, decode)
        if local is not None:
            self._count(num_sparse_hits=1)
            return local[0]
        self._count(num_sparse_misses=1)
        data = await self._fetch_range(entry, start, end)
        try:
            value = await _decoded(decode, data)
        except CorruptData:
            data = await self._fetch_range(entry, start, end)
            try:
                value = await _decoded(decode, data)
            except CorruptData as error:
                error.locate(attempts=2, start=start, end=end)
                await self._check_object(entry, start, end, error)
                raise error from None
        await self._keep_range(entry, start, data)
        return value

    async def _fetch_range(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> memoryview:
        try:
            return (await self._engine.fetch(entry.key, start, end, object_size=entry.size)).data.toreadonly()
        except ObjectChanged as error:
            raise _dataset_changed(entry, error) from error

    async def _check_object(self, entry: ShardEntry | BundleEntry, start: int, end: int, error: CorruptData) -> None:
        """Finds out whose fault it is that a range is wrong: a range has no digest in the manifest, its chunks have.

        Raises:
            DatasetChanged: The object's, which is not the one that the manifest pins.
        """

        async def drop(position: int, piece: memoryview) -> None:
            """Its digest is all that is wanted."""

        chunks = split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES)
        for span, digest in zip(chunks, entry.chunk_digests, strict=True):
            if span.start >= end or span.end <= start:
                continue
            try:
                await self._engine.fetch_into(
                    entry.key, span.start, span.end, drop, digest=digest, object_size=entry.size
                )
            except ObjectChanged as changed:
                raise _dataset_changed(entry, changed) from changed
            except DigestMismatch as wrong:
                if wrong.is_steady:
                    raise _not_pinned(entry, error) from wrong

    # -- raw objects -----------------------------------------------------------------------------------------------

    async def read_object(self, entry: ObjectEntry) -> memoryview:
        """Reads a whole object, from where it is nearest.

        Raises:
            DatasetChanged: The object is gone, or another one than was listed.
            StorageError: It could not be fetched.
        """
        if self._closed:
            raise StoreClosed("this cache is closed", key=entry.key)
        if not entry.size:
            return memoryview(b"")
        return await self._objects.run(entry.digest, lambda: self._read_object(entry))

    async def _read_object(self, entry: ObjectEntry) -> memoryview:
        local = await self._read_local_object(entry)
        if local is not None:
            self._count(num_sparse_hits=1)
            return local
        self._count(num_sparse_misses=1)
        data = await self._fetch_object(entry)
        await self._keep_object(entry, data)
        return data

    async def _fetch_object(self, entry: ObjectEntry) -> memoryview:
        # A weak ETag never matches (RFC 9110, 13.1.1); it is compared afterwards.
        strong = None if entry.etag is None or entry.etag.startswith("W/") else entry.etag
        try:
            result = await self._engine.fetch(entry.key, 0, entry.size, if_match=strong, object_size=entry.size)
        except (ObjectChanged, NotFound) as error:
            gone = "deleted" if isinstance(error, NotFound) else "replaced"
            raise DatasetChanged(
                f"an object was {gone} after it was listed; list again with refresh=True",
                url=error.url, key=entry.key, start=error.start, end=error.end,
                expected=error.expected, got=error.got, attempts=error.attempts,
            ) from error  # fmt: skip
        if entry.etag is not None and result.meta.etag not in (None, entry.etag):
            raise DatasetChanged(
                "an object was replaced after it was listed; list again with refresh=True",
                url=self._engine.store.url, key=entry.key, expected=entry.etag, got=result.meta.etag,
            )  # fmt: skip
        return result.data

    async def _read_local_object(self, entry: ObjectEntry) -> memoryview | None:
        """Reads an object that is local, throwing it away if it is damaged; None where there is none."""
        return None

    async def _keep_object(self, entry: ObjectEntry, data: memoryview) -> None:
        """Keeps an object that was fetched."""

    # -- what a cache on the drive does more -----------------------------------------------------------------------

    async def follow(self, make_schedule: Callable[[], UseSchedule]) -> None:
        """Tells when shards will be used from now on, at the beginning of an epoch; the newest schedule counts.

        Args:
            make_schedule: Called in a thread, if at all: a cache that evicts nothing does not ask.
        """

    def at(self, step: int) -> None:
        """Tells how far the epoch of the schedule is."""

    def _note_spent(self, name: str) -> None:
        """Notes that nobody needs a shard any more in this epoch."""

    @abstractmethod
    async def _load(self, entry: ShardEntry) -> OpenShard:
        """Opens a shard that is not open."""

    def _discard(self, entry: ShardEntry) -> None:
        """Removes the local copy of a shard; called from a thread."""

    async def _read_local(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        """Reads a range that is local, throwing away what turns out damaged; None where there is none."""
        return None

    async def _keep_range(self, entry: ShardEntry | BundleEntry | ObjectEntry, start: int, data: memoryview) -> None:
        """Keeps a range that was fetched and verified."""

    # -- fetching --------------------------------------------------------------------------------------------------

    def _count(self, **more: int) -> None:
        with self._counting:  # threads count as well
            now = self._stats
            self._stats = replace(now, **{name: getattr(now, name) + count for name, count in more.items()})

    async def _fetch(self, entry: ShardEntry, bring: Callable[[int, ByteRange], Coroutine[Any, Any, None]]) -> None:
        """Fetches a shard's transfer chunks, all at once as far as the engine admits, each verified as it arrives.

        Args:
            entry: The shard.
            bring: Fetches one chunk, given its number and range.
        """
        began_s = self._now()
        self._fetched[entry.digest] = (began_s, None)
        try:
            chunks = enumerate(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES))
            await map_concurrently(lambda chunk: bring(*chunk), list(chunks))
        except Exception as first:
            if isinstance(first, ObjectChanged):
                raise _dataset_changed(entry, first) from first
            if isinstance(first, DigestMismatch) and first.is_steady:
                raise _not_pinned(entry, first) from first
            if isinstance(first, StorageError):
                first.locate(shard=entry.key)
            raise
        finally:
            if self._pins.get(entry.digest):
                self._fetched[entry.digest] = (began_s, self._now())
            else:
                self._fetched.pop(entry.digest, None)

    async def _fetch_into_memory(self, entry: ShardEntry) -> OpenShard:
        chunks: dict[int, memoryview] = {}

        async def bring(number: int, span: ByteRange) -> None:
            result = await self._engine.fetch(
                entry.key, span.start, span.end, digest=entry.chunk_digests[number], object_size=entry.size
            )
            chunks[number] = result.data

        await self._fetch(entry, bring)
        ordered = [chunks[number] for number in range(len(chunks))]
        return await in_thread(lambda: MemoryShard(entry, ordered, chunk_bytes=CHUNK_BYTES), MemoryShard.close)


async def _decoded(decode: Callable[[memoryview], T], data: memoryview) -> T:
    return decode(data) if len(data) < _THREAD_BYTES else await in_thread(lambda: decode(data))


def _dataset_changed(entry: ShardEntry | BundleEntry, error: ObjectChanged) -> DatasetChanged:
    return DatasetChanged(
        "a shard was replaced under its manifest; open the data set again",
        url=error.url, key=entry.key, shard=entry.key, start=error.start, end=error.end,
        expected=error.expected, got=error.got, attempts=error.attempts,
    )  # fmt: skip


def _not_pinned(entry: ShardEntry | BundleEntry, error: CorruptData) -> DatasetChanged:
    return DatasetChanged(
        "the object in the bucket is not the one that the manifest pins: replaced, or damaged where it is stored; "
        "`concurrent-loader verify` says what is left of the data set",
        url=error.url, key=entry.key, shard=entry.key, sample=error.sample, column=error.column, start=error.start,
        end=error.end, expected=error.expected, got=error.got, attempts=error.attempts,
    )  # fmt: skip


class MemoryShardCache(ShardCache):
    """No cache at all: shards live in memory while they are pinned. The pins bound the memory."""

    async def _load(self, entry: ShardEntry) -> OpenShard:
        self._count(num_misses=1)
        return await self._fetch_into_memory(entry)
