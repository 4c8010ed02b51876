"""Keeps shards, and parts of them, in a folder on the local drive, within a budget, beside any number of processes.

A shard is fetched once however many ask for it: within an event loop by `SingleFlight`, among processes by a lock file.
Files are named by the shard's digest, so that data sets which share shards share files, and nothing foreign decides
about a name. A drive that fails is no error: the shard is kept in memory while it is in use.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from storage.cache.complaints import Complaints
from storage.cache.drive import Drive
from storage.cache.eviction import Resident, choose_victims
from storage.cache.files import CachedFile, CacheFolder, FileKind, IncomingFile, file_name_of
from storage.cache.lock_waiting import LockWaiter
from storage.cache.object_entry import ObjectEntry
from storage.cache.open_shard import FileShard, OpenShard, read_exactly
from storage.cache.schedule import UseSchedule
from storage.cache.shard_cache import ShardCache
from storage.cache.sparse import SparseFiles
from storage.cache.threads import in_thread
from storage.errors import CorruptData
from storage.fetch.engine import FetchEngine
from storage.ranges import ByteRange
from storage.shards.manifest import BundleEntry, ShardEntry
from storage.sizes import Size, parse_size

__all__ = ["DiskShardCache"]

T = TypeVar("T")

DEFAULT_PATIENCE_S = 30.0
_EVICTABLE = (FileKind.SHARD, FileKind.SPARSE)
_BEAT_S = 1.0
_CREDIT_SHARE = 256  # of the budget, and of the files, is what goes without counting


class DiskShardCache(ShardCache):
    """Shards in files of a local folder, within a budget of bytes that all of its processes share.

    Args:
        engine: Fetches what is missing.
        root: The folder; see `CacheFolder`, also for what it raises.
        budget_bytes: All cached files together stay below this, save that each process may exceed it by 1/256. What is
            in use is never evicted: where that leaves no room, shards are kept in memory.
        patience_s: How long another process that holds a lock may show no progress before it is taken to hang and gone
            round.
        drive: The system calls.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        engine: FetchEngine,
        root: str | os.PathLike[str],
        *,
        budget_bytes: Size,
        patience_s: float = DEFAULT_PATIENCE_S,
        drive: Drive | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine, now=clock)
        self._budget_bytes = parse_size(budget_bytes, name="cache_bytes")
        self._folder = CacheFolder(root, drive=drive)
        self._drive = self._folder.drive
        self._sparse = SparseFiles(self._folder)
        self._waiter = LockWaiter(patience_s=patience_s)
        self._patience_s = patience_s
        self._making_room = asyncio.Lock()
        self._credit_bytes = 0
        self._refused_from, self._num_refusals = 0.0, 0
        self._schedule: UseSchedule | None = None
        self._step = 0
        self._spent: set[str] = set()
        self._decayed: set[str] = set()
        self._complaints = Complaints(self._folder.root)
        self._locks: set[int] = set()  # of shards that are being fetched
        self._clock = clock
        self._beat_s = clock()
        try:
            self._folder.sweep()
        except OSError as error:
            self._complaints.of_drive(error)

    # -- what is known about the future ----------------------------------------------------------------------------

    async def follow(self, make_schedule: Callable[[], UseSchedule]) -> None:
        self._schedule, self._step = await in_thread(make_schedule), 0
        self._spent.clear()
        self._num_refusals = 0

    def at(self, step: int) -> None:
        self._step = step

    def _note_spent(self, name: str) -> None:
        self._spent.add(name)

    def _next_use(self, file: CachedFile) -> float | None:
        # A loader reads whole shards: parts of them are of no use to it.
        if self._schedule is None or file.kind is not FileKind.SHARD:
            return None
        return self._schedule.next_use(file.name, step=self._step, spent=file.name in self._spent)

    # -- whole shards ----------------------------------------------------------------------------------------------

    async def _load(self, entry: ShardEntry) -> OpenShard:
        try:
            if entry.digest not in self._decayed:
                shard = await self._load_file(entry)
                if shard is not None:
                    return shard
        except OSError as error:
            self._complaints.of_drive(error)
        self._count(num_misses=1, num_bypassed=1)
        return await self._fetch_into_memory(entry)

    async def _load_file(self, entry: ShardEntry) -> OpenShard | None:
        """Opens the cached file, made by this process if need be; None if there is to be none."""
        shard = await self._open_local(entry)
        if shard is not None:
            return shard
        async with self._locked(entry.digest) as lock:
            if lock is None:
                self._complaints.of_hanging(f"shard {entry.key}", self._patience_s)
                return None
            # Another process may have fetched it while this one waited for the lock.
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
                self._complaints.of_decay(error)
                self._discard(entry)
                return None

        shard = await in_thread(open_file, _close)
        if shard is not None:
            self._count(num_hits=1)
        return shard

    async def _begin(self, entry: ShardEntry) -> IncomingFile | None:
        """Makes room and takes it at once, so that no other process counts on it; None where there is none."""
        if entry.size > self._budget_bytes:
            return None
        later = self._schedule.later_use(entry.digest, step=self._step) if self._schedule else None

        async with self._room(entry.size, newcomer=later) as granted:
            if not granted:
                return None
            return await in_thread(lambda: self._folder.begin(size=entry.size), self._folder.abandon)

    async def _fetch_into_file(self, entry: ShardEntry, incoming: IncomingFile) -> OpenShard | None:
        """Fetches into a file that was begun, and makes it visible; None if what was just written cannot be read."""

        async def write(position: int, piece: memoryview) -> None:
            await in_thread(lambda: self._drive.write(incoming.fd, piece, position))
            self._show_life()

        async def bring(number: int, span: ByteRange) -> None:
            await self._engine.fetch_into(
                entry.key, span.start, span.end, write, digest=entry.chunk_digests[number], object_size=entry.size
            )

        def publish() -> OpenShard | None:
            try:
                self._folder.publish(incoming, entry.digest)
                self._sparse.discard(entry.digest)
            except OSError as error:
                self._complaints.of_drive(error)  # whole all the same: it serves once, without a name
                self._folder.abandon(incoming, keep_open=True)
            try:
                return FileShard(entry, incoming.fd, drive=self._drive)
            except CorruptData as error:
                self._complaints.of_decay(error)
                self._discard(entry)
                self._decayed.add(entry.digest)
                return None

        try:
            await self._fetch(entry, bring)
        except BaseException:
            await in_thread(lambda: self._folder.abandon(incoming))
            raise
        shard = await in_thread(publish, _close)
        if shard is not None:
            self._count(num_misses=1)
        return shard

    async def _replace(self, entry: ShardEntry) -> OpenShard:
        # The first damage may be an accident. After the second the drive is not asked again for this shard.
        if entry.digest in self._retired:
            self._decayed.add(entry.digest)
        return await super()._replace(entry)

    def _discard(self, entry: ShardEntry | BundleEntry) -> None:
        self._count(num_quarantined=1)
        try:
            self._folder.remove(file_name_of(entry.digest, FileKind.SHARD))
        except OSError as error:
            self._complaints.of_drive(error)
            self._decayed.add(entry.digest)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[int | None]:
        """Holds a shard's lock during the block; gives None if its holder hangs."""
        give_back = partial(self._folder.unlock_shard, name)
        lock = self._folder.lock_shard(name, wait=False)
        if lock is None:
            lock = await self._waiter.wait(
                name,
                partial(self._folder.lock_shard, name, wait=True),
                give_back,
                partial(self._folder.pulse, name),
            )
        try:
            if lock is not None:
                self._locks.add(lock)
            yield lock
        finally:
            if lock is not None:
                self._locks.discard(lock)
                give_back(lock)

    def _show_life(self) -> None:
        """Touches the locks that this process holds, now and then: those who wait for one see that it gets on."""
        now_s = self._clock()
        if now_s - self._beat_s >= min(_BEAT_S, self._patience_s / 10):
            self._beat_s = now_s
            for lock in self._locks:
                self._folder.mark_used(lock)

    # -- room ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _room(self, num_bytes: int, *, newcomer: float | None = None) -> AsyncIterator[bool]:
        """Grants room for so many bytes, which are to be taken within the block; False where there is none.

        Counting the folder's files takes time in proportion to them. So whoever counts takes a little more room than it
        needs, and the next ones need not count; and what was not worth its room is not for as many newcomers, either.
        """
        if num_bytes > self._budget_bytes:
            yield False
        elif self._credit_bytes >= num_bytes:
            self._credit_bytes -= num_bytes
            yield True
        elif newcomer is not None and self._num_refusals and newcomer >= self._refused_from:
            self._num_refusals -= 1
            yield False
        else:
            async with self._room_lock() as locked:
                yield locked and await in_thread(lambda: self._make_room(num_bytes, newcomer))

    @asynccontextmanager
    async def _room_lock(self) -> AsyncIterator[bool]:
        """Holds the folder's lock during the block; gives False if its holder hangs."""
        async with self._making_room:
            lock = self._folder.lock_room(wait=False)
            if lock is None:
                lock = await self._waiter.wait("", partial(self._folder.lock_room, wait=True), self._drive.close)
                if lock is None:
                    self._complaints.of_hanging("the folder", self._patience_s)
            try:
                yield lock is not None
            finally:
                if lock is not None:
                    self._drive.close(lock)

    def _make_room(self, num_bytes: int, newcomer: float | None) -> bool:
        """Evicts until so many bytes fit into the budget; False if they cannot, or are not worth it."""
        files = self._folder.files()
        free_bytes = self._budget_bytes - sum(file.num_bytes for file in files)
        credit_bytes = self._budget_bytes // _CREDIT_SHARE
        if free_bytes < num_bytes:
            free_bytes += self._evict(files, num_bytes - free_bytes, credit_bytes, newcomer)
        if free_bytes < num_bytes:
            if newcomer is not None:
                self._refused_from, self._num_refusals = newcomer, len(files) // _CREDIT_SHARE
            return False
        self._credit_bytes = min(free_bytes - num_bytes, credit_bytes)
        return True

    def _evict(self, files: list[CachedFile], need_bytes: int, more_bytes: int, newcomer: float | None) -> int:
        """Evicts ``need_bytes``, or nothing; and once at it, up to ``more_bytes``. Returns how many it did."""
        by_name = {file.file_name: file for file in files if file.kind in _EVICTABLE and file.name not in self._pins}
        residents = [
            Resident(file.file_name, file.num_bytes, self._next_use(file), file.last_used_s)
            for file in by_name.values()
        ]
        num_evicted = evicted_bytes = 0
        for victim in choose_victims(residents, need_bytes=need_bytes, newcomer=newcomer) or ():
            if evicted_bytes >= need_bytes and evicted_bytes + victim.size > need_bytes + more_bytes:
                break
            try:
                if self._folder.evict(by_name[victim.name]):
                    evicted_bytes += victim.size
                    num_evicted += 1
            except OSError as error:
                self._complaints.of_drive(error)  # the next one may do
        self._count(num_evicted=num_evicted)
        return evicted_bytes

    # -- ranges ----------------------------------------------------------------------------------------------------

    async def _read_local(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        return await in_thread(lambda: self._read_file(entry, start, end, decode))

    def _read_file(
        self, entry: ShardEntry | BundleEntry, start: int, end: int, decode: Callable[[memoryview], T]
    ) -> tuple[T] | None:
        for read, discard in (
            (self._read_whole, self._discard),
            (self._read_sparse, self._discard_sparse),
        ):
            try:
                data = read(entry, start, end)
                if data is not None:
                    return (decode(memoryview(data)),)
            except CorruptData as error:
                self._complaints.of_decay(error)
                discard(entry)
            except OSError as error:
                self._complaints.of_drive(error)
        return None

    def _read_whole(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> bytes | None:
        fd = self._folder.open(entry.digest, size=entry.size)
        if fd is None:
            return None
        try:
            return read_exactly(self._drive, fd, start, end, shard=entry.key)
        finally:
            self._drive.close(fd)

    def _read_sparse(self, entry: ShardEntry | BundleEntry, start: int, end: int) -> bytes | None:
        return self._sparse.read(entry.digest, start, end, size=entry.size)

    def _discard_sparse(self, entry: ShardEntry | BundleEntry | ObjectEntry) -> None:
        self._count(num_quarantined=1)
        try:
            self._sparse.discard(entry.digest)
        except OSError as error:
            self._complaints.of_drive(error)

    async def _keep_range(self, entry: ShardEntry | BundleEntry | ObjectEntry, start: int, data: memoryview) -> None:
        try:
            async with self._room(self._sparse.cost_bytes(start, start + len(data))) as granted:
                if granted:
                    await in_thread(lambda: self._sparse.add(entry.digest, start, data, size=entry.size))
        except OSError as error:
            self._complaints.of_drive(error)

    # -- raw objects -----------------------------------------------------------------------------------------------

    async def _read_local_object(self, entry: ObjectEntry) -> memoryview | None:
        def read() -> memoryview | None:
            try:
                return self._sparse.read_object(entry.digest, size=entry.size)
            except CorruptData as error:
                error.locate(key=entry.key)
                self._complaints.of_decay(error)
                self._discard_sparse(entry)
            except OSError as error:
                self._complaints.of_drive(error)
            return None

        return await in_thread(read)

    async def _keep_object(self, entry: ObjectEntry, data: memoryview) -> None:
        try:
            async with self._room(self._sparse.cost_bytes(0, entry.size)) as granted:
                if granted:
                    await in_thread(lambda: self._sparse.add_object(entry.digest, data))
        except OSError as error:
            self._complaints.of_drive(error)

    async def close(self) -> None:
        await super().close()
        self._folder.close()


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
