"""Keeps shards on the local drive (or only in memory) between the fetch engine and the shard reader.

A shard is fetched once however many ask for it: within an event loop by `SingleFlight`, among threads and processes by
a lock file. While it is in use it is *pinned*: not evicted, its descriptor open. Files are named by the shard's
digest, so that data sets which share shards share files, and nothing foreign decides about a name.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from storage.cache.eviction import Resident, choose_victims
from storage.cache.files import CacheFolder
from storage.cache.open_shard import FileShard, MemoryShard, OpenShard
from storage.cache.single_flight import SingleFlight
from storage.errors import CorruptData, DatasetChanged, ObjectChanged, StorageError, StoreClosed
from storage.fetch.engine import FetchEngine
from storage.ranges import ByteRange, split
from storage.shards.layout import CHUNK_BYTES
from storage.shards.manifest import ShardEntry
from storage.sizes import Size, parse_size

__all__ = ["CacheStats", "DiskShardCache", "MemoryShardCache", "ShardCache"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache has done so far; a snapshot.

    Attributes:
        num_hits: Shards found locally.
        num_misses: Shards fetched.
        num_evicted: Files deleted to make room.
        num_quarantined: Files thrown away because their bytes had decayed.
        num_bypassed: Shards kept in memory because the drive refused them.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_evicted: int = 0
    num_quarantined: int = 0
    num_bypassed: int = 0


class ShardCache(ABC):
    """Whole shards, pinned while in use.

    Usable from one event loop. `acquire` and `release` come in pairs.
    """

    def __init__(self, engine: FetchEngine) -> None:
        self._engine = engine
        self._flight: SingleFlight[str, OpenShard] = SingleFlight()
        self._replacing: SingleFlight[str, OpenShard] = SingleFlight()
        self._open: dict[str, OpenShard] = {}
        self._pins: dict[str, int] = {}
        self._next_use: dict[str, int | None] = {}
        self._retired: dict[str, list[OpenShard]] = {}  # replaced, perhaps still being read by a thread
        self._stats = CacheStats()
        self._closed = False

    @property
    def stats(self) -> CacheStats:
        """Counters so far."""
        return self._stats

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

    def release(self, entry: ShardEntry, *, next_use: int | None = None) -> None:
        """Gives back one pin.

        Args:
            entry: What was acquired.
            next_use: When it will be wanted again, on the caller's rising scale of steps; None if unknown.
        """
        name = entry.digest
        if self._closed:
            return
        self._next_use[name] = next_use
        self._pins[name] -= 1
        if self._pins[name] == 0:
            del self._pins[name]
            for shard in (self._open.pop(name, None), *self._retired.pop(name, ())):
                if shard is not None:
                    shard.close()

    def peek(self, entry: ShardEntry) -> OpenShard | None:
        """Returns a shard that is open at this moment, without pinning it: use it before the next await."""
        return self._open.get(entry.digest)

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
        await asyncio.to_thread(self._discard, entry)
        return await self._flight.run(entry.digest, lambda: self._bring(entry))

    async def close(self) -> None:
        """Closes all files; pins that are left are void. Idempotent."""
        self._closed = True
        for shard in (*self._open.values(), *(old for retired in self._retired.values() for old in retired)):
            shard.close()
        self._open.clear()
        self._retired.clear()
        self._pins.clear()

    async def _bring(self, entry: ShardEntry) -> OpenShard:
        shard = await self._load(entry)
        if self._pins.get(entry.digest):
            self._open[entry.digest] = shard
        else:
            shard.close()
        return shard

    def _count(self, **more: int) -> None:
        self._stats = replace(self._stats, **{name: getattr(self._stats, name) + count for name, count in more.items()})

    @abstractmethod
    async def _load(self, entry: ShardEntry) -> OpenShard:
        """Opens a shard that is not open."""

    def _discard(self, entry: ShardEntry) -> None:
        """Removes the local copy of a shard; called from a thread."""

    async def _fetch(self, entry: ShardEntry, bring: Callable[[int, ByteRange], Coroutine[Any, Any, None]]) -> None:
        """Fetches a shard's transfer chunks, all at once as far as the engine admits, each verified as it arrives.

        Args:
            entry: The shard.
            bring: Fetches one chunk, given its number and range.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number, span in enumerate(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES)):
                    group.create_task(bring(number, span))
        except BaseExceptionGroup as errors:
            # One typed error reaches the caller: the first; its siblings were cancelled by the group.
            first = _first(errors)
            if isinstance(first, ObjectChanged):
                raise DatasetChanged(
                    "a shard was replaced under its manifest; open the data set again",
                    url=self._engine.store.url, shard=entry.key, key=entry.key, expected=first.expected, got=first.got,
                ) from first  # fmt: skip
            if isinstance(first, StorageError):
                first.locate(shard=entry.key)
            raise first from first.__cause__

    async def _fetch_into_memory(self, entry: ShardEntry) -> OpenShard:
        chunks: dict[int, memoryview] = {}

        async def bring(number: int, span: ByteRange) -> None:
            result = await self._engine.fetch(
                entry.key, span.start, span.end, digest=entry.chunk_digests[number], object_size=entry.size
            )
            chunks[number] = result.data

        await self._fetch(entry, bring)
        ordered = [chunks[number] for number in range(len(chunks))]
        return await asyncio.to_thread(MemoryShard, entry, ordered, chunk_bytes=CHUNK_BYTES)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


class MemoryShardCache(ShardCache):
    """No cache at all: shards live in memory while they are pinned. The pins bound the memory."""

    async def _load(self, entry: ShardEntry) -> OpenShard:
        self._count(num_misses=1)
        return await self._fetch_into_memory(entry)


class DiskShardCache(ShardCache):
    """Shards in files of a local folder, within a budget of bytes.

    A drive that fails (full, read-only, broken) is no error: the shard is kept in memory while it is in use, and the
    first such failure is logged.

    Args:
        engine: Fetches what is missing.
        root: The folder; see `CacheFolder`.
        budget_bytes: All cached files together stay below this, save that pinned shards are never evicted.
    """

    def __init__(self, engine: FetchEngine, root: str | os.PathLike[str], *, budget_bytes: Size) -> None:
        super().__init__(engine)
        self._folder = CacheFolder(root)
        self._folder.sweep()
        self._budget_bytes = parse_size(budget_bytes, name="cache_bytes")
        self._estimate_bytes = sum(file.size for file in self._folder.files())
        self._room = asyncio.Lock()
        # Threads of their own for waiting on other processes' locks: those who wait must never keep from working those
        # who hold what the others wait for.
        self._waiters = ThreadPoolExecutor(max_workers=64, thread_name_prefix="cache-lock")
        self._warned = False

    async def _load(self, entry: ShardEntry) -> OpenShard:
        shard = await asyncio.to_thread(self._open_local, entry)
        if shard is not None:
            self._count(num_hits=1)
            return shard
        try:
            async with self._locked(entry.digest):
                # Another process may have fetched it while this one waited for the lock.
                shard = await asyncio.to_thread(self._open_local, entry)
                if shard is not None:
                    self._count(num_hits=1)
                    return shard
                if await self._make_room(entry.size):
                    shard = await self._fetch_into_file(entry)
                    self._count(num_misses=1)
                    return shard
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("the cache folder %s cannot be used (%s); going on without it", self._folder.root, error)
        self._count(num_misses=1, num_bypassed=1)
        return await self._fetch_into_memory(entry)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        """Holds a name's lock. Waiting happens in a thread, which gives the lock back if nobody wants it any more."""
        lock = self._folder.acquire_lock(name, wait=False)
        if lock is None:
            waiting = self._waiters.submit(self._folder.acquire_lock, name, wait=True)
            try:
                lock = await asyncio.wrap_future(waiting)
            except asyncio.CancelledError:
                waiting.add_done_callback(lambda done: self._give_back(name, done))
                raise
        try:
            yield
        finally:
            if lock is not None:
                self._folder.release_lock(name, lock)

    def _give_back(self, name: str, done: Future[int | None]) -> None:
        lock = None if done.cancelled() or done.exception() else done.result()
        if lock is not None:
            self._folder.release_lock(name, lock)

    async def close(self) -> None:
        await super().close()
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def _open_local(self, entry: ShardEntry) -> OpenShard | None:
        """Opens the cached file; a damaged one is thrown away. None when there is none."""
        try:
            fd = self._folder.open(entry.digest, size=entry.size)
        except OSError as error:
            log.info("cannot open a cached file: %s", error)
            return None
        if fd is None:
            return None
        try:
            return FileShard(entry, fd)
        except CorruptData as error:
            log.warning("a cached file has decayed and is fetched again: %s", error)
            self._discard(entry)
            return None

    def _discard(self, entry: ShardEntry) -> None:
        self._folder.remove(entry.digest)
        self._count(num_quarantined=1)

    async def _fetch_into_file(self, entry: ShardEntry) -> OpenShard:
        with self._folder.create(entry.digest, size=entry.size) as fd:

            async def write(position: int, piece: memoryview) -> None:
                await asyncio.to_thread(_write_all, fd, piece, position)

            async def bring(number: int, span: ByteRange) -> None:
                await self._engine.fetch_into(
                    entry.key, span.start, span.end, write, digest=entry.chunk_digests[number], object_size=entry.size
                )

            await self._fetch(entry, bring)
            reader = os.dup(fd)
        self._estimate_bytes += entry.size
        return await asyncio.to_thread(FileShard, entry, reader)

    async def _make_room(self, size: int) -> bool:
        """Evicts until ``size`` bytes fit into the budget; False if pinned shards leave no room."""
        async with self._room:
            if self._estimate_bytes + size > self._budget_bytes:
                num_evicted, self._estimate_bytes = await asyncio.to_thread(self._evict, size)
                self._count(num_evicted=num_evicted)
            return self._estimate_bytes + size <= self._budget_bytes

    def _evict(self, size: int) -> tuple[int, int]:
        files = self._folder.files()
        total_bytes = sum(file.size for file in files)
        free = [
            Resident(file.name, file.size, self._next_use.get(file.name), file.last_used_s)
            for file in files
            if file.name not in self._pins
        ]
        victims = choose_victims(free, need_bytes=total_bytes + size - self._budget_bytes)
        for name in victims:
            self._folder.remove(name)
        gone = set(victims)
        return len(victims), sum(file.size for file in files if file.name not in gone)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
