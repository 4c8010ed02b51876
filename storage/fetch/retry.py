"""Whether and when to try again: pure decisions, with the clock and the dice handed in."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import ConfigurationError, StorageError, Throttled

__all__ = ["RetryPolicy", "attempt_timeout_s", "retry_delay_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to insist. The only place where retries and deadlines are decided; vendors' own are off.

    Attributes:
        max_attempts: Requests for one range, the first included.
        base_delay_s: Ceiling of the first pause; it doubles with each further one.
        max_delay_s: Ceiling of any pause.
        throttle_factor: A throttled request (503, 429) waits this much longer.
        attempt_s: For connecting and the first byte of one attempt.
        min_bytes_per_s: The slowest body that is still worth waiting for; an attempt may take
            ``attempt_s + bytes / min_bytes_per_s``.
        deadline_s: For one range, all attempts and pauses included.
    """

    max_attempts: int = 8
    base_delay_s: float = 0.1
    max_delay_s: float = 8.0
    throttle_factor: float = 2.0
    attempt_s: float = 15.0
    min_bytes_per_s: float = 512 * 1024
    deadline_s: float = 180.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError("max_attempts must be at least 1", got=self.max_attempts)
        for name in ("base_delay_s", "max_delay_s", "throttle_factor", "attempt_s", "min_bytes_per_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be positive", got=getattr(self, name))


def attempt_timeout_s(policy: RetryPolicy, *, num_bytes: int, elapsed_s: float) -> float:
    """How long one attempt may take, in seconds: what its size justifies, cut by what is left until the deadline."""
    return max(0.0, min(policy.attempt_s + num_bytes / policy.min_bytes_per_s, policy.deadline_s - elapsed_s))


def retry_delay_s(
    policy: RetryPolicy, error: StorageError, *, attempts: int, elapsed_s: float, dice: float
) -> float | None:
    """Decides after a failed attempt: seconds to pause before the next, or None to give up.

    Args:
        policy: The limits.
        error: What the attempt ended with.
        attempts: Made so far, this one included.
        elapsed_s: Since the first began.
        dice: Uniform in [0, 1).

    The pause is "full jitter": uniform below an exponentially growing ceiling (Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015), which spreads the clients of a throttling store best.
    """
    if not error.retryable or attempts >= policy.max_attempts:
        return None
    ceiling = min(policy.max_delay_s, policy.base_delay_s * 2.0 ** min(attempts - 1, 60))
    if isinstance(error, Throttled):
        ceiling = min(policy.max_delay_s, ceiling * policy.throttle_factor)
    delay = dice * ceiling
    return delay if elapsed_s + delay < policy.deadline_s else None
