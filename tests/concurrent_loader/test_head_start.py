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
        self.rows: Any = None  # futures of the first batch, if they are fetched by themselves
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

    async def acquire_rows(self, unit: int, rows: Any) -> Any:
        return None if self.rows is None else await self.rows[unit]

    async def acquire(self, unit: int) -> Any:
        self.asked.append(unit)
        return await self.arrivals[unit]


Watch = Callable[[Shards, list[int]], Awaitable[None]]


def watch(look: Watch, *, start_step: int = 0, worker: int = 0, num_workers: int = 1, by_rows: bool = False) -> None:
    """Runs a pipeline in virtual time and looks on; given are the shards, and which of them the first batch needs."""

    async def run() -> None:
        source: Any = Shards()
        if by_rows:
            source.rows = [asyncio.get_running_loop().create_future() for _ in range(NUM_SHARDS)]
        plan = EpochPlan(samples_per_unit=np.full(NUM_SHARDS, ROWS), global_batch_size=8, window=60, groups=2)
        processing: Any = SimpleNamespace(clock=SimpleNamespace(now=time.monotonic), choosers=lambda epoch: [])
        config = PipelineConfig(
            source=source, plan=plan, processing=processing, start_step=start_step, rank=0, world_size=1, num_threads=1,
            prefetch_batches=2, prefetch_bytes=20_000, worker=worker, num_workers=num_workers,
        )  # fmt: skip
        pipeline = Pipeline(config, deliver=lambda batch, spans: None)
        own = next(step for step in range(start_step, 100) if step % num_workers == worker)
        needed = sorted(set(plan.batch(own).shard.tolist()))
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
        assert not shards.asked
        shards.rows[needed[0]].set_result(None)  # this shard comes as a whole
        await asyncio.sleep(0.001)
        assert not shards.asked
        shards.rows[needed[1]].set_result(object())
        await asyncio.sleep(0.001)
        assert sorted(shards.asked) == needed

    watch(look, by_rows=True)


@pytest.mark.parametrize("outcome", [None, ConnectionFailed("gone")])
def test_shards_whose_samples_do_not_come_are_asked_for(outcome: Exception | None) -> None:
    async def look(shards: Shards, needed: list[int]) -> None:
        if outcome is None:
            await asyncio.sleep(1)
        else:
            for unit in needed:
                shards.rows[unit].set_exception(outcome)
            await asyncio.sleep(0.001)
        assert sorted(shards.asked) == needed

    watch(look, by_rows=True)
