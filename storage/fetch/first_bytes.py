"""How long first bytes have taken lately: the ring that hedging and statistics look at."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["FirstByteTimes", "percentile"]

_REMEMBERED = 512
_STALE_AFTER = 16


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of the values that a share of them (0 … 1) does not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class FirstByteTimes:
    """The last 512 first-byte times of one kind of request, in seconds.

    Thread-safety: Written by one thread; any may read `values`.
    """

    def __init__(self) -> None:
        self._ring: list[float] = []
        self._next = 0
        self._known_share = 0.0
        self._known = 0.0
        self._num_since = 0

    def add(self, seconds: float) -> None:
        """Remembers one, and forgets the oldest."""
        self._num_since += 1
        if len(self._ring) < _REMEMBERED:
            self._ring.append(seconds)
            return
        self._ring[self._next] = seconds
        self._next = (self._next + 1) % _REMEMBERED

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def values(self) -> list[float]:
        """A copy of all that is remembered."""
        return self._ring.copy()

    def percentile(self, share: float) -> float:
        """A percentile that may lag behind by 16 observations: sorting for every request would cost more than it."""
        if share != self._known_share or self._num_since >= _STALE_AFTER or len(self._ring) < 2 * _STALE_AFTER:
            self._known_share, self._known, self._num_since = share, percentile(self._ring, share), 0
        return self._known
