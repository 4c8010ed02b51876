from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.pipeline.batch_iterator import END
from concurrent_loader.stats.loader_stats import StageClock, WallTime
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import (
    CAUSES,
    BatchStatus,
    BatchTrace,
    Span,
    attribute_wait,
    batch_status,
    spans_for,
)
from concurrent_loader.storage import ShardWriter


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


# -- dividing a wait ---------------------------------------------------------------------------------------------------


def only(**seconds: float) -> dict[str, float]:
    return {cause: pytest.approx(seconds.get(cause, 0.0)) for cause in CAUSES}


def test_a_wait_is_divided_by_where_the_batch_was() -> None:
    spans = (Span(10, 14, {"store": 1.0}), Span(14, 15, {"disk": 1.0}), Span(15, 19, {"decode": 0.75, "disk": 0.25}))
    assert attribute_wait(spans, 10, 19) == only(store=4, disk=2, decode=3)
    assert attribute_wait(spans, 9, 20) == only(store=4, disk=2, decode=3, other=2)
    assert attribute_wait(spans, 13, 17) == only(store=1, disk=1.5, decode=1.5)
    assert attribute_wait(spans, 30, 31) == only(other=1)
    assert attribute_wait((), 3, 5) == only(other=2)
    assert attribute_wait(spans_for("transform"), 3, 5) == only(transform=2)


@st.composite
def spans(draw: st.DrawFn) -> tuple[Span, ...]:
    times = sorted(draw(st.lists(st.floats(0, 1000), max_size=12)))
    spans = []
    for start, end in zip(times[::2], times[1::2], strict=False):
        parts = draw(st.lists(st.integers(0, 5), min_size=5, max_size=5))
        total = max(1, sum(parts))
        spans.append(Span(start, end, {cause: part / total for cause, part in zip(CAUSES, parts, strict=False)}))
    return tuple(spans)


@given(spans(), st.floats(0, 1000), st.floats(0, 1000))
def test_the_parts_add_up(spans: tuple[Span, ...], start_s: float, length_s: float) -> None:
    parts = attribute_wait(spans, start_s, start_s + length_s)
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(start_s + length_s - start_s)


# -- the trace of a batch --------------------------------------------------------------------------------------------


def test_waiting_for_a_shard_is_store_while_it_is_fetched_and_disk_otherwise(clock: Clock) -> None:
    trace = BatchTrace(3, clock)
    fetch: list[tuple[float, float | None]] = []
    with trace.waiting("ab.cls", lambda: fetch[0] if fetch else None):
        clock.move(1)
        assert batch_status([trace], clock()) == BatchStatus(
            "disk", "waits for shard ab.cls from the local drive", 1.0, 1
        )
        fetch.append((clock(), None))
        clock.move(5)
        at = batch_status([trace], clock())
        assert (at.cause, at.for_s) == ("store", 5.0)
        assert "ab.cls" in at.what
        fetch[0] = (fetch[0][0], clock())
        clock.move(2)
        assert batch_status([trace], clock()).cause == "disk"
    assert attribute_wait(trace.spans, 100, 108) == only(store=5, disk=3)


def test_a_fetch_that_began_before_the_wait_counts_from_its_beginning(clock: Clock) -> None:
    trace = BatchTrace(0, clock)
    with trace.waiting("ab.cls", lambda: (40.0, None)):
        clock.move(2)
    assert attribute_wait(trace.spans, 100, 102) == only(store=2)
    with trace.waiting("ab.cls", lambda: (40.0, 50.0)):
        clock.move(2)
    assert attribute_wait(trace.spans, 102, 104) == only(disk=2)


def test_time_in_threads_counts_as_the_threads_seconds_are_distributed(clock: Clock) -> None:
    trace, stages = BatchTrace(0, clock), StageClock(clock)
    with trace.in_threads():
        clock.move(4)  # no thread is free
        with stages.serving(trace):
            for stage, seconds in (("read", 1), ("decode", 2), ("transform", 4), ("collate", 1)):
                with stages.measure(stage):
                    clock.move(seconds)
        with stages.measure("decode"):  # for another batch
            clock.move(0)
    assert attribute_wait(trace.spans, 100, 112) == only(disk=1.5, decode=3, transform=6, collate=1.5)
    assert stages["transform"] == 4


def test_threads_that_measured_nothing_explain_nothing(clock: Clock) -> None:
    trace = BatchTrace(0, clock)
    with trace.in_threads():
        clock.move(4)
    assert attribute_wait(trace.spans, 100, 104) == only(other=4)


def test_whereabouts_name_the_thread_that_has_been_at_it_longest(clock: Clock) -> None:
    first, second = BatchTrace(6, clock), BatchTrace(7, clock)
    clock.move(1)
    with second.in_threads(), first.in_threads(), second.working("decode"):
        clock.move(2)
        at = batch_status([second, first], clock())
        assert (at.cause, at.for_s, at.num_batches) == ("decode", 2.0, 2)
        assert at.what == "waits for a free thread; 1 thread busy, the longest decoding"
        with first.working("transform"):
            clock.move(3)
            at = batch_status([second, first], clock())
            assert (at.cause, at.for_s) == ("transform", 3.0)
            assert at.what == "is in the transform, with 1 thread"


def test_whereabouts_of_nothing() -> None:
    assert batch_status([], 5.0) == BatchStatus()


# -- wall time ---------------------------------------------------------------------------------------------------------


def test_wall_time_has_no_gap(clock: Clock) -> None:
    stages = StageClock(clock)
    wall = WallTime(stages)
    clock.move(3)
    wall.count_wait((Span(100, 102, {"store": 1.0}),))
    clock.move(0.5)
    wall.count("device")
    clock.move(7)
    wall.count("consumer")
    clock.move(1)
    wall.count_wait(())
    found = stages.wall()
    assert found == pytest.approx(
        {
            "total_s": 11.5, "wait_s": 4.0, "device_s": 0.5, "consumer_s": 7.0,
            "wait_store_s": 2.0, "wait_disk_s": 0.0, "wait_decode_s": 0.0, "wait_transform_s": 0.0,
            "wait_collate_s": 0.0, "wait_device_s": 0.0, "wait_other_s": 2.0,
        }
    )  # fmt: skip


class Ready:
    """Batches that take as long as they are told to, by the clock."""

    def __init__(self, clock: Clock, items: list[tuple[float, Any, tuple[Span, ...]]]) -> None:
        self._clock, self._items, self.spans = clock, items, ()
        self.grace_period_s: float | None = None

    def start(self) -> None:
        self._clock.move(0.25)

    def take(self, timeout_s: float | None = None) -> Any:
        seconds, item, self.spans = self._items.pop(0)
        self._clock.move(seconds)
        if isinstance(item, BaseException):
            raise item
        return item

    def batch_status(self) -> BatchStatus:
        return BatchStatus()

    def pipeline_status(self) -> PipelineStatus:
        return PipelineStatus()

    def stop(self, grace_period_s: float = 30.0) -> None:
        self.grace_period_s = grace_period_s


def timed_loader(
    dataset: ShardDataset, clock: Clock, monkeypatch: pytest.MonkeyPatch, batches: Ready
) -> ConcurrentDataLoader:
    monkeypatch.setattr("concurrent_loader.native_loader.StageClock", lambda: StageClock(clock))
    loader = ConcurrentDataLoader(dataset, 10)
    monkeypatch.setattr(loader, "_batches", lambda epoch, step: batches)

    def hand_over(item: Any) -> Any:
        clock.move(0.125)
        return item

    monkeypatch.setattr(loader, "_to_device", hand_over)
    return loader


def adds_up(stats: Any) -> None:
    assert stats.total_s == pytest.approx(stats.wait_s + stats.device_s + stats.consumer_s)
    assert stats.wait_s == pytest.approx(sum(getattr(stats, f"wait_{cause}_s") for cause in CAUSES))


def test_a_loaders_statistics_add_up_to_the_wall_time(
    dataset: ShardDataset, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, decode = (Span(0, 1000, {cause: 1.0}) for cause in ("store", "decode"))
    batches = Ready(clock, [(2, "a", (store,)), (3, "b", (decode,)), (0.5, END, ())])
    loader = timed_loader(dataset, clock, monkeypatch, batches)
    for _ in loader:
        clock.move(10)
    stats = loader.stats
    assert stats.total_s == pytest.approx(clock() - 100)
    assert (stats.wait_store_s, stats.wait_decode_s, stats.wait_other_s) == pytest.approx((2.25, 3, 0.5))
    assert (stats.consumer_s, stats.device_s) == pytest.approx((20, 0.25))
    assert stats.first_batch_s == pytest.approx(2.25)
    adds_up(stats)


@pytest.mark.parametrize("how", ["break", "raise", "failure"])
def test_they_add_up_however_the_iteration_ends(
    dataset: ShardDataset, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    items: list[tuple[float, Any, tuple[Span, ...]]] = [(2, "a", ()), (3, OSError("gone"), ())]
    loader = timed_loader(dataset, clock, monkeypatch, Ready(clock, items))

    def train() -> None:
        for _ in loader:
            clock.move(1)
            if how == "break":
                break
            if how == "raise":
                raise RuntimeError("out of memory")

    if how == "break":
        train()
    else:
        with pytest.raises((RuntimeError, OSError)):
            train()
    assert loader.stats.total_s == pytest.approx(clock() - 100)
    adds_up(loader.stats)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_real_statistics_add_up(url: str, num_threads: int) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(
            dataset, 16, shuffle=True, num_threads=num_threads, transform=lambda sample: sample
        )
        for _ in range(2):
            list(loader)
        adds_up(loader.stats)
        assert loader.stats.wait_s > 0


def test_a_wait_is_told_by_what_took_the_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard, one batch, one thread: the clock moves where something takes time, and the statistics say where."""
    monkeypatch.setattr("concurrent_loader.native_loader.StageClock", lambda: StageClock(clock))

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        clock.move(0.01)
        return sample

    def collate(samples: list[dict[str, Any]]) -> int:
        clock.move(3)
        return len(samples)

    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"data": "bytes"}) as writer:
        for number in range(100):
            writer.write({"data": bytes([number])})
    with ShardDataset(url) as dataset:
        cache = dataset.reader.cache
        real = cache.fetcher.engine.fetch

        async def fetch(*args: Any, **options: Any) -> Any:
            clock.move(5)
            return await real(*args, **options)

        monkeypatch.setattr(cache, "_clock", clock)
        monkeypatch.setattr(cache.fetcher.engine, "fetch", fetch)
        loader = ConcurrentDataLoader(
            dataset, 100, transform=slow, collate_fn=collate, decode={"data": decode_in(clock, 0.02)}, num_threads=1
        )
        assert list(loader) == [100]
        stats = loader.stats
        found = stats.wait_store_s, stats.wait_decode_s, stats.wait_transform_s, stats.wait_collate_s
        assert found == pytest.approx((5, 2, 1, 3))
        assert stats.wait_s == pytest.approx(11)
        adds_up(stats)


def decode_in(clock: Clock, seconds: float) -> Callable[[bytes], torch.Tensor]:
    def decode(data: bytes) -> torch.Tensor:
        clock.move(seconds)
        return torch.tensor(len(data))

    return decode
