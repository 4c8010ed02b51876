"""The first batch's shards are asked for before those that are fetched ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.pipeline.pipeline import Pipeline, PipelineConfig
from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.virtual_time import run_in_virtual_time

NUM_SHARDS, ROWS = 40, 10


class Shards:
    """Brings shards when the test says so, and remembers which were asked for."""

    max_concurrent = None

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.rows: dict[int, asyncio.Future[Any]] = {}  # of shards whose samples are fetched by themselves
        self.arrivals = [asyncio.get_running_loop().create_future() for _ in range(NUM_SHARDS)]

    async def set_schedule(self, plan: Any, world_size: int, *, shared: bool = False) -> None: ...

    async def end(self) -> None: ...

    def set_step(self, step: int) -> None: ...

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None: ...

    def fetch_times(self, unit: int) -> None: ...

    def resolve(self, index: Any) -> Any:
        return index

    def num_bytes(self, unit: int) -> int:
        return 1000

    def num_samples(self, unit: int) -> int:
        return ROWS

    def url(self, unit: int) -> str:
        return "memory://shards"

    def key(self, unit: int) -> str:
        return str(unit)

    async def row_fetcher(self, unit: int, rows: Any) -> Any:
        async def fetch() -> Any:
            return await self.rows[unit]

        return fetch if unit in self.rows else None

    async def acquire(self, unit: int) -> Any:
        self.asked.append(unit)
        return await self.arrivals[unit]


Watch = Callable[[Shards, list[int]], Awaitable[None]]


def watch(look: Watch, *, start_step: int = 0, worker: int = 0, num_workers: int = 1, num_by_rows: int = 0) -> None:
    """Runs a pipeline in virtual time and looks on; given are the shards, and which of them the first batch needs.

    The samples of the first few of these are fetched by themselves.
    """

    async def run() -> None:
        source: Any = Shards()
        plan = EpochPlan(samples_per_unit=np.full(NUM_SHARDS, ROWS), global_batch_size=8, window=60, groups=2)
        processing: Any = SimpleNamespace(clock=SimpleNamespace(now=time.monotonic), choosers=lambda epoch: [])
        config = PipelineConfig(
            source=source, plan=plan, processing=processing, start_step=start_step, rank=0, world_size=1, num_threads=1,
            prefetch_batches=2, prefetch_bytes=20_000, worker=worker, num_workers=num_workers,
        )  # fmt: skip
        pipeline = Pipeline(config, deliver=lambda batch, spans: None)
        own = next(step for step in range(start_step, 100) if step % num_workers == worker)
        needed = sorted(set(plan.batch(own).shard.tolist()))
        source.rows = {unit: asyncio.get_running_loop().create_future() for unit in needed[:num_by_rows]}
        task = asyncio.create_task(pipeline.run())
        await asyncio.sleep(0.001)
        try:
            await look(source, needed)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(run())


@pytest.mark.parametrize(("start_step", "worker", "num_workers"), [(0, 0, 1), (7, 0, 1), (0, 1, 2)])
def test_the_rest_begins_when_the_first_shard_has_arrived(start_step: int, worker: int, num_workers: int) -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        assert sorted(shards.asked) == needed
        shards.arrivals[needed[-1]].set_result(object())
        await asyncio.sleep(0.001)
        assert len(shards.asked) >= len(needed) + 15

    watch(look, start_step=start_step, worker=worker, num_workers=num_workers)


def test_a_shard_that_does_not_come_holds_up_the_rest_for_a_second_only() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        await asyncio.sleep(0.99)
        assert sorted(shards.asked) == needed
        await asyncio.sleep(0.02)
        assert len(shards.asked) >= len(needed) + 15

    watch(look)


def test_a_shard_that_fails_is_the_end_of_the_wait_as_well() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        shards.arrivals[needed[0]].set_exception(ConnectionFailed("gone"))
        await asyncio.sleep(0.001)
        assert len(shards.asked) >= len(needed) + 15

    watch(look)


def test_it_can_be_cancelled_while_it_waits() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        assert sorted(shards.asked) == needed

    watch(look)


def test_the_first_batchs_samples_are_asked_for_before_their_shards() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        assert list(shards.rows) == needed
        assert not shards.asked
        shards.rows[needed[0]].set_exception(ConnectionFailed("gone"))  # this shard is needed as a whole
        await asyncio.sleep(0.001)
        assert not shards.asked
        shards.rows[needed[1]].set_result(object())
        await asyncio.sleep(0.001)
        assert sorted(shards.asked) == needed

    watch(look, num_by_rows=NUM_SHARDS)


@pytest.mark.parametrize("fails", [False, True])
def test_shards_whose_samples_do_not_come_are_asked_for(fails: bool) -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        if fails:
            for unit in needed:
                shards.rows[unit].set_exception(ConnectionFailed("gone"))
            await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(1)
        assert sorted(shards.asked) == needed

    watch(look, num_by_rows=NUM_SHARDS)


def test_shards_that_come_as_a_whole_do_not_wait_for_the_samples_of_others() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        assert sorted(shards.asked) == needed[2:]
        for unit in needed[:2]:
            shards.rows[unit].set_result(object())
        await asyncio.sleep(0.001)
        assert sorted(shards.asked) == needed[2:]
        shards.arrivals[needed[2]].set_result(object())
        await asyncio.sleep(0.001)
        assert sorted(shards.asked[: len(needed)]) == needed  # those of the first batch before all others
        assert len(shards.asked) >= len(needed) + 15

    watch(look, num_by_rows=2)


def test_samples_that_fail_beside_a_whole_shard_come_with_their_shard() -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        shards.rows[needed[0]].set_exception(ConnectionFailed("gone"))
        await asyncio.sleep(0.9)
        assert sorted(shards.asked) == needed[1:]
        await asyncio.sleep(0.2)  # nothing has arrived for a second
        assert needed[0] in shards.asked

    watch(look, num_by_rows=1)
