from __future__ import annotations

import asyncio
import gc

import pytest

from concurrent_loader.storage.cache.single_flight import LeaderFlight, SingleFlight

Flight = SingleFlight[str, int] | LeaderFlight[str, int]


class Calls:
    """Counts calls and lets them finish when told."""

    def __init__(self) -> None:
        self.num = 0
        self.go = asyncio.Event()
        self.unwound = False

    async def __call__(self) -> int:
        self.num += 1
        number = self.num
        try:
            await self.go.wait()
        finally:
            self.unwound = True
        return number


BOTH = pytest.mark.parametrize("kind", [SingleFlight, LeaderFlight])


@BOTH
async def test_concurrent_callers_share_one_call(kind: type[Flight]) -> None:
    calls, flight = Calls(), kind()
    tasks = [asyncio.create_task(flight.run("k", calls)) for _ in range(5)]
    await asyncio.sleep(0)
    calls.go.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await flight.run("k", calls) == 2


@BOTH
async def test_keys_do_not_wait_for_each_other(kind: type[Flight]) -> None:
    slow, fast, flight = Calls(), Calls(), kind()
    fast.go.set()
    waiting = asyncio.create_task(flight.run("slow", slow))
    assert await flight.run("fast", fast) == 1
    slow.go.set()
    assert await waiting == 1


@BOTH
async def test_an_error_reaches_all_callers_and_is_not_kept(kind: type[Flight]) -> None:
    flight = kind()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    tasks = [asyncio.create_task(flight.run("k", fail)) for _ in range(3)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
    calls = Calls()
    calls.go.set()
    assert await flight.run("k", calls) == 1


async def test_a_cancelled_caller_leaves_the_others_waiting() -> None:
    calls, flight = Calls(), SingleFlight[str, int]()
    first, second = (asyncio.create_task(flight.run("k", calls)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    calls.go.set()
    assert await second == 1


@BOTH
async def test_the_last_caller_takes_the_call_with_it(kind: type[Flight]) -> None:
    calls, flight = Calls(), kind()
    tasks = [asyncio.create_task(flight.run("k", calls)) for _ in range(2)]
    while not calls.num:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert calls.unwound
    assert all(task.cancelled() for task in tasks)
    assert len(asyncio.all_tasks()) == 1
    calls.go.set()
    assert await flight.run("k", calls) == 2


async def test_a_call_that_ends_by_itself_while_being_cancelled_is_no_problem() -> None:
    calls, flight = Calls(), SingleFlight[str, int]()
    task = asyncio.create_task(flight.run("k", calls))
    while not calls.num:
        await asyncio.sleep(0)
    calls.go.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_where_the_caller_that_leads_is_cancelled_another_makes_the_call_anew() -> None:
    calls, flight = Calls(), LeaderFlight[str, int]()
    leading, *following = (asyncio.create_task(flight.run("k", calls)) for _ in range(4))
    await asyncio.sleep(0)
    leading.cancel()
    await asyncio.wait({leading})
    assert calls.unwound
    calls.go.set()
    assert await asyncio.gather(*following) == [2] * 3


async def test_a_cancelled_follower_takes_nothing_along() -> None:
    calls, flight = Calls(), LeaderFlight[str, int]()
    leading, first, second = (asyncio.create_task(flight.run("k", calls)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    calls.go.set()
    assert await asyncio.gather(leading, second) == [1, 1]


async def test_an_error_that_nobody_is_left_to_see_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    flight: LeaderFlight[str, int] = LeaderFlight()
    go = asyncio.Event()

    async def fail() -> int:
        await go.wait()
        raise ValueError("no")

    leading, following = (asyncio.create_task(flight.run("k", fail)) for _ in range(2))
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait({following})
    go.set()
    with pytest.raises(ValueError, match="no"):
        await leading
    del leading, following
    gc.collect()
    assert not caplog.records


async def test_an_error_of_a_call_that_is_being_cancelled_is_not_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flight: SingleFlight[str, int] = SingleFlight()

    async def fail_when_cancelled() -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("the store has died")

    only = asyncio.create_task(flight.run("k", fail_when_cancelled))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait({only})
    assert only.cancelled()
    del only
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records
