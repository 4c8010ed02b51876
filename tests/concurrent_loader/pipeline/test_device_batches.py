from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.errors import DecodeError, DeviceError, DeviceMemoryError, LoaderError
from concurrent_loader.pipeline.batch_iterator import END, Failure
from concurrent_loader.pipeline.device_batches import BATCHES_AHEAD, DeviceBatches
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.wait_attribution import BatchStatus, Span, Spans, attribute_wait

sys.path.append(str(Path(__file__).parents[1] / "device"))
from fake_device import FakeDevice


class Made:
    """Batches that are made when the test says so."""

    def __init__(self) -> None:
        self.ready: list[Any] = []
        self.spans: Spans = ()
        self.asked: list[float | None] = []
        self.threads: set[int] = set()
        self.stopped: list[float] = []

    def start(self) -> None:
        self.threads.add(threading.get_ident())

    def take(self, timeout_s: float | None = None) -> Any:
        self.threads.add(threading.get_ident())
        self.asked.append(timeout_s)
        if not self.ready:
            raise TimeoutError
        return self.ready.pop(0)

    def batch_status(self) -> BatchStatus:
        self.threads.add(threading.get_ident())
        return BatchStatus("store", "waits for a shard", 1.0, 3)

    def stop(self, grace_period_s: float = 30.0) -> None:
        self.threads.add(threading.get_ident())
        self.stopped.append(grace_period_s)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def batch(step: int) -> Batch:
    return Batch({"x": torch.full((4,), step)}, step=step)


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    fake = FakeDevice()
    yield fake
    fake.block.set()
    assert not fake.wrong


@pytest.fixture
def batches(made: Made, fake: FakeDevice, clock: Clock) -> Iterator[DeviceBatches]:
    batches = DeviceBatches(
        made, torch.device("cuda", 0), pinned=True, clock=StageClock(clock), open_device=lambda device, pinned: fake
    )
    batches.start()
    yield batches
    fake.block.set()
    batches.stop(5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("device_")]


def taken(batches: DeviceBatches) -> Any:
    return batches.take(10)


def test_batches_come_in_order_and_then_the_end(batches: DeviceBatches, made: Made) -> None:
    made.ready = [*map(batch, range(7)), END]
    steps = [taken(batches) for _ in range(7)]
    assert [each.step for each in steps] == list(range(7))
    assert [each["x"].tolist() for each in steps] == [[step] * 4 for step in range(7)]
    assert batches.take(10) is END
    assert batches.take(10) is END
    assert made.threads == {threading.get_ident()}  # nobody else touches who makes them


def test_it_takes_no_more_ahead_than_it_says(batches: DeviceBatches, made: Made) -> None:
    made.ready = [*map(batch, range(9))]
    taken(batches)
    assert len(made.ready) == 9 - 1 - BATCHES_AHEAD
    taken(batches)
    assert len(made.ready) == 9 - 2 - BATCHES_AHEAD


def test_a_failure_comes_after_the_batches_before_it(batches: DeviceBatches, made: Made) -> None:
    failure = Failure(LoaderError("something"))
    made.ready = [batch(0), failure]
    assert taken(batches).step == 0
    assert batches.take(10) is failure


def test_what_is_no_batch_goes_by(batches: DeviceBatches, made: Made, fake: FakeDevice) -> None:
    made.ready = [["a", 1], END]
    assert taken(batches) == ["a", 1]
    assert not fake.log


def test_a_failing_device_is_a_failure_in_the_batch_s_place(
    batches: DeviceBatches, made: Made, fake: FakeDevice
) -> None:
    made.ready = [batch(0), Batch({"x": torch.zeros(1000)}, step=1), batch(2), END]
    fake.memory_bytes = 500
    assert taken(batches).step == 0
    outcome = batches.take(10)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, DeviceMemoryError)
    assert batches.take(10) is outcome  # nothing comes after it


def test_nothing_is_staged_after_a_failure(batches: DeviceBatches, made: Made, fake: FakeDevice) -> None:
    made.ready = [batch(0), Batch({"x": torch.zeros(1000)}, step=1), batch(2), END]
    fake.memory_bytes = 500
    assert taken(batches).step == 0
    after = batches._ahead[1].future
    assert isinstance(batches.take(10), Failure)
    after.result(10)
    assert len(fake.copied_bytes) == 1


def test_what_comes_at_the_very_moment_of_the_time_out_is_not_lost(batches: DeviceBatches, made: Made) -> None:
    made.ready = [batch(0), batch(1), END]
    assert taken(batches).step == 0
    future = batches._ahead[0].future
    result = future.result

    def late(timeout_s: float | None) -> Any:
        result(10)
        raise TimeoutError

    future.result = late  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        batches.take(0.01)
    future.result = result  # type: ignore[method-assign]
    assert taken(batches).step == 1
    assert batches.take(10) is END


def test_an_error_keeps_no_frame_with_the_device_s_memory(batches: DeviceBatches, made: Made, fake: FakeDevice) -> None:
    made.ready = [batch(0)]
    fake.memory_bytes = 1
    outcome = batches.take(10)
    trace = outcome.error.__traceback__
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert not [value for frame in frames for value in frame.f_locals.values() if isinstance(value, torch.Tensor)]


def test_a_device_that_cannot_be_opened(made: Made) -> None:
    def fail(device: torch.device, pinned: bool) -> FakeDevice:
        raise DeviceError("no driver")

    batches = DeviceBatches(made, torch.device("cuda", 0), pinned=True, clock=StageClock(), open_device=fail)
    made.ready = [batch(0)]
    outcome = batches.take(10)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, DeviceError)
    batches.stop(5)
    assert made.stopped == [5]


def test_a_wait_is_over_in_time_and_may_be_repeated(batches: DeviceBatches, made: Made, fake: FakeDevice) -> None:
    with pytest.raises(TimeoutError):
        batches.take(0.01)
    assert batches.batch_status() == BatchStatus("store", "waits for a shard", 1.0, 3)
    made.ready = [batch(0)]
    assert taken(batches).step == 0


def test_a_stage_s_own_time_out_is_a_failure_and_no_time_out(
    batches: DeviceBatches, made: Made, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(num_bytes: int) -> torch.Tensor:
        raise TimeoutError("of the driver")

    monkeypatch.setattr(fake, "host_memory", fail)
    made.ready = [batch(0)]
    outcome = batches.take(10)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, TimeoutError)


def test_who_waits_for_the_device_is_told_so(
    batches: DeviceBatches, made: Made, fake: FakeDevice, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    copy = fake.copy
    monkeypatch.setattr(fake, "copy", lambda host: copy(host) if go.wait(30) else None)
    made.ready = [batch(0), batch(1)]
    with pytest.raises(TimeoutError):
        batches.take(0.01)
    clock.now_s += 5
    at = batches.batch_status()
    assert (at.cause, at.for_s, at.num_batches) == ("device", 5.0, 5)
    assert "cuda:0" in at.what
    go.set()
    assert taken(batches).step == 0


def test_a_wait_for_the_device_counts_for_the_device(
    batches: DeviceBatches, made: Made, fake: FakeDevice, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = fake.copy

    def slow(host: torch.Tensor) -> torch.Tensor:
        clock.now_s += 2
        return copy(host)

    monkeypatch.setattr(fake, "copy", slow)
    made.ready = [batch(0)]
    made.spans = (Span(97, 100, {"store": 1.0}),)
    assert taken(batches).step == 0
    assert batches.spans == (Span(97, 100, {"store": 1.0}), Span(100, 102, {"device": 1.0}))
    parts = attribute_wait(batches.spans, 96, 102)
    assert (parts["store"], parts["device"], parts["other"]) == (3, 2, 1)


def test_a_batch_that_waited_for_the_one_before_it_waited_for_the_device(batches: DeviceBatches) -> None:
    batches._free_since_s = 10.0
    assert batches._staging((Span(2, 8, {"decode": 1.0}),), 10.5, 12) == Span(8, 12, {"device": 1.0})
    assert batches._staging((Span(2, 11, {"decode": 1.0}),), 11.5, 12) == Span(11.5, 12, {"device": 1.0})
    assert batches._staging((), 11, 12) == Span(11, 12, {"device": 1.0})


def test_leaving_ends_the_stage_and_then_who_makes_batches(
    batches: DeviceBatches, made: Made, fake: FakeDevice
) -> None:
    made.ready = [*map(batch, range(5))]
    taken(batches)
    batches.stop(5)
    assert fake.closed == 1
    assert made.stopped == [5]
    assert batches._thread.join(0)


def test_a_device_that_does_not_answer_is_left_behind(
    made: Made, fake: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, reached = threading.Event(), threading.Event()
    copy = fake.copy

    def hang(host: torch.Tensor) -> torch.Tensor:
        reached.set()
        assert go.wait(30)
        return copy(host)

    monkeypatch.setattr(fake, "copy", hang)
    batches = DeviceBatches(
        made, torch.device("cuda", 0), pinned=True, clock=StageClock(), open_device=lambda device, pinned: fake
    )
    made.ready = [batch(0)]
    with pytest.raises(TimeoutError):
        batches.take(0.01)
    assert reached.wait(30)
    batches.stop(0.01)
    assert "left behind" in caplog.text
    assert made.stopped == [0.01]
    go.set()
    assert batches._thread.join(10)


def test_an_error_of_a_sample_is_the_sample_s(
    batches: DeviceBatches, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DecodeError("damaged", sample=17)

    def fail(item: Batch) -> Any:
        raise error

    made.ready = [batch(0)]
    monkeypatch.setattr("concurrent_loader.device.stage.DeviceStage.stage", lambda self, item: fail(item))
    outcome = batches.take(10)
    assert isinstance(outcome, Failure)
    assert outcome.error is error
