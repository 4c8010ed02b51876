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
_MAX_CREDIT_BYTES = 16 * 1024 * 1024
_BEAT_S = 1.0
_CREDIT_SHARE = 64  # a process takes room for sparse ranges in pieces of this part of the budget


class DiskShardCache(ShardCache):
    """Shards in files of a local folder, within a budget of bytes that all of its processes share.

    Args:
        engine: Fetches what is missing.
        root: The folder; see `CacheFolder`, also for what it raises.
        budget_bytes: All cached files together stay below this. What is in use is never evicted: where that leaves no
            room, shards are kept in memory. Sparse ranges may exceed it by 1/64 (at most 16 MiB) for each process.
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
        super().__init__(engine)
        self._budget_bytes = parse_size(budget_bytes, name="cache_bytes")
        self._folder = CacheFolder(root, drive=drive)
        self._drive = self._folder.drive
        self._sparse = SparseFiles(self._folder)
        self._waiter = LockWaiter(patience_s=patience_s)
        self._patience_s = patience_s
        self._making_room = asyncio.Lock()
        self._credit_bytes = 0
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

        def begin() -> IncomingFile | None:
            return self._folder.begin(size=entry.size) if self._make_room(entry.size, later) else None

        def dispose(unwanted: IncomingFile | None) -> None:
            if unwanted is not None:
                self._folder.abandon(unwanted)

        async with self._room_lock() as locked:
            return await in_thread(begin, dispose) if locked else None

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
        need_bytes = sum(file.num_bytes for file in files) + num_bytes - self._budget_bytes
        if need_bytes <= 0:
            return True
        by_name = {file.file_name: file for file in files if file.kind in _EVICTABLE and file.name not in self._pins}
        victims = choose_victims(
            [
                Resident(file.file_name, file.num_bytes, self._next_use(file), file.last_used_s)
                for file in by_name.values()
            ],
            need_bytes=need_bytes,
            newcomer=newcomer,
        )
        num_evicted = 0
        for victim in victims or ():
            if need_bytes <= 0:
                break
            try:
                if self._folder.evict(by_name[victim.name]):
                    need_bytes -= victim.size
                    num_evicted += 1
            except OSError as error:
                self._complaints.of_drive(error)  # the next one may do
        self._count(num_evicted=num_evicted)
        return need_bytes <= 0

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

    def _discard_sparse(self, entry: ShardEntry | BundleEntry) -> None:
        self._count(num_quarantined=1)
        try:
            self._sparse.discard(entry.digest)
        except OSError as error:
            self._complaints.of_drive(error)

    async def _keep_range(self, entry: ShardEntry | BundleEntry, start: int, data: memoryview) -> None:
        try:
            if await self._take_credit(self._sparse.cost_bytes(start, start + len(data))):
                await in_thread(lambda: self._sparse.add(entry.digest, start, data, size=entry.size))
        except OSError as error:
            self._complaints.of_drive(error)

    async def _take_credit(self, num_bytes: int) -> bool:
        """Takes room for a range out of a larger piece, so that not every range counts the folder's files."""
        if self._credit_bytes < num_bytes:
            piece_bytes = max(num_bytes, min(self._budget_bytes // _CREDIT_SHARE, _MAX_CREDIT_BYTES))
            if piece_bytes > self._budget_bytes:
                return False
            async with self._room_lock() as locked:
                if not locked or not await in_thread(lambda: self._make_room(piece_bytes, None)):
                    return False
            self._credit_bytes = piece_bytes
        self._credit_bytes -= num_bytes
        return True

    async def close(self) -> None:
        await super().close()
        self._folder.close()


def _close(shard: OpenShard | None) -> None:
    if shard is not None:
        shard.close()
