"""Joins concurrent calls for the same key into one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["LeaderFlight", "SingleFlight"]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Call(Generic[V]):
    task: asyncio.Task[V]
    num_callers: int = 0


class SingleFlight(Generic[K, V]):
    """Joins concurrent calls for the same key, on one event loop.

    Cancellation: A cancelled caller does not disturb the others. When the last caller is cancelled, the call itself is
    cancelled, and it has ended before the caller's CancelledError propagates, even if the caller is cancelled again.
    """

    def __init__(self) -> None:
        self._calls: dict[K, _Call[V]] = {}

    async def run(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Returns the result of ``make()``, or of the running call for this key."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(asyncio.ensure_future(_start(make)))
            call.task.add_done_callback(lambda task: self._ended(key, task))
        call.num_callers += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.num_callers -= 1
            if not call.num_callers and not call.task.done():
                self._calls.pop(key, None)
                call.task.cancel()
                await _unwound(call.task)

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        self._calls.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: from Python 3.14 on, a cancelled `shield` no longer does that


class LeaderFlight(Generic[K, V]):
    """Joins concurrent calls like `SingleFlight`; cheaper if calls rarely coincide, as the first runs in its own task.

    Cancellation: A cancelled caller does not disturb the others. If it made the call, one of the others repeats it.
    """

    def __init__(self) -> None:
        self._led: dict[K, asyncio.Future[V] | None] = {}  # the future that other callers await, if there are any

    async def run(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Returns the result of ``make()``, or of the running call for this key."""
        while key in self._led:
            following = self._led[key]
            if following is None:
                following = self._led[key] = asyncio.get_running_loop().create_future()
            await asyncio.wait({following})
            if not following.cancelled():
                return following.result()
        self._led[key] = None
        try:
            value = await make()
        except Exception as error:
            if (following := self._led.pop(key)) is not None:
                following.set_exception(error)
                following.exception()  # marks it as retrieved, because all waiting callers may be cancelled
            raise
        except BaseException:
            if (following := self._led.pop(key)) is not None:
                following.cancel()
            raise
        if (following := self._led.pop(key)) is not None:
            following.set_result(value)
        return value


async def _start(make: Callable[[], Awaitable[V]]) -> V:
    return await make()


async def _unwound(task: asyncio.Task[V]) -> None:
    """Waits until a cancelled task has ended, and then raises a cancellation of the caller that arrived meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
