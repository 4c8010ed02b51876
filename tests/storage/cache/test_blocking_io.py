from __future__ import annotations

import asyncio
import threading

import pytest

from concurrent_loader.storage.cache.blocking_io import in_thread


async def test_gives_the_result_or_the_error() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(OSError, match="broken"):
        await in_thread(_break)


def _break() -> None:
    raise OSError("broken")


@pytest.mark.parametrize("num_cancels", [1, 3])
async def test_a_cancellation_waits_for_the_call_and_disposes_of_its_result(num_cancels: int) -> None:
    started, go_on, disposed = threading.Event(), threading.Event(), list[int]()

    def call() -> int:
        started.set()
        go_on.wait()
        return 7

    task = asyncio.create_task(in_thread(call, disposed.append))
    await asyncio.to_thread(started.wait)
    for _ in range(num_cancels):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert disposed == [7]


async def test_an_error_of_a_call_that_nobody_waits_for_is_not_lost_noisily() -> None:
    started, go_on = threading.Event(), threading.Event()

    def call() -> int:
        started.set()
        go_on.wait()
        raise OSError("broken")

    task = asyncio.create_task(in_thread(call))
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
