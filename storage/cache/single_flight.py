"""One call for many callers: whoever asks for a key that is being fetched waits for that fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["LedFlight", "SingleFlight"]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Call(Generic[V]):
    task: asyncio.Task[V]
    num_callers: int = 0


class SingleFlight(Generic[K, V]):
    """Joins concurrent calls for the same key, on one event loop.

    Cancellation: A cancelled caller leaves the others waiting; when the last one leaves, the call itself is cancelled
    and has unwound before the caller's CancelledError goes on, also if the caller is cancelled again meanwhile.
    """

    def __init__(self) -> None:
        self._calls: dict[K, _Call[V]] = {}

    async def run(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Returns the result of ``make()``, or of the call for this key that is already under way."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(asyncio.ensure_future(_start(make)))
            call.task.add_done_callback(lambda _: self._calls.pop(key, None))
        call.num_callers += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.num_callers -= 1
            if not call.num_callers and not call.task.done():
                self._calls.pop(key, None)
                call.task.cancel()
                await _unwound(call.task)


class LedFlight(Generic[K, V]):
    """The same, cheaper where callers are hardly ever two: the first makes the call in its own task.

    Cancellation: A cancelled caller leaves the others waiting; if it was the one that made the call, one of them makes
    it anew.
    """

    def __init__(self) -> None:
        self._led: dict[K, asyncio.Future[V] | None] = {}  # what others wait for, where there are any

    async def run(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Returns the result of ``make()``, or of the call for this key that is already under way."""
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
                following.exception()  # seen: those who wait may all be cancelled
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
    """Waits until a cancelled task has ended, and only then raises a cancellation that came meanwhile.

    Nobody is left who wants to know what the task ended with, so its exception counts as retrieved.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    if cancelled is not None:
        raise cancelled
