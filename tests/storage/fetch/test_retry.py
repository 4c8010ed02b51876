from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    ServerError,
    Throttled,
    TruncatedBody,
)
from concurrent_loader.storage.fetch.retry import RetryBudget, RetryPolicy, retry_delay_s, wants_new_connection

POLICY = RetryPolicy(max_attempts=4, base_delay_s=1, max_delay_s=3, throttle_factor=2, deadline_s=60)


def test_the_ceiling_doubles_up_to_the_maximum() -> None:
    delays = [retry_delay_s(POLICY, ConnectionFailed("x"), attempts=n, elapsed_s=0, jitter=1.0) for n in (1, 2, 3, 4)]
    assert delays == [1, 2, 3, None]


def test_a_throttled_request_waits_longer() -> None:
    assert retry_delay_s(POLICY, Throttled("x"), attempts=1, elapsed_s=0, jitter=1.0) == 2


@pytest.mark.parametrize("error", [NotFound("x"), AccessDenied("x")])
def test_what_cannot_help_is_not_tried_again(error: NotFound | AccessDenied) -> None:
    assert retry_delay_s(POLICY, error, attempts=1, elapsed_s=0, jitter=0.0) is None


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_negative_above_the_maximum_or_past_the_deadline(
    attempts: int, elapsed_s: float, jitter: float
) -> None:
    delay_s = retry_delay_s(POLICY, Throttled("x"), attempts=attempts, elapsed_s=elapsed_s, jitter=jitter)
    if delay_s is not None:
        assert 0 <= delay_s <= POLICY.max_delay_s
        assert elapsed_s + delay_s < POLICY.deadline_s
        assert attempts < POLICY.max_attempts


def test_a_retry_beyond_the_budget_is_put_off_and_not_dropped() -> None:
    delays = [
        retry_delay_s(POLICY, ConnectionFailed("x"), attempts=1, elapsed_s=0, jitter=jitter, within_budget=False)
        for jitter in (0.0, 1.0)
    ]
    assert delays == [1.5, 3]
    late = retry_delay_s(POLICY, ConnectionFailed("x"), attempts=1, elapsed_s=58, jitter=1.0, within_budget=False)
    assert late == pytest.approx(1.8)


@given(st.lists(st.booleans(), max_size=400))
def test_the_budget_bounds_retries_by_a_share_of_the_good_answers(steps: list[bool]) -> None:
    budget = RetryBudget(share=0.2, burst=3)
    num_good = num_retries = 0
    for is_good in steps:
        if is_good:
            budget.deposit()
            num_good += 1
        else:
            num_retries += budget.withdraw()
    assert num_retries <= 3 + 0.2 * num_good + 1e-6


def test_a_connection_that_failed_is_not_used_again() -> None:
    assert wants_new_connection(TruncatedBody("x"))
    assert wants_new_connection(DeadlineExceeded("x"))
    assert not wants_new_connection(Throttled("x"))
    assert not wants_new_connection(ServerError("x"))


@pytest.mark.parametrize(
    "option", [{"max_attempts": 0}, {"deadline_s": 0}, {"min_bytes_per_s": -1}, {"stall_window_s": 0}]
)
def test_senseless_policies_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**option)  # type: ignore[arg-type]
