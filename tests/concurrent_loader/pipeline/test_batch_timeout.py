from __future__ import annotations

import logging
from typing import Any

import pytest

from concurrent_loader import LoaderTimeout
from concurrent_loader.pipeline.batch_timeout import BatchTimeout, describe
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchStats


class Late:
    """A batch that comes after so many seconds; the clock moves while one waits for it."""

    def __init__(self, *after_s: float) -> None:
        self.now_s = 50.0
        self._after_s = list(after_s)
        self.num_asked = 0

    def clock(self) -> float:
        return self.now_s

    def start(self) -> None:
        raise AssertionError

    def take(self, timeout_s: float | None = None) -> Any:
        if timeout_s is not None and self._after_s[0] > timeout_s:
            self._after_s[0] -= timeout_s
            self.now_s += timeout_s
            raise TimeoutError
        self.now_s += self._after_s.pop(0)
        return "batch"

    @property
    def spans(self) -> Spans:
        return ()

    def batch_status(self) -> BatchStatus:
        self.num_asked += 1
        return BatchStatus("store", "waits for shard ab.cls from the store", 9.5, 4)

    def stop(self, grace_period_s: float = 0.0) -> None:
        raise AssertionError


def patience(batches: Late, *, warn_s: float | None, timeout_s: float | None) -> BatchTimeout:
    facts = describe(FetchStats(in_flight=7, limit=16, num_retries=3, num_throttled=2), CacheStats(num_misses=5))
    return BatchTimeout(warn_s=warn_s, timeout_s=timeout_s, clock=batches.clock, facts=lambda: facts)


def test_what_comes_in_time_is_taken_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    batches = Late(9.9)
    assert patience(batches, warn_s=10, timeout_s=600).take(batches, name="batch 0") == "batch"
    assert not caplog.records
    assert not batches.num_asked


def test_a_late_batch_is_one_warning_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    batches = Late(300)
    assert patience(batches, warn_s=10, timeout_s=600).take(batches, name="batch 12 of epoch 0") == "batch"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    said = caplog.messages[0]
    for fact in (
        "batch 12 of epoch 0 has not come for 10.0 s", "waiting for store", "shard ab.cls", "for 9.5 s",
        "4 batches being made", "7 of 16 requests in flight", "3 retries", "2 throttled", "5 misses",
    ):  # fmt: skip
        assert fact in said


def test_warnings_are_a_minute_apart(caplog: pytest.LogCaptureFixture) -> None:
    batches = Late(11, 11, 40, 30)
    waiting = patience(batches, warn_s=10, timeout_s=None)
    for name in "abcd":
        waiting.take(batches, name=name)
    assert [said[0] for said in caplog.messages] == ["a", "d"]


def test_a_batch_that_does_not_come_is_an_error_that_says_why(caplog: pytest.LogCaptureFixture) -> None:
    batches = Late(1e9)
    with pytest.raises(LoaderTimeout, match=r"batch 3 did not arrive within 60 s; it waits for shard ab.cls") as caught:
        patience(batches, warn_s=10, timeout_s=60).take(batches, name="batch 3")
    assert caught.value.stage == "store"
    assert "2 throttled" in str(caught.value)
    assert batches.now_s == 110
    assert len(caplog.records) == 1


@pytest.mark.parametrize("never", [None, 0, 0.0])
def test_deadlines_may_be_none(never: float | None, caplog: pytest.LogCaptureFixture) -> None:
    batches = Late(1e9)
    assert patience(batches, warn_s=never, timeout_s=never).take(batches, name="batch 0") == "batch"
    assert not caplog.records


@pytest.mark.parametrize("wrong", [-1, "10 s", True, float("nan")])
@pytest.mark.parametrize("name", ["warn_s", "timeout_s"])
def test_what_is_no_deadline_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        patience(Late(1), **{"warn_s": None, "timeout_s": None, name: wrong})
