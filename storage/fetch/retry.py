"""Decides whether and when to retry, and runs the retry loop; clock, randomness and sleep are arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from concurrent_loader.storage.errors import (
    ConfigurationError,
    ConnectionFailed,
    DeadlineExceeded,
    ProtocolViolation,
    StorageError,
    Throttled,
    TruncatedBody,
)

__all__ = ["RetryBudget", "RetryPolicy", "call_with_retries", "retry_delay_s", "wants_new_connection"]

T = TypeVar("T")

_BUDGET_SHARE = 0.2
_BUDGET_BURST = 16.0
_FIRST_CONTACT_S = 2.5
_FIRST_CONTACT_DELAY_S = 0.5
_SUSPECT_CONNECTION = (ConnectionFailed, TruncatedBody, DeadlineExceeded, ProtocolViolation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries and deadlines. No other retries take place, because those of the vendors' clients are off.

    The store's option ``connect_s`` limits the time to connect.

    Attributes:
        max_attempts: Number of consecutive failures without a new byte after which the last error is raised, 12 by
            default. A body that breaks off repeatedly, but delivers bytes every time, is resumed until the deadline.
        base_delay_s: Upper bound of the first pause, 0.1 s by default; it doubles with each further failure.
        max_delay_s: Upper bound of any pause, 8 s by default.
        throttle_factor: Factor by which a throttled request (503, 429) waits longer, 2 by default.
        first_byte_s: Longest time from a request to the first byte of its response, including the time to connect;
            15 s by default.
        min_bytes_per_s: Slowest acceptable rate of a body, 128 KiB/s by default.
        stall_window_s: Length of the window over which that rate is measured, 8 s by default.
        deadline_s: Longest time for one range, 180 s by default. The time starts with the first request. Queueing
            before it counts only while the endpoint is silent.

    Example:
        >>> from concurrent_loader.storage import RetryPolicy
        >>> patient = RetryPolicy(max_attempts=20, deadline_s=600)
        >>> patient.first_byte_s
        15.0
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
        """Returns the given policy, or the default policy for None.

        Raises:
            ConfigurationError: The argument is neither a policy nor None.
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
    """Limits the retries sent to a store to a share of its successful requests, plus a small reserve.

    Without a budget, retries multiply the load of a store that fails because of its load (Brooker, "Fixing retries with
    token buckets and circuit breakers", 2022). Not thread-safe: `concurrent_loader.storage.fetch.endpoint` locks.

    Args:
        share: Fraction of a token that each successful response adds.
        burst: Capacity in tokens; the budget starts full.
    """

    def __init__(self, *, share: float = _BUDGET_SHARE, burst: float = _BUDGET_BURST) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst

    def deposit(self) -> None:
        """Adds a share of a token, after a request that delivered bytes."""
        self._tokens = min(self._burst, self._tokens + self._share)

    def withdraw(self) -> bool:
        """Takes the token for one retry; returns False if no token is left."""
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
    jitter: float,
    within_budget: bool = True,
    is_first_contact: bool = False,
) -> float | None:
    """Returns the seconds to pause before the next attempt, or None to give up.

    The pause uses "full jitter": it is uniform below an exponentially growing ceiling, which spreads the clients of a
    throttling store best (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

    Args:
        policy: Limits of the call.
        error: Error of the failed attempt.
        attempts: Number of consecutive failed attempts, including this one.
        elapsed_s: Seconds since the first attempt began.
        jitter: Random number, uniform in [0, 1).
        within_budget: Whether the `RetryBudget` allows the retry. A retry beyond the budget is not dropped, but delayed
            as long as the policy allows.
        is_first_contact: Whether the endpoint has never responded. An unreachable address is then given up after 2.5 s,
            because the address is more likely wrong than just being restarted.
    """
    if not error.retryable or attempts >= policy.max_attempts:
        return None
    left_s = policy.deadline_s - elapsed_s
    if is_first_contact and isinstance(error, ConnectionFailed) and error.is_unreachable:
        delay = jitter * min(_FIRST_CONTACT_DELAY_S, policy.base_delay_s * 2.0 ** min(attempts - 1, 60))
        return delay if elapsed_s + delay < min(_FIRST_CONTACT_S, policy.deadline_s) else None
    if not within_budget:
        delay = min(policy.max_delay_s, 0.9 * left_s) * (0.5 + 0.5 * jitter)
        return delay if left_s > 0 else None
    ceiling = min(policy.max_delay_s, policy.base_delay_s * 2.0 ** min(attempts - 1, 60))
    if isinstance(error, Throttled):
        ceiling = min(policy.max_delay_s, ceiling * policy.throttle_factor)
    delay = jitter * ceiling
    return delay if delay < left_s else None


def wants_new_connection(error: StorageError) -> bool:
    """Returns whether the next attempt should avoid the connection of this error, and others of the same age."""
    return isinstance(error, _SUSPECT_CONNECTION)


async def call_with_retries(
    attempt: Callable[[], Awaitable[T]],
    delay_after: Callable[[StorageError], float],
    *,
    sleep: Callable[[float], Awaitable[None]],
    admit: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Repeats a call until it succeeds or is given up. Every retry of this package runs in this loop.

    Args:
        attempt: Function that makes one attempt. Only a `StorageError` may be retried.
        delay_after: Function that returns the seconds to pause after a failed attempt, or raises to give up.
        sleep: Awaitable pause.
        admit: Function that waits for permission before each attempt. Its errors end the call.

    Returns:
        The result of the first successful attempt.

    Raises:
        StorageError: ``delay_after`` or ``admit`` raised it.
    """
    while True:
        if admit is not None:
            await admit()
        try:
            return await attempt()
        except StorageError as error:
            delay_s = delay_after(error)
        await sleep(delay_s)
