"""Awaits one call per item with a bounded number of tasks; the first error ends all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

__all__ = ["map_concurrently"]

T = TypeVar("T")
R = TypeVar("R")

_MAX_TASKS = 512  # more than the requests that are ever in flight, so the engine sets the limit


async def map_concurrently(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Awaits ``call(item)`` for every item and returns the results in the order of the items.

    One task per item would take memory for all items at once, and cancelling after an error would take long.

    Raises:
        Exception: Error of the first call that failed; running calls are cancelled, and no other call is started.
    """
    results: list[R | None] = [None] * len(items)
    remaining = iter(enumerate(items))

    async def work() -> None:
        for place, item in remaining:
            results[place] = await call(item)
            await asyncio.sleep(0)  # local items never wait, so let other tasks run

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_MAX_TASKS, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return cast("list[R]", results)
