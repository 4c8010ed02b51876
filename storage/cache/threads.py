"""How coroutines of the cache touch the drive: in a thread, and never leaving behind what the thread made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(call: Callable[[], T], dispose: Callable[[T], object] = lambda result: None) -> T:
    """Makes a short blocking call in a thread of the loop's executor.

    Args:
        call: What to do.
        dispose: What becomes of its result if nobody takes it any more.

    Cancellation: The call itself cannot be stopped. It is waited for, its result disposed of, and only then is the
    cancellation raised: a descriptor that a thread still writes to must not be closed, let alone be reused, meanwhile.
    """
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue  # once is enough; it is raised below
        if not future.cancelled() and future.exception() is None:
            dispose(future.result())
        raise
