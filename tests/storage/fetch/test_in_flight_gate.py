from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate


@asynccontextmanager
async def placed(gate: InFlightGate, num_bytes: int) -> AsyncIterator[None]:
    await gate.enter(num_bytes)
    try:
        yield
    finally:
        gate.leave(num_bytes)


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class _Holder:
    """A task that holds a place until told to leave."""

    def __init__(self, gate: InFlightGate, num_bytes: int) -> None:
        self.inside = False
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._hold(gate, num_bytes))

    async def _hold(self, gate: InFlightGate, num_bytes: int) -> None:
        async with placed(gate, num_bytes):
            self.inside = True
            await self._leave.wait()
        self.inside = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def test_bounds_requests_and_keeps_their_order() -> None:
    gate = InFlightGate(max_requests=2, max_bytes=1000)
    holders = [_Holder(gate, 1) for _ in range(4)]
    await _settle()
    assert [holder.inside for holder in holders] == [True, True, False, False]
    await holders[1].leave()
    await _settle()
    assert [holder.inside for holder in holders] == [True, False, True, False]
    for holder in (holders[0], holders[2], holders[3]):
        await holder.leave()
    assert (gate.num_requests, gate.num_bytes) == (0, 0)


async def test_bounds_bytes_and_a_small_request_does_not_overtake_a_large_one() -> None:
    gate = InFlightGate(max_requests=10, max_bytes=10)
    first, large, small = _Holder(gate, 6), _Holder(gate, 6), _Holder(gate, 1)
    await _settle()
    assert (first.inside, large.inside, small.inside) == (True, False, False)
    await first.leave()
    await _settle()
    assert (large.inside, small.inside) == (True, True)
    await large.leave()
    await small.leave()


async def test_a_request_beyond_the_bound_runs_alone() -> None:
    gate = InFlightGate(max_requests=10, max_bytes=10)
    small, huge = _Holder(gate, 1), _Holder(gate, 1000)
    await _settle()
    assert not huge.inside
    await small.leave()
    await _settle()
    assert huge.inside
    await huge.leave()


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    gate = InFlightGate(max_requests=1, max_bytes=10)
    first, second, third = (_Holder(gate, 1) for _ in range(3))
    await _settle()
    second.task.cancel()
    await asyncio.wait({second.task})
    await first.leave()
    await _settle()
    assert third.inside
    await third.leave()


async def test_a_waiter_cancelled_just_as_it_is_admitted_gives_its_place_back() -> None:
    gate = InFlightGate(max_requests=1, max_bytes=10)
    first, second, third = (_Holder(gate, 1) for _ in range(3))
    await _settle()
    first._leave.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.task.cancel()
    await asyncio.wait({first.task, second.task})
    await _settle()
    assert third.inside
    await third.leave()
    assert gate.num_requests == 0


async def test_a_place_that_comes_free_for_a_cancelled_waiter_goes_to_the_next() -> None:
    gate = InFlightGate(max_requests=1, max_bytes=10)
    first, second, third, fourth = (_Holder(gate, 1) for _ in range(4))
    await _settle()
    for holder in (first, second, third):
        holder.task.cancel()
    await asyncio.wait({first.task, second.task, third.task})
    await _settle()
    assert all(holder.task.cancelled() for holder in (first, second, third))
    assert fourth.inside
    await fourth.leave()
    assert (gate.num_requests, gate.num_bytes) == (0, 0)


async def test_random_traffic_with_cancellations_never_exceeds_the_bounds_nor_gets_stuck() -> None:
    rng = random.Random(7)
    gate = InFlightGate(max_requests=3, max_bytes=20)

    async def visit(num_bytes: int) -> None:
        async with placed(gate, num_bytes):
            assert gate.num_requests <= 3
            assert gate.num_bytes <= 20 or gate.num_requests == 1
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(visit(rng.choice([1, 5, 19, 40]))) for _ in range(300)]
    for task in rng.sample(tasks, 100):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    assert (gate.num_requests, gate.num_bytes) == (0, 0)


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_senseless_bounds_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError):
        InFlightGate(max_requests=bounds[0], max_bytes=bounds[1])
