"""How long an answer may take: for its first byte, for the bytes after it, for everything; pure decisions."""

from __future__ import annotations

from dataclasses import replace

from storage.fetch.retry import RetryPolicy

__all__ = ["Age", "StallWatch", "attempt_timeout_s", "for_size"]

_RANGE_BYTES = 8 << 20


def for_size(policy: RetryPolicy, num_bytes: int) -> RetryPolicy:
    """The policy for so many bytes: its deadline is meant for up to 8 MiB, more may take as much longer."""
    more_s = max(0, num_bytes - _RANGE_BYTES) / policy.min_bytes_per_s
    return replace(policy, deadline_s=policy.deadline_s + more_s) if more_s else policy


def attempt_timeout_s(policy: RetryPolicy, *, num_bytes: int, elapsed_s: float) -> float:
    """How long an attempt may take of whose bytes nothing shows until they are all there, in seconds.

    Args:
        policy: The limits.
        num_bytes: That it brings at once; 0 for an answer that is followed as it comes (see `StallWatch`).
        elapsed_s: Since the first attempt began; the deadline cuts what is left.
    """
    return max(0.0, min(policy.first_byte_s + num_bytes / policy.min_bytes_per_s, policy.deadline_s - elapsed_s))


class Age:
    """How old a call is, as its deadline counts: from its first request on, and before that the store's silence.

    Who waits for the first place in flight behind a long queue waits because of the bound on requests, as long as the
    store works through the queue. As soon as nothing comes from it any more, waiting is the store's doing, and counts.

    Args:
        now_s: When the call begins.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self.is_sent = False

    def seconds(self, now_s: float, *, heard_s: float) -> float:
        """Its age.

        Args:
            now_s: Now.
            heard_s: When anything last came from the store, for whomever.
        """
        return now_s - (self._since_s if self.is_sent else max(self._since_s, heard_s))

    def sent(self, *, heard_s: float) -> None:
        """A request has its place: from now on every second counts."""
        if not self.is_sent:
            self._since_s = max(self._since_s, heard_s)
            self.is_sent = True


class StallWatch:
    """Says how long the next piece of a body may still be waited for.

    The rule: every window must bring its share, ``min_bytes_per_s`` times its length; as soon as it has, the next
    one begins. So a connection that dies is given up within one window, a dribble of bytes too, and a body at the
    slowest allowed pace passes. Only waiting counts: a taker that is slow itself accuses nobody.

    Args:
        policy: The limits.
        piece_bytes: What comes at once; a window is never too short for one piece at the slowest pace.
    """

    def __init__(self, policy: RetryPolicy, *, piece_bytes: int) -> None:
        self._window_s = max(policy.stall_window_s, piece_bytes / policy.min_bytes_per_s)
        self._share_bytes = policy.min_bytes_per_s * self._window_s
        self._waited_s = 0.0
        self._num_bytes = 0

    @property
    def allowed_s(self) -> float:
        """Seconds until the body has stalled, unless a piece comes."""
        return max(0.0, self._window_s - self._waited_s)

    def count(self, waited_s: float, num_bytes: int) -> None:
        """A piece came, after so many seconds of waiting."""
        self._waited_s += waited_s
        self._num_bytes += num_bytes
        if self._num_bytes >= self._share_bytes:
            self._waited_s = 0.0
            self._num_bytes = 0
