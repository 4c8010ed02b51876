"""Fetches the units of one iteration in the order of their first use, with bounded concurrency."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from concurrent_loader.datasets.protocol import OpenUnit, Source

__all__ = ["Prefetcher"]

Start = Callable[[Coroutine[Any, Any, None]], object]


class Prefetcher:
    """Fetches units with a few tasks, called fetchers, each of which takes the next unit when it has fetched one.

    One task per unit would be simpler, but slower. With a thousand queued objects, each with coroutines, futures and
    timers, Python's garbage collector repeatedly scans every object of the process. It took a quarter of the processor
    time of reading single objects.

    All methods must be called on the dataset's event loop.

    Args:
        source: Source of the units.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._units: dict[int, asyncio.Future[OpenUnit | Exception]] = {}
        self._queue: deque[int] = deque()
        self._deferred: list[int] = []
        self._num_fetchers = 0
        self._began: dict[int, float] = {}  # unit → monotonic seconds at which its fetcher took it

    def prefetch(self, unit: int, start: Start) -> None:
        """Queues a unit behind all units queued before.

        Args:
            unit: Number of the unit.
            start: Function that starts a task.
        """
        self._units[unit] = asyncio.get_running_loop().create_future()
        self._enqueue(unit, start)

    def defer(self, unit: int) -> None:
        """Adds a unit that only `prefetch_deferred` queues."""
        self._units[unit] = asyncio.get_running_loop().create_future()
        self._deferred.append(unit)

    def prefetch_deferred(self, start: Start) -> None:
        """Queues all deferred units, in their order."""
        deferred, self._deferred = self._deferred, []
        for unit in deferred:
            self._enqueue(unit, start)

    def __getitem__(self, unit: int) -> asyncio.Future[OpenUnit | Exception]:
        """Returns the future of a queued or deferred unit: the open unit, or the exception that fetching it raised.

        Wait for the future with `asyncio.wait` and do not await it: cancelling one waiter would cancel it for all.
        """
        return self._units[unit]

    def all(self) -> Collection[asyncio.Future[OpenUnit | Exception]]:
        """Returns the futures of all units: deferred, queued and fetched."""
        return self._units.values()

    def under_way(self) -> list[tuple[float, int]]:
        """Returns the start and the number of each unit that is being fetched from the store. For any thread."""
        times = [(unit, began_s, self._source.fetch_times(unit)) for unit, began_s in list(self._began.items())]
        return [(max(began_s, found[0]), unit) for unit, began_s, found in times if found and found[1] is None]

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        """Releases a fetched unit, or removes a queued one; see `Source.release`."""
        future = self._units.pop(unit, None)
        if future is not None and future.done() and not future.cancelled():
            self._release(unit, future.result(), done_for_epoch=done_for_epoch)

    def release_all(self) -> None:
        """Releases every unit."""
        for unit in list(self._units):
            self.release(unit)

    def _release(self, unit: int, outcome: OpenUnit | Exception, *, done_for_epoch: bool = False) -> None:
        if not isinstance(outcome, Exception):
            self._source.release(unit, done_for_epoch=done_for_epoch)

    def _enqueue(self, unit: int, start: Start) -> None:
        self._queue.append(unit)
        self._add_fetcher(start)

    def _is_below_bound(self, num_fetchers: int) -> bool:
        bound = self._source.max_concurrent
        return bound is None or num_fetchers < bound

    def _add_fetcher(self, start: Start) -> None:
        if self._is_below_bound(self._num_fetchers):
            self._num_fetchers += 1
            start(self._fetch(start))

    async def _fetch(self, start: Start) -> None:
        """Fetches one unit after the other while the queue has units and the bound has room for this fetcher."""
        try:
            while self._queue and self._is_below_bound(self._num_fetchers - 1):
                await self._fetch_next()
                if self._queue:  # the bound may have grown
                    self._add_fetcher(start)
        finally:
            self._num_fetchers -= 1

    async def _fetch_next(self) -> None:
        unit = self._queue.popleft()
        future = self._units.get(unit)
        if future is None:
            return
        self._began[unit] = time.monotonic()
        try:
            outcome: OpenUnit | Exception = await self._source.acquire(unit)
        except Exception as error:  # noqa: BLE001 - passed to the batch that needs the unit
            outcome = error
        except asyncio.CancelledError:
            future.cancel()
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return  # the request was cancelled, not this task; the next units are still fetched
        finally:
            self._began.pop(unit, None)
        if self._units.get(unit) is future:
            future.set_result(outcome)
        else:
            self._release(unit, outcome)
