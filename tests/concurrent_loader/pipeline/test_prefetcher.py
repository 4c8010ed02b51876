"""Units are fetched in order, with bounded concurrency, and released when no batch needs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.pipeline.prefetcher import Prefetcher
from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.virtual_time import run_in_virtual_time


class Units:
    """A source whose units come when the test says so."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent
        self.asked: list[int] = []
        self.held: list[int] = []
        self.coming: dict[int, asyncio.Future[Any]] = {}
        self.fetch_times: Callable[[int], tuple[float, float | None] | None] = lambda unit: None

    async def acquire(self, unit: int) -> Any:
        self.asked.append(unit)
        coming = self.coming[unit] = asyncio.get_running_loop().create_future()
        try:
            await coming
        finally:
            del self.coming[unit]
        self.held.append(unit)
        return f"unit {unit}"

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        self.held.remove(unit)


class Bench:
    """Prefetcher over such a source, and the tasks that they start."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.units = Units(max_concurrent)
        source: Any = self.units
        self.prefetcher = Prefetcher(source)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(coroutine))

    async def prefetch(self, *units: int) -> None:
        for unit in units:
            self.prefetcher.prefetch(unit, self.start)
        await settled()

    async def come(self, unit: int) -> None:
        self.units.coming[unit].set_result(None)
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_more_are_asked_for_at_once_than_the_source_says() -> None:
    bench = Bench(max_concurrent=2)
    await bench.prefetch(5, 3, 9, 1)
    assert bench.units.asked == [5, 3]
    await bench.come(3)
    assert bench.units.asked == [5, 3, 9]
    assert bench.prefetcher[3].result() == "unit 3"
    assert not bench.prefetcher[5].done()
    for unit in (9, 5, 1):
        await bench.come(unit)
    assert bench.units.asked == [5, 3, 9, 1]
    await asyncio.gather(*bench.tasks)
    assert len(bench.tasks) == 2


async def test_what_is_under_way_began_when_its_fetcher_took_it() -> None:
    bench = Bench(1)
    bench.units.fetch_times = lambda unit: (0.0, None)
    before_s = time.monotonic()
    await bench.prefetch(1, 2)
    ((began_s, unit),) = bench.prefetcher.under_way()
    assert unit == 1
    assert before_s <= began_s <= time.monotonic()
    await bench.come(1)
    assert [unit for _, unit in bench.prefetcher.under_way()] == [2]
    await bench.come(2)
    assert not bench.prefetcher.under_way()


async def test_without_a_bound_all_are_asked_for() -> None:
    bench = Bench(max_concurrent=None)
    await bench.prefetch(*range(50))
    assert bench.units.asked == list(range(50))
    for unit in range(50):
        await bench.come(unit)
    await asyncio.gather(*bench.tasks)


async def test_a_bound_that_grows_is_used_and_one_that_shrinks_is_kept() -> None:
    bench = Bench(max_concurrent=1)
    await bench.prefetch(*range(12))
    assert bench.units.asked == [0]
    bench.units.max_concurrent = 3
    await bench.come(0)
    assert bench.units.asked == [0, 1, 2]  # each fetched unit starts one more, up to the bound
    await bench.come(1)
    assert bench.units.asked == [0, 1, 2, 3, 4]
    bench.units.max_concurrent = 1
    await bench.come(2)
    await bench.come(3)
    assert bench.units.asked == [0, 1, 2, 3, 4]
    await bench.come(4)
    assert bench.units.asked == [0, 1, 2, 3, 4, 5]
    for unit in range(5, 12):
        await bench.come(unit)
    await asyncio.gather(*bench.tasks)


async def test_what_keeps_a_unit_from_coming_is_its_outcome_and_the_others_come() -> None:
    bench = Bench(max_concurrent=1)
    await bench.prefetch(0, 1)
    error = ConnectionFailed("no way")
    bench.units.coming[0].set_exception(error)
    await settled()
    assert bench.prefetcher[0].result() is error
    bench.prefetcher.release(0)
    await bench.come(1)
    assert bench.prefetcher[1].result() == "unit 1"


async def test_units_are_released_once_they_are_there() -> None:
    bench = Bench(max_concurrent=1)
    await bench.prefetch(0, 1, 2, 3)
    await bench.come(0)
    bench.prefetcher.release(1)  # on its way
    bench.prefetcher.release(2)  # not asked for yet
    bench.prefetcher.release(7)  # never expected
    await bench.come(1)
    assert bench.units.asked == [0, 1, 3]
    await bench.come(3)
    assert bench.units.held == [0, 3]
    bench.prefetcher.release_all()
    assert bench.units.held == []
    assert not bench.prefetcher.all()


async def test_a_cancelled_fetcher_cancels_its_unit() -> None:
    bench = Bench(max_concurrent=1)
    await bench.prefetch(0, 1)
    bench.tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.tasks[0]
    assert bench.prefetcher[0].cancelled()
    bench.prefetcher.release_all()
    assert bench.units.held == []


async def test_a_unit_whose_coming_is_cancelled_by_others_keeps_none_from_coming() -> None:
    bench = Bench(max_concurrent=1)
    await bench.prefetch(0, 1)
    bench.units.coming[0].cancel()
    await settled()
    assert bench.prefetcher[0].cancelled()
    await bench.come(1)
    assert bench.prefetcher[1].result() == "unit 1"
    await asyncio.gather(*bench.tasks)


@given(
    bound=st.integers(1, 5) | st.none(),
    moves=st.lists(st.tuples(st.sampled_from(["expect", "come", "release"]), st.integers(0, 30)), max_size=60),
)
def test_every_unit_is_asked_for_once_and_none_is_left_held(bound: int | None, moves: list[tuple[str, int]]) -> None:
    async def run() -> None:
        bench = Bench(bound)
        expected: list[int] = []
        dropped: set[int] = set()
        for move, number in moves:
            if move == "expect":
                expected.append(len(expected))
                await bench.prefetch(expected[-1])
            elif move == "come" and bench.units.coming:
                await bench.come(sorted(bench.units.coming)[number % len(bench.units.coming)])
            elif move == "release" and expected:
                dropped.add(number % len(expected))
                bench.prefetcher.release(number % len(expected))
            assert bound is None or len(bench.units.coming) <= bound
        while bench.units.coming:
            await bench.come(min(bench.units.coming))
        await asyncio.gather(*bench.tasks)
        assert bench.units.asked == sorted(set(bench.units.asked))
        assert set(expected) - set(bench.units.asked) <= dropped
        assert set(bench.units.held) == set(expected) - dropped
        bench.prefetcher.release_all()
        assert bench.units.held == []

    run_in_virtual_time(run())


async def test_deferred_units_are_queued_together_and_only_then() -> None:
    bench = Bench(max_concurrent=1)
    bench.prefetcher.defer(4)
    bench.prefetcher.defer(2)
    await bench.prefetch(7)
    assert bench.units.asked == [7]
    await bench.come(7)
    assert not bench.prefetcher[4].done()
    bench.prefetcher.release(2)  # not needed any more
    bench.prefetcher.prefetch_deferred(bench.start)
    bench.prefetcher.prefetch_deferred(bench.start)  # nothing is left
    await settled()
    await bench.come(4)
    assert bench.units.asked == [7, 4]
    assert bench.prefetcher[4].result() == "unit 4"
