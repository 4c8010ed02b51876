"""Whether a request that is late gets a double: the rule and its budget, pure and synchronous.

Source: Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request after the 95th percentile of the
expected latency, which bounds the additional load to about 5 % and cuts the tail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from storage.errors import ConfigurationError

__all__ = ["HedgeBudget", "HedgePolicy", "Late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy:
    """When a GET whose first byte is late is sent a second time. Puts never are.

    Attributes:
        percentile: Of the first-byte times observed lately; what takes longer is late.
        floor_s: Nothing is late before.
        share: Additional requests, as a part of all.
        burst: Additional requests that may be saved up.
        max_hedges: Doubles of one request.
        min_observations: Before there are so many, nothing is late.
        quiet_s: After the store has asked for fewer requests, for so long there are no doubles.
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
            raise ConfigurationError("percentile and share lie between 0 and 1", got=(self.percentile, self.share))
        if self.floor_s < 0 or self.burst < 1 or self.max_hedges < 1 or self.min_observations < 1 or self.quiet_s < 0:
            raise ConfigurationError("a hedge policy's numbers are positive")


class Late(Protocol):
    """A request that is late: what the budget can do for it."""

    def double(self) -> None:
        """Sends it a second time."""


class HedgeBudget:
    """Tokens for doubles: every request brings a share of one.

    A request that has just become late gets a token only if half of the bucket stays; one that is late a second time
    may take the last. So the few that are really slow find a token, although at the 95th percentile as many become late
    as the budget can pay for. Who finds none waits, the longest first, for the tokens that further requests bring.

    Args:
        policy: The numbers.
    """

    def __init__(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._tokens = policy.burst / 2
        self._waiting: deque[Late] = deque()

    def deposit(self, *, quiet: bool) -> None:
        """A request was sent; ``quiet`` while no doubles are wanted."""
        self._tokens = min(self._policy.burst, self._tokens + self._policy.share)
        while self._waiting and not quiet and self._tokens >= 1.0:
            self._tokens -= 1.0
            self._waiting.popleft().double()

    def take(self, *, again: bool) -> bool:
        """Takes a token for a late request; ``again`` if it has been refused one before."""
        if self._tokens < (1.0 if again else 1.0 + self._policy.burst / 2):
            return False
        self._tokens -= 1.0
        return True

    def wait(self, late: Late) -> None:
        """Puts a request in line."""
        self._waiting.append(late)

    def leave(self, late: Late) -> None:
        """Takes it out of the line, if it is there."""
        if late in self._waiting:
            self._waiting.remove(late)
