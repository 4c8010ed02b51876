"""Awaits one call per item, many at once but never all of them: the tasks are bounded, and the first error ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

__all__ = ["map_concurrently"]

T = TypeVar("T")
R = TypeVar("R")

_MAX_TASKS = 512  # more than requests are ever in flight, so the engine decides


async def map_concurrently(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Awaits ``call(item)`` for every item and returns the results in the order of the items.

    A task per item would cost memory for all of them at once, and cancelling them after an error takes as long as
    starting them.

    Raises:
        Exception: What the first call to fail raised; no further call is started and running calls are cancelled.
    """
    results: list[R | None] = [None] * len(items)
    remaining = iter(enumerate(items))

    async def work() -> None:
        for place, item in remaining:
            results[place] = await call(item)
            await asyncio.sleep(0)  # items found locally never wait, and others want the loop as well

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_MAX_TASKS, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return cast("list[R]", results)
