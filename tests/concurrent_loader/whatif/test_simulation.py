"""Replays in virtual time: what arithmetic says is what they say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.virtual_time import run_in_virtual_time
from concurrent_loader.whatif.advice import advise
from concurrent_loader.whatif.cores import Cores
from concurrent_loader.whatif.run_trace import RunTrace
from concurrent_loader.whatif.simulation import Scenario, predict


def trace(**changes: Any) -> RunTrace:
    """60 batches of 64 samples, 1 ms of a core each, from shards of 256 samples and 8 MB at 30 ms and 80 MB/s."""
    steps, per_unit = 60, 4
    values: dict[str, Any] = {
        "step_units": [[step // per_unit] for step in range(steps)],
        "step_samples": [64] * steps,
        "unit_bytes": [8_000_000] * (steps // per_unit),
        "by_object": False,
        "in_flight": None,
        "num_threads": 2,
        "prefetch_batches": 4,
        "prefetch_bytes": 128 << 20,
        "cores": 2,
        "num_batches": steps,
        "num_samples": 64 * steps,
        "wall_s": 1.92,
        "wait_s": 1.8,
        "consumer_s": 0.06,
        "consumer_cpu_s": 0.06,
        "thread_s": 3.84,
        "thread_cpu_s": 3.84,
        "process_cpu_s": 3.9,
        "num_gets": 15,
        "num_bytes": 120_000_000,
        "request_s": 15 * 0.13,
        "first_byte_s": (0.03, 0.039, 0.04),
    }
    return RunTrace(**{**values, **changes})


class TestCores:
    @pytest.mark.parametrize(
        ("cores", "works", "seconds"), [(2, [1.0, 1.0], 1.0), (2, [1.0] * 4, 2.0), (1, [1.0, 3.0], 4.0)]
    )
    def test_work_takes_as_long_as_its_share_of_the_cores(self, cores: int, works: list[float], seconds: float) -> None:
        async def run() -> tuple[float, float]:
            shared = Cores(cores)
            await asyncio.gather(*map(shared.work, works))
            return asyncio.get_running_loop().time(), shared.busy_s

        assert run_in_virtual_time(run()) == pytest.approx((seconds, sum(works)), abs=1e-4)

    def test_short_work_ends_first(self) -> None:
        async def run() -> float:
            shared = Cores(1)
            long = asyncio.create_task(shared.work(3.0))
            await asyncio.sleep(1.0)
            await shared.work(0.5)
            ended = asyncio.get_running_loop().time()
            await long
            return ended

        assert run_in_virtual_time(run()) == pytest.approx(2.0, abs=1e-4)


class TestPredict:
    def test_cores_bound_decoding(self) -> None:
        recorded = trace()
        found = predict(recorded, Scenario.of(recorded))
        assert found.samples_s == pytest.approx(2000, rel=0.1)
        assert found.bound_by == "cores"
        assert found.num_gets == 15

    def test_rate_follows_the_cores(self) -> None:
        recorded = trace()
        rates = [predict(recorded, Scenario.of(recorded).with_cores(cores)).samples_s for cores in (1, 2, 4)]
        assert rates == pytest.approx([1000, 2000, 4000], rel=0.25)

    def test_accelerators_bound_a_slow_step(self) -> None:
        recorded = trace()
        scenario = replace(Scenario.of(recorded).with_cores(4), accelerators=2, step_s=0.1)
        found = predict(recorded, scenario)
        assert found.samples_s == pytest.approx(1280, rel=0.1)
        assert found.bound_by == "accelerators"
        assert found.utilisation > 0.95

    def test_a_step_that_takes_no_time_is_bound_by_what_it_waits_for(self) -> None:
        recorded = trace()
        found = predict(recorded, replace(Scenario.of(recorded), step_s=0.0))
        assert (found.bound_by, found.utilisation) == ("cores", 0.0)

    def test_too_many_accelerators_wait(self) -> None:
        recorded = trace()
        scenario = replace(Scenario.of(recorded), accelerators=4, step_s=0.064)  # 4,000 samples/s, twice what there is
        assert predict(recorded, scenario).utilisation == pytest.approx(0.5, abs=0.05)

    def test_a_far_store_bounds_few_requests_until_the_cache_is_full(self) -> None:
        recorded = trace(in_flight=1, thread_cpu_s=0.0, thread_s=0.0, process_cpu_s=0.06)
        scenario = replace(Scenario.of(recorded), latency_s=0.4)
        found = predict(recorded, scenario)
        assert found.samples_s == pytest.approx(256 / 0.5, rel=0.1)  # 0.1 s for the body of a shard
        assert found.bound_by == "store"
        cached = predict(recorded, replace(scenario, cached=1.0))
        assert cached.num_gets == 0
        assert cached.samples_s > 20 * found.samples_s

    def test_the_same_every_time(self) -> None:
        recorded = trace()
        assert predict(recorded, Scenario.of(recorded)) == predict(recorded, Scenario.of(recorded))

    def test_waiting_of_threads_counts_only_where_cores_were_free(self) -> None:
        idle = trace(thread_cpu_s=0.384, process_cpu_s=0.45)
        rate = predict(idle, Scenario.of(idle)).samples_s
        assert rate == pytest.approx(2000, rel=0.12)
        assert predict(idle, replace(Scenario.of(idle), num_threads=16, prefetch_batches=18)).samples_s > 2.5 * rate

    def test_objects_are_requested_one_by_one(self) -> None:
        units = [[4 * step + place for place in range(4)] for step in range(50)]
        recorded = trace(
            by_object=True, step_units=units, step_samples=[4] * 50, unit_bytes=[100_000] * 200, num_gets=200,
            num_bytes=20_000_000, num_samples=200, num_batches=50, request_s=200 * 0.03, in_flight=4,
            thread_cpu_s=0.0, thread_s=0.0, process_cpu_s=0.0, consumer_cpu_s=0.0, consumer_s=0.0,
        )  # fmt: skip
        found = predict(recorded, Scenario.of(recorded))
        assert found.num_gets == 200
        assert found.samples_s == pytest.approx(4 / 0.03, rel=0.15)


class TestAdvise:
    def test_the_cheapest_first_and_only_what_helps(self) -> None:
        recorded = trace(in_flight=1, thread_cpu_s=0.0, thread_s=0.0, process_cpu_s=0.06)
        scenario = replace(Scenario.of(recorded), latency_s=0.4)
        found = advise(recorded, scenario, predict(recorded, scenario))
        assert [one.change for one in found] == [
            'in_flight="auto"', "everything in the cache", "a store with 5 ms to the first byte",
        ]  # fmt: skip
        assert found[0].dollars_h == 0 < found[1].dollars_h < found[2].dollars_h

    def test_cores_for_those_who_lack_them(self) -> None:
        recorded = trace()
        found = advise(recorded, Scenario.of(recorded), predict(recorded, Scenario.of(recorded)))
        assert found[-1].change == "4 cores"
        assert found[-1].gain > 0.6


class TestRunTrace:
    def test_comes_back_from_its_file(self, tmp_path: Path) -> None:
        trace().save(tmp_path / "run.rec")
        assert RunTrace.load(tmp_path / "run.rec") == trace()
        assert (tmp_path / "run.rec").stat().st_size < 4096

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"version": 2}, "another version"),
            ({"step_units": [[15]] * 60}, "no size"),
            ({"cores": 0}, "not a recording"),
        ],
    )
    def test_refuses_what_it_cannot_replay(self, changes: dict[str, Any], match: str, tmp_path: Path) -> None:
        msgspec.structs.replace(trace(), **changes).save(tmp_path / "run.rec")
        with pytest.raises(ConfigurationError, match=match):
            RunTrace.load(tmp_path / "run.rec")

    def test_refuses_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "run.rec").write_bytes(b"{}")
        with pytest.raises(ConfigurationError, match="not a recording"):
            RunTrace.load(tmp_path / "run.rec")


def test_the_cached_share_is_that_of_the_recorded_batches() -> None:
    """The recording knows the shards of the whole epoch, of which it may have used a few."""
    recorded = trace(unit_bytes=[8_000_000] * 1000, num_bytes=15 * 8_000_000)
    assert Scenario.of(recorded).cached == 0
    assert Scenario.of(trace(unit_bytes=[8_000_000] * 1000, num_bytes=3 * 8_000_000)).cached == pytest.approx(0.8)
