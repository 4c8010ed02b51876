"""Units on their way to one iteration: brought in the order in which they will be needed, so many at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from concurrent_loader.source import OpenUnit, Source

__all__ = ["Arrivals"]

Start = Callable[[Coroutine[Any, Any, None]], object]


class Arrivals:
    """Brings units by a few tasks, *bringers*, each of which takes the next unit when it has brought one.

    A task for each unit that is expected would do the same and cost more: while a thousand objects wait for their place
    in flight, each with its coroutines, futures and timers, Python's garbage collector goes through all that the
    process holds again and again. That was a quarter of the processor time of reading single objects.

    All methods are for the data set's loop.

    Args:
        source: Brings them.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._units: dict[int, asyncio.Future[OpenUnit | Exception]] = {}
        self._expected: deque[int] = deque()
        self._num_bringers = 0

    def expect(self, unit: int, start: Start) -> None:
        """Has a unit brought after all those that were expected before; ``start`` starts a task."""
        self._units[unit] = asyncio.get_running_loop().create_future()
        self._expected.append(unit)
        self._add_bringer(start)

    def __getitem__(self, unit: int) -> asyncio.Future[OpenUnit | Exception]:
        """Done when the unit is there, with it or with what kept it from coming.

        To be waited for by `asyncio.wait`, not awaited: a waiter that is cancelled would cancel it for everybody.
        """
        return self._units[unit]

    def all(self) -> Collection[asyncio.Future[OpenUnit | Exception]]:
        """Those of all units that are expected or there."""
        return self._units.values()

    def release(self, unit: int, *, spent: bool = False) -> None:
        """Lets go of a unit that is there, or expects it no longer; see `Source.release`."""
        arriving = self._units.pop(unit, None)
        if arriving is not None and arriving.done() and not arriving.cancelled():
            self._let_go(unit, arriving.result(), spent=spent)

    def release_all(self) -> None:
        """Lets go of all."""
        for unit in list(self._units):
            self.release(unit)

    def _let_go(self, unit: int, outcome: OpenUnit | Exception, *, spent: bool = False) -> None:
        if not isinstance(outcome, Exception):
            self._source.release(unit, spent=spent)

    def _is_below_bound(self, num_bringers: int) -> bool:
        bound = self._source.num_at_once
        return bound is None or num_bringers < bound

    def _add_bringer(self, start: Start) -> None:
        if self._is_below_bound(self._num_bringers):
            self._num_bringers += 1
            start(self._bring(start))

    async def _bring(self, start: Start) -> None:
        """Brings one unit after the other, for as long as there are any and the bound has room for it."""
        try:
            while self._expected and self._is_below_bound(self._num_bringers - 1):
                await self._bring_next()
                if self._expected:  # the bound may have grown
                    self._add_bringer(start)
        finally:
            self._num_bringers -= 1

    async def _bring_next(self) -> None:
        unit = self._expected.popleft()
        arriving = self._units.get(unit)
        if arriving is None:
            return
        try:
            outcome: OpenUnit | Exception = await self._source.acquire(unit)
        except Exception as error:  # noqa: BLE001 - handed to the batch that needs the unit
            outcome = error
        except asyncio.CancelledError:
            arriving.cancel()
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return  # not this task was cancelled but what it waited for; the units after this one still come
        if self._units.get(unit) is arriving:
            arriving.set_result(outcome)
        else:
            self._let_go(unit, outcome)
