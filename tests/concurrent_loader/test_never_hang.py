"""Whatever does not come back, an iteration ends before its deadline, says why, and the process can go on or end."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from concurrent_loader import (
    ConcurrentDataLoader,
    LoaderError,
    LoaderTimeout,
    ShardDataset,
    TransformError,
    native_loader,
)

SOON_S = 0.1


class Stuck:
    """Does not return before the test ends."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, argument: Any) -> Any:
        self.inside.set()
        assert self.go.wait(60)
        return argument


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.go.set()
    for thread in decode_threads():
        thread.join(10)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_loader, "_HUNG_S", 0.05)


def decode_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def waits_from(event: threading.Event, loader: ConcurrentDataLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the loader's patience begin when something has happened: a busy machine takes its time until then."""
    taking = loader._batch_timeout.take

    def take(*args: Any, **options: Any) -> Any:
        assert event.wait(30)
        return taking(*args, **options)

    monkeypatch.setattr(loader._batch_timeout, "take", take)


@pytest.mark.parametrize("stage", ["transform", "collate", "decode"])
def test_users_code_that_never_returns_ends_in_an_error(
    url: str,
    tmp_path: Path,
    stuck: Stuck,
    stage: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: dict[str, Any] = {
        "transform": {"transform": stuck},
        "collate": {"collate_fn": stuck},
        "decode": {"decode": {"data": stuck}},
    }[stage]
    with ShardDataset(url, cache_dir=tmp_path) as dataset:
        hung = ConcurrentDataLoader(dataset, 8, num_threads=1, timeout=SOON_S, **how)
        waits_from(stuck.inside, hung, monkeypatch)
        with pytest.raises(LoaderTimeout, match=f"batch 0 of epoch 0 did not arrive within {SOON_S} s") as caught:
            list(hung)
        assert caught.value.stage == stage
        assert getattr(hung.stats, f"wait_{stage}_s") >= SOON_S
        assert "left behind" in caplog.text
        assert decode_threads()
        cache = dataset.reader.cache
        assert cache._pins, "what a thread may still read from is kept open"
        # The loader, the data set and the process go on.
        assert sum(len(batch["label"]) for batch in ConcurrentDataLoader(dataset, 8)) == 203
        stuck.go.set()
        for thread in decode_threads():
            thread.join(10)

        async def settled() -> None:
            """What was left behind is let go of by a callback of the loop."""

        dataset.loop.run(settled())
        assert cache._pins == {}
        assert cache._open == {}


class Own(BaseException):
    """As test runners have them."""


@pytest.mark.parametrize("raised", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, Own])
@pytest.mark.parametrize("stage", ["transform", "collate", "decode"])
def test_what_no_coroutine_can_raise_is_an_error_and_the_data_set_goes_on(
    dataset: ShardDataset, stage: str, raised: type[BaseException]
) -> None:
    def fail(argument: Any) -> Any:
        raise raised("of the user's code")

    how: dict[str, Any] = {
        "transform": {"transform": fail},
        "collate": {"collate_fn": fail},
        "decode": {"decode": {"data": fail}},
    }[stage]
    with pytest.raises(LoaderError, match=f"{raised.__name__}: of the user's code") as caught:
        list(ConcurrentDataLoader(dataset, 8, timeout=30, **how))
    assert not isinstance(caught.value, LoaderTimeout)
    assert not decode_threads()
    if stage == "transform" and raised in (StopIteration, SystemExit):
        assert isinstance(caught.value, TransformError)
        assert caught.value.sample is not None
    assert sum(len(batch["label"]) for batch in ConcurrentDataLoader(dataset, 8)) == 203


def test_one_sample_is_enough(dataset: ShardDataset, stuck: Stuck) -> None:
    def sometimes(sample: dict[str, Any]) -> dict[str, Any]:
        return stuck(sample) if sample["label"] == 57 else sample

    arrived = 0
    hung = ConcurrentDataLoader(dataset, 10, transform=sometimes, timeout=None, num_threads=3)
    with pytest.raises(LoaderTimeout, match="batch 5 of epoch 0") as caught:
        for _ in hung:
            arrived += 1
            if arrived == 5:
                assert stuck.inside.wait(30)
                hung._batch_timeout.timeout_s = SOON_S
    assert arrived == 5
    assert caught.value.stage == "transform"


def test_a_store_that_never_answers(dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch, baseline: None) -> None:
    asked = threading.Event()

    async def fetch(*args: object, **options: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(dataset.reader.cache.fetcher.engine, "fetch", fetch)
    hung = ConcurrentDataLoader(dataset, 8, timeout=SOON_S)
    waits_from(asked, hung, monkeypatch)
    with pytest.raises(LoaderTimeout, match=r"waits for shard \S+ from the store") as caught:
        list(hung)
    assert caught.value.stage == "store"
    assert "requests in flight" in str(caught.value)
    assert not decode_threads()


def test_closing_the_data_set_does_not_wait_for_what_was_left_behind(
    url: str, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShardDataset(url) as dataset, pytest.raises(LoaderTimeout):
        hung = ConcurrentDataLoader(dataset, 8, transform=stuck, timeout=SOON_S)
        waits_from(stuck.inside, hung, monkeypatch)
        list(hung)
    assert decode_threads()
    stuck.go.set()
    for thread in decode_threads():
        thread.join(10)
        assert not thread.is_alive()


def test_a_slow_batch_is_told_of_once(
    url: str, caplog: pytest.LogCaptureFixture, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Go(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            stuck.go.set()

    handler = Go()
    logging.getLogger("concurrent_loader.pipeline.batch_timeout").addHandler(handler)
    try:
        with ShardDataset(url) as dataset:
            slow = ConcurrentDataLoader(dataset, 8, transform=stuck, slow_batch_warning_s=0.05, num_threads=1)
            waits_from(stuck.inside, slow, monkeypatch)
            assert sum(len(batch["label"]) for batch in slow) == 203
    finally:
        logging.getLogger("concurrent_loader.pipeline.batch_timeout").removeHandler(handler)
    said = [
        record.getMessage() for record in caplog.records if record.name == "concurrent_loader.pipeline.batch_timeout"
    ]
    assert len(said) == 1
    assert "batch 0 of epoch 0 has not come for" in said[0]
    assert "waiting for transform" in said[0]


@pytest.mark.processes
def test_a_hung_transform_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    program = f"""
        import threading
        from concurrent_loader import ConcurrentDataLoader, LoaderTimeout, ShardDataset, native_loader
        from concurrent_loader.pipeline import thread_pool
        from concurrent_loader.storage import ShardWriter
        thread_pool._EXIT_S = native_loader._HUNG_S = 0.05
        inside = threading.Event()

        def never_returns(sample):
            inside.set()
            threading.Event().wait()

        with ShardWriter({str(tmp_path)!r}, columns={{"label": "int64"}}) as writer:
            for number in range(100):
                writer.write({{"label": number}})
        with ShardDataset({str(tmp_path)!r}) as dataset:
            hung = ConcurrentDataLoader(dataset, 10, transform=never_returns, timeout=0.05, num_threads=1)
            taking = hung._batch_timeout.take
            hung._batch_timeout.take = lambda *args, **options: (inside.wait(30), taking(*args, **options))[1]
            try:
                list(hung)
            except LoaderTimeout as error:
                print(error.stage)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "transform\n"), done.stderr


def test_stopping_in_time_needs_no_patience(dataset: ShardDataset, caplog: pytest.LogCaptureFixture) -> None:
    for _ in ConcurrentDataLoader(dataset, 8, decode={"data": lambda data: torch.tensor(len(data))}):
        break
    assert not decode_threads()
    assert not caplog.records
