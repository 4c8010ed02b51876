from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import AccessDenied, ConfigurationError, ConnectionFailed, NotFound, Throttled
from storage.fetch.retry import RetryPolicy, attempt_timeout_s, retry_delay_s

POLICY = RetryPolicy(max_attempts=4, base_delay_s=1, max_delay_s=3, throttle_factor=2, deadline_s=60)


def test_the_ceiling_doubles_up_to_the_maximum() -> None:
    delays = [retry_delay_s(POLICY, ConnectionFailed("x"), attempts=n, elapsed_s=0, dice=1.0) for n in (1, 2, 3, 4)]
    assert delays == [1, 2, 3, None]


def test_a_throttled_request_waits_longer() -> None:
    assert retry_delay_s(POLICY, Throttled("x"), attempts=1, elapsed_s=0, dice=1.0) == 2


@pytest.mark.parametrize("error", [NotFound("x"), AccessDenied("x")])
def test_what_cannot_help_is_not_tried_again(error: NotFound | AccessDenied) -> None:
    assert retry_delay_s(POLICY, error, attempts=1, elapsed_s=0, dice=0.0) is None


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_negative_above_the_maximum_or_past_the_deadline(
    attempts: int, elapsed_s: float, dice: float
) -> None:
    delay_s = retry_delay_s(POLICY, Throttled("x"), attempts=attempts, elapsed_s=elapsed_s, dice=dice)
    if delay_s is not None:
        assert 0 <= delay_s <= POLICY.max_delay_s
        assert elapsed_s + delay_s < POLICY.deadline_s
        assert attempts < POLICY.max_attempts


def test_an_attempt_gets_time_for_its_size_but_not_beyond_the_deadline() -> None:
    policy = RetryPolicy(attempt_s=5, min_bytes_per_s=1000, deadline_s=60)
    assert attempt_timeout_s(policy, num_bytes=10_000, elapsed_s=0) == 15
    assert attempt_timeout_s(policy, num_bytes=10_000, elapsed_s=50) == 10
    assert attempt_timeout_s(policy, num_bytes=10_000, elapsed_s=99) == 0


@pytest.mark.parametrize("option", [{"max_attempts": 0}, {"deadline_s": 0}, {"min_bytes_per_s": -1}])
def test_senseless_policies_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**option)  # type: ignore[arg-type]
