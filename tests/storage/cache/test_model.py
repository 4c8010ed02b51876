"""The cache on a drive against a model, in any sequence of uses, damage and budgets; and cancelled at every await."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from concurrent_loader.storage.cache import DiskShardCache, UseSchedule
from concurrent_loader.storage.errors import CorruptData
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.stores.store import Store

NUM_SHARDS, PER_SHARD = 4, 5
SHARDS = st.integers(0, NUM_SHARDS - 1)
ROWS = np.arange(PER_SHARD)


class CacheMachine(RuleBasedStateMachine):
    """Two caches on one folder, as two processes have them; the model knows who has pinned what."""

    def __init__(self, put: Callable[..., Any], make_sample: Callable[..., dict[str, Any]]) -> None:
        super().__init__()
        self.make_sample = make_sample
        self.runner = asyncio.Runner()
        self.root = Path(tempfile.mkdtemp(prefix="cache-model-"))
        self.folder = self.root / "cache"
        self.store = MemoryStore("memory://model")
        self.entries: list[ShardEntry] = [
            self.runner.run(put(self.store, range(PER_SHARD * n, PER_SHARD * (n + 1)))) for n in range(NUM_SHARDS)
        ]
        self.budget = 2 * self.entries[0].size + 3 * 4096
        manifest = Manifest(
            snapshot=1, schema={"image": "bytes", "label": "int64", "name": "str"}, shards=tuple(self.entries)
        )
        self.caches: list[DiskShardCache] = []
        self.readers: list[DatasetReader] = []
        for _ in range(2):
            engine = FetchEngine(self.store)
            self.caches.append(self.runner.run(self._open(engine)))
            self.readers.append(DatasetReader(manifest, engine, self.caches[-1]))
        self.pins: list[Counter[int]] = [Counter(), Counter()]

    async def _open(self, engine: FetchEngine) -> DiskShardCache:
        return DiskShardCache(engine, self.folder, budget_bytes=self.budget)

    def _check(self, who: int, number: int) -> None:
        """Reads a pinned shard as the loader does."""

        async def read() -> None:
            cache, entry = self.caches[who], self.entries[number]
            shard = cache._open[entry.digest]
            for _ in range(3):
                try:
                    got = [bytes(value) for value in shard.payload("image", ROWS)]
                    break
                except CorruptData:
                    shard = await cache.replace(entry, shard)
            assert got == [self.make_sample(PER_SHARD * number + row)["image"] for row in range(PER_SHARD)]

        self.runner.run(read())

    @rule(who=st.integers(0, 1), number=SHARDS)
    def acquire(self, who: int, number: int) -> None:
        self.runner.run(self.caches[who].acquire(self.entries[number]))
        self.pins[who][number] += 1
        self._check(who, number)

    @precondition(lambda self: any(self.pins[0].values()) or any(self.pins[1].values()))
    @rule(data=st.data(), spent=st.booleans())
    def release(self, data: st.DataObject, spent: bool) -> None:
        held = [(who, number) for who in (0, 1) for number, count in self.pins[who].items() if count]
        who, number = data.draw(st.sampled_from(held))
        self._check(who, number)
        self.caches[who].release(self.entries[number], done_for_epoch=spent)
        self.pins[who][number] -= 1

    @rule(who=st.integers(0, 1), number=st.integers(0, NUM_SHARDS * PER_SHARD - 1))
    def read_sample(self, who: int, number: int) -> None:
        assert self.runner.run(self.readers[who].read(number)) == self.make_sample(number)

    @rule(who=st.integers(0, 1), steps=st.lists(st.integers(20, 40), min_size=NUM_SHARDS, max_size=NUM_SHARDS))
    def follow(self, who: int, steps: list[int]) -> None:
        schedule = UseSchedule(
            [entry.digest for entry in self.entries],
            np.arange(NUM_SHARDS, dtype=float),
            np.arange(NUM_SHARDS, dtype=float) + 2,
            np.array(steps, dtype=float),
            np.zeros(NUM_SHARDS, dtype=bool),
        )
        self.runner.run(self.caches[who].set_schedule(lambda: schedule))

    @rule(who=st.integers(0, 1), step=st.integers(0, 8))
    def go_on(self, who: int, step: int) -> None:
        self.caches[who].set_step(step)

    @rule(number=SHARDS, suffix=st.sampled_from([".shard", ".sparse"]), at=st.integers(0, 7000), cut=st.booleans())
    def damage(self, number: int, suffix: str, at: int, cut: bool) -> None:
        path = self.folder / f"{self.entries[number].digest}{suffix}"
        if path.exists():
            with path.open("r+b") as file:
                if cut:
                    file.truncate(min(at, path.stat().st_size))
                elif path.stat().st_size > at:
                    byte = os.pread(file.fileno(), 1, at)
                    os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)

    @rule(number=SHARDS)
    def delete(self, number: int) -> None:
        (self.folder / f"{self.entries[number].digest}.shard").unlink(missing_ok=True)

    @rule()
    def delete_the_folder(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir(mode=0o700)

    @invariant()
    def the_budget_holds(self) -> None:
        assert sum(file.num_bytes for file in self.caches[0]._folder.files()) <= self.budget

    @invariant()
    def pins_are_the_models(self) -> None:
        for cache, pins in zip(self.caches, self.pins, strict=True):
            expected = {self.entries[number].digest: count for number, count in pins.items() if count}
            assert cache._pins == expected
            assert set(cache._open) == set(expected)

    @invariant()
    def nothing_is_left_about(self) -> None:
        assert all(path.suffix in (".shard", ".sparse") for path in self.folder.iterdir())

    def teardown(self) -> None:
        for cache in self.caches:
            self.runner.run(cache.close())
        self.runner.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.root)


@pytest.mark.slow
@pytest.mark.hypothesis
def test_against_the_model(put: Callable[..., Any], make_sample: Callable[..., dict[str, Any]]) -> None:
    run_state_machine_as_test(
        lambda: CacheMachine(put, make_sample),
        settings=settings(stateful_step_count=25),
    )


class Interrupting:
    """Awaits of a coroutine are counted; at the chosen one it is cancelled."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.num = 0

    def arm(self, task: asyncio.Task[Any]) -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self.num += 1
            if self.num == self.at:
                task.cancel()
            elif not task.done():
                loop.call_soon(tick)

        loop.call_soon(tick)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fetched", "cached", "evicting", "sparse"])
async def test_cancelling_at_any_moment_leaves_nothing_behind(
    store: Store, entries: list[ShardEntry], tmp_path: Path, make_sample: Callable[..., dict[str, Any]], kind: str,
    drive: Any, no_leaks: None,
) -> None:  # fmt: skip
    """At every turn of the loop, until it is quicker than the cancellation, twice in a row."""
    budget = entries[0].size + 100 if kind == "evicting" else 2**30
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes=budget, drive=drive)
    manifest = Manifest(snapshot=1, schema={"image": "bytes", "label": "int64", "name": "str"}, shards=tuple(entries))
    finished = 0
    # While a thread works, the loop makes as many turns as it can: on a busy machine, thousands.
    for at in (*range(1, 300), *(int(300 * 1.2**power) for power in range(50))):
        await cache.acquire(entries[1])
        cache.release(entries[1])
        if kind == "cached":
            await cache.acquire(entries[0])
            cache.release(entries[0])
        else:
            for file in cache._folder.files():
                if file.name == entries[0].digest:
                    cache._folder.remove(file.file_name)
        reader = DatasetReader(manifest, cache.fetcher.engine, cache)
        task: asyncio.Task[Any]
        if kind == "sparse":
            task = asyncio.create_task(reader.read(3))
        else:
            task = asyncio.create_task(cache.acquire(entries[0]))
        for interrupting in (Interrupting(at), Interrupting(at + at % 3)):
            interrupting.arm(task)
        try:
            await task
            finished += 1
            if kind != "sparse":
                cache.release(entries[0])
        except asyncio.CancelledError:
            assert task.cancelled()
        assert cache._pins == {}
        assert cache._open == {}
        assert {path.suffix for path in tmp_path.iterdir()} <= {".shard", ".sparse"}
        if finished == 3:
            break
    assert finished == 3
    shard = await cache.acquire(entries[0])
    assert bytes(shard.payload("image", np.array([3]))[0]) == make_sample(3)["image"]
    cache.release(entries[0])
    await cache.close()
