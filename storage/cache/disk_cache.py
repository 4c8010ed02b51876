"""Keeps shards, and parts of shards, in a folder on the local drive, within a budget that all its processes share.

A shard is fetched once, however many callers ask for it: `SingleFlight` joins them within an event loop, a lock file
among processes. Files are named by the shard's digest, so that datasets which share shards share files, and no name
comes from outside. A failing drive is not an error: the shard is kept in memory while it is in use.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from concurrent_loader.storage.cache.blocking_io import Drive, in_thread
from concurrent_loader.storage.cache.budget import CacheBudget
from concurrent_loader.storage.cache.disk_ranges import DiskRanges
from concurrent_loader.storage.cache.eviction import UseSchedule
from concurrent_loader.storage.cache.folder import CachedFile, CacheFolder, FileKind, IncomingFile, file_name_of
from concurrent_loader.storage.cache.lock_wait import LockWaiter
from concurrent_loader.storage.cache.open_shard import FileShard, OpenShard
from concurrent_loader.storage.cache.range_reader import RangeReader
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.cache.sparse_file import SparseFiles
from concurrent_loader.storage.cache.warn_once import CacheWarnings
from concurrent_loader.storage.errors import CorruptData
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import OpenSource
from concurrent_loader.storage.sizes import Size, parse_size

__all__ = ["DiskShardCache"]

DEFAULT_LOCK_TIMEOUT_S = 30.0
_HEARTBEAT_S = 1.0


class DiskShardCache(ShardCache):
    """Shards in files of a local folder, within a budget of bytes that all of its processes share.

    Args:
        engine: Engine that fetches missing bytes.
        root: Path of the folder; see `CacheFolder`, also for the errors.
        budget_bytes: Upper bound of the size of all cached files; each process may exceed it by 1/256. Files in use
            are never evicted: if they leave no room, further shards are kept in memory.
        lock_timeout_s: Longest time without progress of another process that holds a lock, 30 s by default. Then the
            lock is bypassed.
        open_source: Function that opens the store of adopted data; see `ShardFetcher`.
        drive: System calls; tests inject failures here.
        clock: Source of monotonic seconds.
    """

    def __init__(
        self,
        engine: FetchEngine,
        root: str | os.PathLike[str],
        *,
        budget_bytes: Size,
        lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S,
        open_source: OpenSource | None = None,
        drive: Drive | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine, open_source=open_source, clock=clock)
        num_bytes = parse_size(budget_bytes, name="cache_bytes")
        self._folder = CacheFolder(root, drive=drive)
        self._drive = self._folder.drive
        self._sparse = SparseFiles(self._folder)
        self._waiter = LockWaiter(timeout_s=lock_timeout_s)
        self._warnings = CacheWarnings(self._folder.root)
        self.budget = CacheBudget(
            self._folder,
            num_bytes,
            waiter=self._waiter,
            is_pinned=self._pins.__contains__,
            next_use=self._next_use,
            counters=self._counters,
            warnings=self._warnings,
        )
        ranges = DiskRanges(
            self._folder,
            self._sparse,
            self.budget,
            discard_shard=self._discard,
            counters=self._counters,
            warnings=self._warnings,
        )
        self._ranges = RangeReader(self.fetcher, ranges, self._counters)
        self._schedule: UseSchedule | None = None
        self._step = 0
        self._done_for_epoch: set[str] = set()
        self._unusable: set[str] = set()  # digests of shards that the drive damages again and again
        self._locks: set[int] = set()  # of shards that are being fetched
        self._heartbeat_s = clock()
        try:
            self._folder.sweep()
        except OSError as error:
            self._warnings.drive_failed(error)

    # -- the plan of future uses -----------------------------------------------------------------------------------

    async def set_schedule(self, make_schedule: Callable[[], UseSchedule]) -> None:
        self._schedule, self._step = await in_thread(make_schedule), 0
        self._done_for_epoch.clear()
        self.budget.schedule_changed()

    def set_step(self, step: int) -> None:
        self._step = step

    def _mark_done_for_epoch(self, name: str) -> None:
        self._done_for_epoch.add(name)

    def _next_use(self, file: CachedFile) -> float | None:
        # A loader reads whole shards, so sparse files are of no use to it.
        if self._schedule is None or file.kind is not FileKind.SHARD:
            return None
        done = file.name in self._done_for_epoch
        return self._schedule.next_use(file.name, step=self._step, done_for_epoch=done)

    # -- whole shards ----------------------------------------------------------------------------------------------

    async def is_local(self, entry: ShardEntry) -> bool:
        path = Path(self._folder.root, file_name_of(entry.digest, FileKind.SHARD))
        # Not `Path.exists`, which raises the errors of a broken drive before Python 3.14.
        return await super().is_local(entry) or await in_thread(lambda: os.path.exists(path))  # noqa: PTH110

    async def _load(self, entry: ShardEntry) -> OpenShard:
        try:
            if entry.digest not in self._unusable:
                shard = await self._load_file(entry)
                if shard is not None:
                    return shard
        except OSError as error:
            self._warnings.drive_failed(error)
        self._counters.add(num_misses=1, num_bypassed=1)
        return await self._fetch_into_memory(entry)

    async def _load_file(self, entry: ShardEntry) -> OpenShard | None:
        """Opens the cached file, and fetches it first if necessary; returns None if the shard is not to be cached."""
        shard = await self._open_local(entry)
        if shard is not None:
            return shard
        async with self._locked(entry.digest) as lock:
            if lock is None:
                self._warnings.lock_timed_out(f"shard {entry.key}", self._waiter.timeout_s)
                return None
            # Another process may have fetched the shard while this one waited for the lock.
            shard = await self._open_local(entry)
            if shard is not None:
                return shard
            incoming = await self._begin(entry)
            return None if incoming is None else await self._fetch_into_file(entry, incoming)

    async def _open_local(self, entry: ShardEntry) -> OpenShard | None:
        def open_file() -> OpenShard | None:
            fd = self._folder.open(entry.digest, size=entry.size)
            if fd is None:
                return None
            try:
                return FileShard(entry, fd, drive=self._drive)
            except CorruptData as error:
                self._warnings.file_corrupt(error)
                self._discard(entry)
                return None

        shard = await in_thread(open_file, _close)
        if shard is not None:
            self._counters.add(num_hits=1)
        return shard

    async def _begin(self, entry: ShardEntry) -> IncomingFile | None:
        """Makes room and allocates the file at once, so that no other process counts on the room; None without room."""
        if entry.size > self.budget.budget_bytes:
            return None
        later = self._schedule.later_use(entry.digest, step=self._step) if self._schedule else None

        async with self.budget.room(entry.size, newcomer=later) as granted:
            if not granted:
                return None
            return await in_thread(lambda: self._folder.begin(size=entry.size), self._folder.abandon)

    async def _fetch_into_file(self, entry: ShardEntry, incoming: IncomingFile) -> OpenShard | None:
        """Fetches into a new file and publishes it; returns None if the written file cannot be read back."""

        async def write(position: int, piece: memoryview) -> None:
            await in_thread(lambda: self._drive.write(incoming.fd, piece, position))
            self._send_heartbeat()

        async def fetch_chunk(number: int, span: ByteRange) -> None:
            await self.fetcher.fetch_into(entry, span.start, span.end, write, digest=entry.chunk_digests[number])

        def publish() -> OpenShard | None:
            try:
                self._folder.publish(incoming, entry.digest)
                self._sparse.discard(entry.digest)
            except OSError as error:
                self._warnings.drive_failed(error)  # the file is whole: it serves once, without a name
                self._folder.abandon(incoming, keep_open=True)
            try:
                return FileShard(entry, incoming.fd, drive=self._drive)
            except CorruptData as error:
                self._warnings.file_corrupt(error)
                self._discard(entry)
                self._unusable.add(entry.digest)
                return None

        try:
            await self._fetch(entry, fetch_chunk)
        except BaseException:
            await in_thread(lambda: self._folder.abandon(incoming))
            raise
        shard = await in_thread(publish, _close)
        if shard is not None:
            self._counters.add(num_misses=1)
        return shard

    async def _replace(self, entry: ShardEntry) -> OpenShard:
        # The first corruption may be an accident. After the second this shard bypasses the drive.
        if entry.digest in self._retired:
            self._unusable.add(entry.digest)
        return await super()._replace(entry)

    def _discard(self, entry: ShardEntry | BundleEntry) -> None:
        self._counters.add(num_quarantined=1)
        try:
            self._folder.remove(file_name_of(entry.digest, FileKind.SHARD))
        except OSError as error:
            self._warnings.drive_failed(error)
            self._unusable.add(entry.digest)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[int | None]:
        """Holds a shard's lock during the block; yields None if the holder of the lock hangs."""
        unlock = partial(self._folder.unlock_shard, name)
        lock = self._folder.lock_shard(name, wait=False)
        if lock is None:
            lock = await self._waiter.wait(
                name,
                partial(self._folder.lock_shard, name, wait=True),
                unlock,
                partial(self._folder.heartbeat, name),
            )
        try:
            if lock is not None:
                self._locks.add(lock)
            yield lock
        finally:
            if lock is not None:
                self._locks.discard(lock)
                unlock(lock)

    def _send_heartbeat(self) -> None:
        """Touches the locks that this process holds once a second, so that waiting processes see its progress."""
        now_s = self._clock()
        if now_s - self._heartbeat_s >= min(_HEARTBEAT_S, self._waiter.timeout_s / 10):
            self._heartbeat_s = now_s
            for lock in self._locks:
                self._folder.mark_used(lock)

    async def close(self) -> None:
        await super().close()
        self._folder.close()


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
