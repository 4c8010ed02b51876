"""Makes room in the cache folder: counts what is there, and evicts files so that all processes stay in one budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.cache.eviction import Resident, choose_victims
from concurrent_loader.storage.cache.folder import CachedFile, CacheFolder, FileKind
from concurrent_loader.storage.cache.lock_wait import LockWaiter
from concurrent_loader.storage.cache.stats import CacheCounters
from concurrent_loader.storage.cache.warn_once import CacheWarnings

__all__ = ["CacheBudget"]

_EVICTABLE = (FileKind.SHARD, FileKind.SPARSE)
_CREDIT_SHARE = 256  # this fraction of the budget, and of the files, is granted without counting


class CacheBudget:
    """Grants room in a folder that any number of processes share.

    Usable from one event loop.

    Args:
        folder: Folder of the cache.
        budget_bytes: Upper bound of the size of all files together. Each process may exceed it by 1/256.
        waiter: Waits for the folder's lock.
        is_pinned: Whether this process uses the shard of a digest, so that its file must stay.
        next_use: Step at which a file is needed next; None if unknown.
        counters: Counters of the cache.
        warnings: Log of the cache.
    """

    def __init__(
        self,
        folder: CacheFolder,
        budget_bytes: int,
        *,
        waiter: LockWaiter,
        is_pinned: Callable[[str], bool],
        next_use: Callable[[CachedFile], float | None],
        counters: CacheCounters,
        warnings: CacheWarnings,
    ) -> None:
        self.budget_bytes = budget_bytes
        self._folder = folder
        self._waiter = waiter
        self._is_pinned = is_pinned
        self._next_use = next_use
        self._counters = counters
        self._warnings = warnings
        self._making_room = asyncio.Lock()
        self._credit_bytes = 0
        self._refused_from, self._num_refusals = 0.0, 0

    def schedule_changed(self) -> None:
        """Forgets past refusals: the next newcomer's worth is computed again."""
        self._num_refusals = 0

    @asynccontextmanager
    async def room(self, num_bytes: int, *, newcomer: float | None = None) -> AsyncIterator[bool]:
        """Grants room for a file, which the caller must create within the block.

        Counting the folder's files takes time in proportion to their number. So each count reserves a little more room
        than it needs, which later calls take without counting. After a refusal, later files with no sooner next use are
        refused without counting.

        Args:
            num_bytes: Size of the file.
            newcomer: Step at which the file is needed again, on the schedule's scale; None if unknown.

        Yields:
            Whether there is room.
        """
        if num_bytes > self.budget_bytes:
            yield False
        elif self._take_credit(num_bytes):
            yield True
        elif newcomer is not None and self._num_refusals and newcomer >= self._refused_from:
            self._num_refusals -= 1
            yield False
        else:
            async with self._lock() as locked:
                # While this call waited for the lock, another one may have reserved room for it, too.
                has_room = locked and self._take_credit(num_bytes)
                yield has_room or (locked and await in_thread(lambda: self._make_room(num_bytes, newcomer)))

    def _take_credit(self, num_bytes: int) -> bool:
        if self._credit_bytes < num_bytes:
            return False
        self._credit_bytes -= num_bytes
        return True

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[bool]:
        """Holds the folder's lock during the block; yields False if the holder of the lock hangs."""
        async with self._making_room:
            lock = self._folder.lock_room(wait=False)
            if lock is None:
                close = self._folder.drive.close
                lock = await self._waiter.wait("", partial(self._folder.lock_room, wait=True), close)
                if lock is None:
                    self._warnings.lock_timed_out("the folder", self._waiter.timeout_s)
            try:
                yield lock is not None
            finally:
                if lock is not None:
                    self._folder.drive.close(lock)

    def _make_room(self, num_bytes: int, newcomer: float | None) -> bool:
        """Evicts files until a new one fits; returns False if that is impossible or not worthwhile."""
        files = self._folder.files()
        free_bytes = self.budget_bytes - sum(file.num_bytes for file in files)
        credit_bytes = self.budget_bytes // _CREDIT_SHARE
        if free_bytes < num_bytes:
            free_bytes += self._evict(files, num_bytes - free_bytes, credit_bytes, newcomer)
        if free_bytes < num_bytes:
            if newcomer is not None:
                self._refused_from, self._num_refusals = newcomer, len(files) // _CREDIT_SHARE
            return False
        self._credit_bytes = min(free_bytes - num_bytes, credit_bytes)
        return True

    def _evict(self, files: list[CachedFile], need_bytes: int, more_bytes: int, newcomer: float | None) -> int:
        """Evicts ``need_bytes`` or nothing, and then up to ``more_bytes``; returns the number of bytes evicted."""
        by_name = {file.file_name: file for file in files if file.kind in _EVICTABLE and not self._is_pinned(file.name)}
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
                self._warnings.drive_failed(error)  # the next victim may succeed
        self._counters.add(num_evicted=num_evicted)
        return evicted_bytes
