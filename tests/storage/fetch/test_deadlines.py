from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.fetch.deadlines import CallDeadline, StallWatch, attempt_timeout_s, for_size
from concurrent_loader.storage.fetch.retry import RetryPolicy

POLICY = RetryPolicy(first_byte_s=5, min_bytes_per_s=1000, stall_window_s=10, deadline_s=60)


def test_an_attempt_gets_time_for_its_size_but_not_beyond_the_deadline() -> None:
    assert attempt_timeout_s(POLICY, num_bytes=10_000, elapsed_s=0) == 15
    assert attempt_timeout_s(POLICY, num_bytes=10_000, elapsed_s=50) == 10
    assert attempt_timeout_s(POLICY, num_bytes=10_000, elapsed_s=99) == 0


def test_more_bytes_than_a_range_has_get_a_later_deadline() -> None:
    assert for_size(POLICY, 8 << 20) is POLICY
    assert for_size(POLICY, (8 << 20) + 5000).deadline_s == pytest.approx(65)


def test_a_body_that_stops_is_given_up_within_a_window() -> None:
    watch = StallWatch(POLICY, piece_bytes=100)
    assert watch.allowed_s == 10
    watch.count(3, 4000)
    assert watch.allowed_s == 7
    watch.count(1, 6000)
    assert watch.allowed_s == 10


def test_a_window_is_never_too_short_for_one_piece() -> None:
    assert StallWatch(POLICY, piece_bytes=50_000).allowed_s == 50


@given(st.lists(st.floats(0.01, 9.9), min_size=1, max_size=100))
def test_a_body_at_the_slowest_pace_or_faster_never_stalls(waits_s: list[float]) -> None:
    watch = StallWatch(POLICY, piece_bytes=10_000)
    for wait_s in waits_s:
        assert watch.allowed_s >= wait_s
        watch.count(wait_s, 10_000)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=200))
def test_a_dribble_stalls_after_a_window_at_most(waits_s: list[float]) -> None:
    watch = StallWatch(POLICY, piece_bytes=100)
    waited_s = 0.0
    for wait_s in waits_s:
        if watch.allowed_s <= 0:
            break
        watch.count(wait_s, 1)
        waited_s += wait_s
    assert waited_s <= 10 + 5


def test_before_the_first_request_only_silence_counts() -> None:
    deadline = CallDeadline(100.0)
    assert deadline.elapsed_s(130.0, last_activity_s=-math.inf) == 30
    assert deadline.elapsed_s(130.0, last_activity_s=50.0) == 30  # that was before it began
    assert deadline.elapsed_s(130.0, last_activity_s=120.0) == 10
    deadline.start(last_activity_s=120.0)
    assert deadline.elapsed_s(140.0, last_activity_s=139.0) == 20  # and from then on everything
    deadline.start(last_activity_s=139.0)
    assert deadline.elapsed_s(140.0, last_activity_s=139.0) == 20
