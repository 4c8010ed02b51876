"""Whether and when to try again: pure decisions, with the clock and the dice handed in."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import (
    ConfigurationError,
    ConnectionFailed,
    DeadlineExceeded,
    ProtocolViolation,
    StorageError,
    Throttled,
    TruncatedBody,
)

__all__ = ["RetryBudget", "RetryPolicy", "retry_delay_s", "wants_new_connection"]

_BUDGET_SHARE = 0.2
_BUDGET_BURST = 16.0
_FIRST_CONTACT_S = 2.5
_FIRST_CONTACT_DELAY_S = 0.5
_SUSPECT_CONNECTION = (ConnectionFailed, TruncatedBody, DeadlineExceeded, ProtocolViolation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to insist. The only place where retries and deadlines are decided; vendors' own are off.

    The deadline for making a connection is the store's option ``connect_s``.

    Attributes:
        max_attempts: Failures in a row without a new byte, the last of which is raised. A body that is cut again and
            again, but brings something every time, is resumed until the deadline.
        base_delay_s: Ceiling of the first pause; it doubles with each further one.
        max_delay_s: Ceiling of any pause.
        throttle_factor: A throttled request (503, 429) waits this much longer.
        first_byte_s: From sending a request to the first byte of its answer, making a connection included.
        min_bytes_per_s: The slowest body that is still worth waiting for.
        stall_window_s: A body that brings less than ``min_bytes_per_s * stall_window_s`` in so many seconds stalls.
        deadline_s: For one range, from its first request on. Of the wait for that one's place in flight only the time
            counts in which nothing came from the store for anybody.
    """

    max_attempts: int = 12
    base_delay_s: float = 0.1
    max_delay_s: float = 8.0
    throttle_factor: float = 2.0
    first_byte_s: float = 15.0
    min_bytes_per_s: float = 128 * 1024
    stall_window_s: float = 8.0
    deadline_s: float = 180.0

    @classmethod
    def of(cls, given: RetryPolicy | None) -> RetryPolicy:
        """Returns the policy that was given, or the default one for None.

        Raises:
            ConfigurationError: Something else was given.
        """
        if given is not None and not isinstance(given, RetryPolicy):
            raise ConfigurationError("retry must be a RetryPolicy or None", got=type(given).__name__)
        return given or cls()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError("max_attempts must be at least 1", got=self.max_attempts)
        for name in (
            "base_delay_s",
            "max_delay_s",
            "throttle_factor",
            "first_byte_s",
            "min_bytes_per_s",
            "stall_window_s",
            "deadline_s",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be positive", got=getattr(self, name))


class RetryBudget:
    """How many retries a store may be asked to bear: a share of its requests, and a small reserve.

    Without it, clients that retry multiply the load of a store that fails because of its load (Brooker, "Fixing retries
    with token buckets and circuit breakers", 2022). Not thread-safe: `storage.fetch.endpoint` locks.

    Args:
        share: Of a token that every good answer brings.
        burst: Tokens that can be saved; as many are there at first.
    """

    def __init__(self, *, share: float = _BUDGET_SHARE, burst: float = _BUDGET_BURST) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst

    def deposit(self) -> None:
        """A request brought bytes."""
        self._tokens = min(self._burst, self._tokens + self._share)

    def withdraw(self) -> bool:
        """Takes the token for one retry; False if there is none."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def retry_delay_s(
    policy: RetryPolicy,
    error: StorageError,
    *,
    attempts: int,
    elapsed_s: float,
    dice: float,
    within_budget: bool = True,
    is_first_contact: bool = False,
) -> float | None:
    """Decides after a failed attempt: seconds to pause before the next, or None to give up.

    Args:
        policy: The limits.
        error: What the attempt ended with.
        attempts: That failed in a row, this one included.
        elapsed_s: Since the first began.
        dice: Uniform in [0, 1).
        within_budget: Whether the `RetryBudget` allows it; a retry beyond the budget is not dropped but put off as far
            as the policy allows.
        is_first_contact: Whether nothing has ever come from the endpoint. An address at which nobody listens is then
            given up after 2.5 s: more probably it is wrong than just being restarted.

    The pause is "full jitter": uniform below an exponentially growing ceiling (Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015), which spreads the clients of a throttling store best.
    """
    if not error.retryable or attempts >= policy.max_attempts:
        return None
    left_s = policy.deadline_s - elapsed_s
    if is_first_contact and isinstance(error, ConnectionFailed) and error.is_unreachable:
        delay = dice * min(_FIRST_CONTACT_DELAY_S, policy.base_delay_s * 2.0 ** min(attempts - 1, 60))
        return delay if elapsed_s + delay < min(_FIRST_CONTACT_S, policy.deadline_s) else None
    if not within_budget:
        delay = min(policy.max_delay_s, 0.9 * left_s) * (0.5 + 0.5 * dice)
        return delay if left_s > 0 else None
    ceiling = min(policy.max_delay_s, policy.base_delay_s * 2.0 ** min(attempts - 1, 60))
    if isinstance(error, Throttled):
        ceiling = min(policy.max_delay_s, ceiling * policy.throttle_factor)
    delay = dice * ceiling
    return delay if delay < left_s else None


def wants_new_connection(error: StorageError) -> bool:
    """Whether the next attempt had better not use the connection that this error came over, nor one of its age."""
    return isinstance(error, _SUSPECT_CONNECTION)
