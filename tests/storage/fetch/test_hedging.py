"""Doubles of late requests: the budget alone, and a whole engine over a store with a long tail, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import ConfigurationError, Throttled
from concurrent_loader.storage.fetch import FetchEngine, FetchStats, HedgePolicy, RetryPolicy
from concurrent_loader.storage.fetch.hedging import HedgeBudget
from concurrent_loader.storage.fetch.stats import FirstByteTimes, percentile
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.virtual_time import run_in_virtual_time

SIZE = 10_000


class Waiting:
    def __init__(self) -> None:
        self.num_doubles = 0

    def hedge(self) -> None:
        self.num_doubles += 1


def test_the_last_tokens_are_for_those_who_are_late_again() -> None:
    budget = HedgeBudget(HedgePolicy(share=0.5, burst=4))
    assert not budget.take(again=False)
    assert budget.take(again=True)
    for _ in range(6):
        budget.deposit(quiet=False)
    assert budget.take(again=False)


def test_who_waits_longest_gets_the_next_token() -> None:
    budget = HedgeBudget(HedgePolicy(share=0.5, burst=2))
    assert budget.take(again=True)
    first, second, third = Waiting(), Waiting(), Waiting()
    for late in (first, second, third):
        budget.enqueue(late)
    budget.leave_queue(first)
    budget.leave_queue(first)
    for _ in range(2):
        budget.deposit(quiet=True)
    assert (second.num_doubles, third.num_doubles) == (0, 0)
    budget.deposit(quiet=False)
    assert (first.num_doubles, second.num_doubles, third.num_doubles) == (0, 1, 0)


@given(st.lists(st.sampled_from(["deposit", "take", "again", "wait"]), max_size=300))
def test_no_more_doubles_than_the_share_and_the_burst(steps: list[str]) -> None:
    policy = HedgePolicy(share=0.05, burst=4)
    budget = HedgeBudget(policy)
    waiting: list[Waiting] = []
    num_deposits = num_doubles = 0
    for step in steps:
        if step == "deposit":
            budget.deposit(quiet=False)
            num_deposits += 1
        elif step == "wait":
            waiting.append(Waiting())
            budget.enqueue(waiting[-1])
        else:
            num_doubles += budget.take(again=step == "again")
    num_doubles += sum(late.num_doubles for late in waiting)
    assert num_doubles <= policy.burst + policy.share * num_deposits + 1e-6


@pytest.mark.parametrize("option", [{"percentile": 1.0}, {"share": 0.0}, {"burst": 0.5}, {"max_hedges": 0}])
def test_senseless_policies_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        HedgePolicy(**option)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 100), max_size=700), st.floats(0.01, 1))
def test_percentiles(values: list[float], share: float) -> None:
    times = FirstByteTimes()
    for value in values:
        times.add(value)
    assert sorted(times.values) == sorted(values[-512:])
    found = percentile(values, share)
    assert found in values or (not values and found == 0)
    assert sum(value <= found for value in values) >= share * len(values)


# -- a whole engine ----------------------------------------------------------------------------------------------------


class TailStore(Store):
    """First bytes after lognormal times (median 30 ms, σ 0.5), one in a hundred fifty times slower."""

    def __init__(self, *, seed: int = 0, slow: float = 0.01) -> None:
        super().__init__(f"memory://tail-{seed}-{random.random()}")
        self.rng = random.Random(seed)
        self.slow = slow
        self.num_gets = self.num_open = 0
        self.refuses = False
        self.data = bytes(SIZE)

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        self.num_gets += 1
        self.num_open += 1
        try:
            seconds = 0.03 * self.rng.lognormvariate(0, 0.5)
            await asyncio.sleep(seconds * (50 if self.rng.random() < self.slow else 1))
        finally:
            self.num_open -= 1
        if self.refuses:
            raise Throttled("slow down")
        return GetResult(memoryview(self.data)[slice(*(span or (0, SIZE)))], ObjectMeta(key, SIZE, "etag"))

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        raise AssertionError

    async def _head(self, key: str) -> ObjectMeta:
        raise AssertionError

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        raise AssertionError

    async def _delete(self, key: str) -> None:
        raise AssertionError


def batches(*, hedge: HedgePolicy | None, streams: bool, seed: int) -> tuple[list[float], FetchStats, int]:
    """Seconds of 200 batches of 64 requests, one after the other."""

    async def main() -> tuple[list[float], FetchStats, int]:
        clock = asyncio.get_running_loop().time
        store = TailStore(seed=seed)
        engine = FetchEngine(store, in_flight=64, hedge=hedge, clock=clock)
        taken_s = []
        for number in range(220):
            began_s = clock()
            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(engine.fetch_object("k") if streams else engine.fetch("k", 0, 1000))
            if number >= 20:
                taken_s.append(clock() - began_s)
        assert (store.num_open, engine.stats.in_flight) == (0, 0)
        return taken_s, engine.stats, store.num_gets

    return run_in_virtual_time(main())


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "seed"), [(False, 1), (True, 3)])
def test_the_tail_of_a_batch_falls_at_least_five_times_for_six_percent_more_requests(streams: bool, seed: int) -> None:
    without, _, _ = batches(hedge=None, streams=streams, seed=seed)
    with_doubles, stats, num_gets = batches(hedge=HedgePolicy(), streams=streams, seed=seed)
    assert percentile(without, 0.99) >= 5 * percentile(with_doubles, 0.99)
    assert num_gets == stats.num_gets == 220 * 64 + stats.num_hedges
    assert stats.num_hedges <= 0.06 * 220 * 64
    assert 0 < stats.num_hedges_won <= stats.num_hedges


def test_while_the_store_throttles_nothing_is_doubled() -> None:
    async def main() -> FetchStats:
        clock = asyncio.get_running_loop().time
        store = TailStore()
        engine = FetchEngine(
            store, in_flight=8, hedge=HedgePolicy(floor_s=0.001, percentile=0.1), retry=RetryPolicy(max_attempts=1000),
            clock=clock,
        )  # fmt: skip
        await asyncio.gather(*(engine.fetch("k", 0, 10) for _ in range(200)))
        store.refuses = True
        tasks = [asyncio.create_task(engine.fetch("k", 0, 10)) for _ in range(20)]
        await asyncio.sleep(1.0)
        before = engine.stats.num_hedges
        await asyncio.sleep(5)
        assert engine.stats.num_hedges == before
        assert engine.stats.num_throttled > 0
        store.refuses = False
        await asyncio.gather(*tasks)
        return engine.stats

    stats = run_in_virtual_time(main())
    assert stats.num_hedges > 0


def test_doubles_get_their_places_without_waiting() -> None:
    async def main() -> float:
        clock = asyncio.get_running_loop().time
        store = TailStore(slow=0.0)
        engine = FetchEngine(store, in_flight=1, hedge=HedgePolicy(floor_s=0.01), clock=clock)
        for _ in range(50):
            await engine.fetch("k", 0, 10)
        store.slow = 1.0
        began_s = clock()
        task = asyncio.create_task(engine.fetch("k", 0, 10))
        await asyncio.sleep(0.3)
        store.slow = 0.0
        await task
        return clock() - began_s

    assert run_in_virtual_time(main()) < 1.4
