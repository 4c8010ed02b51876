"""Counters of a fetch engine: written while it works, read as a frozen snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Counters", "FetchStats", "FirstByteTimes", "RateMeter", "percentile"]

_METER_S = 2.0


@dataclass(frozen=True, slots=True)
class FetchStats:
    """A snapshot of an engine's counters.

    Attributes:
        num_gets: GETs sent, including failed, repeated and hedged ones; lists, heads and puts are not counted.
        num_bytes: Bytes received, including wasted bytes.
        num_retries: Requests that repeated a failed request.
        num_resumed: Retries that continued a broken body instead of starting over.
        num_throttled: Responses that asked for fewer requests.
        num_refetched: Ranges fetched again because their digest did not match.
        num_hedges: Additional requests sent because the first one was slow.
        num_hedges_won: Hedged requests that responded first.
        wasted_bytes: Bytes received and discarded: those with a wrong digest, and those of the slower of two responses.
        in_flight: Number of requests in flight now.
        limit: Number of requests that all readers of the endpoint in this process may have in flight now.
        goodput_bytes_per_s: Bytes per second of this engine, over the last few seconds.
        first_byte_p50_s: Median time to the first byte, in seconds, over the last 512 requests of each kind. For small
            requests the time includes the body.
        first_byte_p95_s: 95th percentile of that time, in seconds.
        first_byte_p99_s: 99th percentile of that time, in seconds.
        wait_s: Sum over all requests of the seconds between sending and completion.

    Example:
        >>> from concurrent_loader.storage.fetch import FetchStats
        >>> FetchStats(num_gets=100, num_retries=2).num_retries
        2
    """

    num_gets: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    num_resumed: int = 0
    num_throttled: int = 0
    num_refetched: int = 0
    num_hedges: int = 0
    num_hedges_won: int = 0
    wasted_bytes: int = 0
    in_flight: int = 0
    limit: int = 0
    goodput_bytes_per_s: float = 0.0
    first_byte_p50_s: float = 0.0
    first_byte_p95_s: float = 0.0
    first_byte_p99_s: float = 0.0
    wait_s: float = 0.0


class RateMeter:
    """An exponentially weighted rate with a time constant of 2 s."""

    __slots__ = ("_at_s", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def add(self, now_s: float, num_bytes: int) -> None:
        """Counts bytes that arrive now."""
        self._rate = self.read(now_s) + num_bytes / _METER_S
        self._at_s = now_s

    def read(self, now_s: float) -> float:
        """Returns the rate in bytes per second."""
        return self._rate * math.exp(min(0.0, self._at_s - now_s) / _METER_S)


class Counters:
    """The counters while they change.

    Thread-safety: One thread writes. A snapshot on another thread may miss concurrent changes.
    """

    __slots__ = (
        "meter",
        "num_bytes",
        "num_gets",
        "num_hedges",
        "num_hedges_won",
        "num_refetched",
        "num_resumed",
        "num_retries",
        "num_throttled",
        "small",
        "streams",
        "wait_s",
        "wasted_bytes",
    )

    def __init__(self) -> None:
        self.num_gets = self.num_bytes = self.num_retries = self.num_resumed = self.num_throttled = 0
        self.num_refetched = self.num_hedges = self.num_hedges_won = self.wasted_bytes = 0
        self.wait_s = 0.0
        self.meter = RateMeter()
        self.small = FirstByteTimes()
        self.streams = FirstByteTimes()

    def snapshot(self, *, now_s: float, in_flight: int, limit: int) -> FetchStats:
        """Returns the counters as they are now."""
        times_to_first_byte = self.small.values + self.streams.values
        return FetchStats(
            num_gets=self.num_gets,
            num_bytes=self.num_bytes,
            num_retries=self.num_retries,
            num_resumed=self.num_resumed,
            num_throttled=self.num_throttled,
            num_refetched=self.num_refetched,
            num_hedges=self.num_hedges,
            num_hedges_won=self.num_hedges_won,
            wasted_bytes=self.wasted_bytes,
            in_flight=in_flight,
            limit=limit,
            goodput_bytes_per_s=self.meter.read(now_s),
            first_byte_p50_s=percentile(times_to_first_byte, 0.5),
            first_byte_p95_s=percentile(times_to_first_byte, 0.95),
            first_byte_p99_s=percentile(times_to_first_byte, 0.99),
            wait_s=self.wait_s,
        )


_REMEMBERED = 512
_STALE_AFTER = 16


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that is at least as large as a share (0 to 1) of the values; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class FirstByteTimes:
    """The last 512 times to the first byte of one kind of request, in seconds.

    Thread-safety: One thread writes; any thread may read `values`.
    """

    def __init__(self) -> None:
        self._ring: list[float] = []
        self._next = 0
        self._known_share = 0.0
        self._known = 0.0
        self._num_since = 0

    def add(self, seconds: float) -> None:
        """Adds a time and drops the oldest."""
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
        """A copy of the remembered times."""
        return self._ring.copy()

    def percentile(self, share: float) -> float:
        """Returns a percentile, recomputed at least every 16 observations; sorting for each request would be slower."""
        if share != self._known_share or self._num_since >= _STALE_AFTER or len(self._ring) < 2 * _STALE_AFTER:
            self._known_share, self._known, self._num_since = share, percentile(self._ring, share), 0
        return self._known
