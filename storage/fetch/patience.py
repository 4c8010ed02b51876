"""Waiting for a place in flight with a patience that may become new while one waits; below the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["wait_while"]

T = TypeVar("T")

# What the clocks of the loop and of the caller may disagree about without the loop being kept busy by it.
_SHORTEST_S = 0.001


async def wait_while(left_s: Callable[[], float], wait: Callable[[], Awaitable[T]]) -> T:
    """Waits until there is no time left; asks how much there is only when what it was told has passed.

    Args:
        left_s: Seconds for which waiting makes sense, as it looks at the moment of asking.
        wait: What is waited for; it is cancelled when there are none left.

    Raises:
        TimeoutError: There is no time left.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        more_s = left_s()
        if more_s <= 0:
            timeout.reschedule(loop.time())
        else:
            timer = loop.call_later(max(more_s, _SHORTEST_S), look)

    async with asyncio.timeout(None) as timeout:
        timer = loop.call_later(max(left_s(), _SHORTEST_S), look)
        try:
            return await wait()
        finally:
            timer.cancel()
