"""Time limits of a request: for its first byte, for its body, and for the whole call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from concurrent_loader.storage.errors import DeadlineExceeded
from concurrent_loader.storage.fetch.retry import RetryPolicy

__all__ = [
    "CallDeadline",
    "StallWatch",
    "attempt_timeout_s",
    "for_size",
    "run_with_timeout",
    "wait_with_renewable_deadline",
]

_RANGE_BYTES = 8 << 20


def for_size(policy: RetryPolicy, num_bytes: int) -> RetryPolicy:
    """Returns the policy for a range: its deadline allows for 8 MiB, and longer ranges get more time."""
    more_s = max(0, num_bytes - _RANGE_BYTES) / policy.min_bytes_per_s
    return replace(policy, deadline_s=policy.deadline_s + more_s) if more_s else policy


def attempt_timeout_s(policy: RetryPolicy, *, num_bytes: int, elapsed_s: float) -> float:
    """Returns the seconds allowed for an attempt whose progress cannot be observed.

    Args:
        policy: Limits of the call.
        num_bytes: Number of bytes that the response delivers at once; 0 for a streamed body (see `StallWatch`).
        elapsed_s: Seconds since the first attempt began, which reduce what is left of the deadline.
    """
    return max(0.0, min(policy.first_byte_s + num_bytes / policy.min_bytes_per_s, policy.deadline_s - elapsed_s))


class CallDeadline:
    """Time charged against a call's deadline. Queueing counts only while the endpoint is silent.

    A call that queues for its first place in flight waits because requests are limited, as long as the endpoint works
    through the queue. When the endpoint falls silent, the wait is the endpoint's fault, and counts.

    Args:
        now_s: Start of the call, in monotonic seconds.

    Attributes:
        is_started: Whether the first request was sent, so that every second counts.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self.is_started = False

    def elapsed_s(self, now_s: float, *, last_activity_s: float) -> float:
        """Returns the seconds charged so far.

        Args:
            now_s: Current time.
            last_activity_s: Time at which the endpoint last sent anything, for any call.
        """
        return now_s - (self._since_s if self.is_started else max(self._since_s, last_activity_s))

    def start(self, *, last_activity_s: float) -> None:
        """Starts to charge every second, because a request has got its place."""
        if not self.is_started:
            self._since_s = max(self._since_s, last_activity_s)
            self.is_started = True


class StallWatch:
    """Limits the time to wait for the next piece of a body.

    Every window must deliver its share: ``min_bytes_per_s`` times its length. When the share has arrived, the next
    window begins. So a dead connection, or a trickle of bytes, is given up within one window, and a body at the slowest
    allowed rate passes. Only the time spent waiting for the network counts, not the time of a slow consumer.

    Args:
        policy: Limits of the call.
        piece_bytes: Size of a piece. A window is always long enough for one piece at the slowest rate.
    """

    def __init__(self, policy: RetryPolicy, *, piece_bytes: int) -> None:
        self._window_s = max(policy.stall_window_s, piece_bytes / policy.min_bytes_per_s)
        self._share_bytes = policy.min_bytes_per_s * self._window_s
        self._waited_s = 0.0
        self._num_bytes = 0

    @property
    def allowed_s(self) -> float:
        """Seconds left for the next piece to arrive."""
        return max(0.0, self._window_s - self._waited_s)

    def count(self, waited_s: float, num_bytes: int) -> None:
        """Counts a piece that arrived after ``waited_s`` seconds."""
        self._waited_s += waited_s
        self._num_bytes += num_bytes
        if self._num_bytes >= self._share_bytes:
            self._waited_s = 0.0
            self._num_bytes = 0


T = TypeVar("T")

# Lower bound of a timer, so that a small difference between two clocks cannot keep the event loop busy.
_SHORTEST_S = 0.001


async def wait_with_renewable_deadline(left_s: Callable[[], float], wait: Callable[[], Awaitable[T]]) -> T:
    """Waits with a deadline that is extended while the endpoint makes progress.

    Args:
        left_s: Function that returns the seconds left; called again only after these have passed.
        wait: Function to await; cancelled when no time is left.

    Raises:
        TimeoutError: No time is left.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal timer
        more_s = left_s()
        if more_s <= 0:
            timeout.reschedule(loop.time())
        else:
            timer = loop.call_later(max(more_s, _SHORTEST_S), check)

    async with asyncio.timeout(None) as timeout:
        timer = loop.call_later(max(left_s(), _SHORTEST_S), check)
        try:
            return await wait()
        finally:
            timer.cancel()


async def run_with_timeout(allowed_s: float, call: Callable[[], Awaitable[T]], what: str) -> T:
    """Awaits a call for at most ``allowed_s`` seconds.

    Raises:
        DeadlineExceeded: The call took longer; the message is ``what`` and the limit.
    """
    try:
        async with asyncio.timeout(allowed_s):
            return await call()
    except TimeoutError as error:
        raise DeadlineExceeded(f"{what} within {allowed_s:.3g} s") from error
