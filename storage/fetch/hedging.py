"""Decides whether a slow request is hedged, that is, sent a second time: the policy and its budget. No I/O.

Source: Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request after the 95th percentile of the
expected latency limits the additional load to about 5 % and shortens the tail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["HedgeBudget", "HedgePolicy", "SlowRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy:
    """Rules for hedged requests: a GET whose first byte is late is sent again. PUTs are never hedged.

    Attributes:
        percentile: Percentile (0 to 1) of recent times to the first byte; a slower request is late. 0.95 by default.
        floor_s: Shortest time after which a request is late, 0.05 s by default.
        share: Hedged requests as a fraction of all requests, 0.05 by default.
        burst: Number of hedged requests that can be saved up, 8 by default.
        max_hedges: Number of hedged requests per request, 2 by default.
        min_observations: Number of responses needed before any request counts as late, 20 by default.
        quiet_s: Seconds without hedged requests after the store throttled, 5 by default.

    Example:
        >>> from concurrent_loader.storage import HedgePolicy
        >>> HedgePolicy(percentile=0.99, share=0.01).max_hedges
        2
    """

    percentile: float = 0.95
    floor_s: float = 0.05
    share: float = 0.05
    burst: float = 8.0
    max_hedges: int = 2
    min_observations: int = 20
    quiet_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.percentile < 1 or not 0 < self.share <= 1:
            raise ConfigurationError("percentile and share must lie between 0 and 1", got=(self.percentile, self.share))
        if self.floor_s < 0 or self.burst < 1 or self.max_hedges < 1 or self.min_observations < 1 or self.quiet_s < 0:
            raise ConfigurationError("the numbers of a HedgePolicy must be positive")


class SlowRequest(Protocol):
    """A late request, as the budget sees it."""

    def hedge(self) -> None:
        """Sends the request again."""


class HedgeBudget:
    """Tokens for hedged requests: each request adds a share of a token.

    A request that has just become late gets a token only if half of the bucket remains. A request that is late a second
    time may take the last token. So the few very slow requests find a token, although at the 95th percentile as many
    become late as the budget can pay for. Requests without a token queue for the tokens that later requests add.

    Args:
        policy: Rules for hedged requests.
    """

    def __init__(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._tokens = policy.burst / 2
        self._waiting: deque[SlowRequest] = deque()

    def deposit(self, *, quiet: bool) -> None:
        """Adds a share of a token for a request; ``quiet`` suspends hedging."""
        self._tokens = min(self._policy.burst, self._tokens + self._policy.share)
        while self._waiting and not quiet and self._tokens >= 1.0:
            self._tokens -= 1.0
            self._waiting.popleft().hedge()

    def take(self, *, again: bool) -> bool:
        """Takes a token for a late request; ``again`` if the request was refused a token before."""
        if self._tokens < (1.0 if again else 1.0 + self._policy.burst / 2):
            return False
        self._tokens -= 1.0
        return True

    def enqueue(self, request: SlowRequest) -> None:
        """Queues a request for the next token."""
        self._waiting.append(request)

    def leave_queue(self, request: SlowRequest) -> None:
        """Removes a request from the queue, if it is there."""
        if request in self._waiting:
            self._waiting.remove(request)
