"""What an engine has done and is doing: counters while it works, a frozen snapshot for whoever asks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.fetch.first_bytes import FirstByteTimes, percentile

__all__ = ["Counters", "FetchStats", "Meter"]

_METER_S = 2.0


@dataclass(frozen=True, slots=True)
class FetchStats:
    """What the engine has done so far; a snapshot.

    Attributes:
        num_gets: GETs sent, failed, repeated and additional ones included; lists, heads and puts are not counted.
        num_bytes: Bytes that arrived, wasted ones included.
        num_retries: Requests that repeated a failed one.
        num_resumed: Those of them that went on where a body had broken off.
        num_throttled: Answers that asked for fewer requests.
        num_refetched: Ranges fetched again because their digest did not match.
        num_hedges: Additional requests for what was late.
        num_hedges_won: Those of them that answered first.
        wasted_bytes: Bytes that arrived and were of no use: of a wrong digest, or of the slower of two answers.
        in_flight: Requests under way at this moment.
        limit: Requests that the endpoint bears at this moment, all its readers in this process together.
        goodput_bytes_per_s: Of this engine, over the last few seconds.
        first_byte_p50_s: Median of the last requests' times to the first byte; small requests count with their body.
        first_byte_p95_s: 95 % were faster.
        first_byte_p99_s: 99 % were faster.
        wait_s: Seconds that requests spent between being sent and being whole, summed over all.
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


class Meter:
    """A rate over the last seconds: every byte counts less the older it is (exponentially, 2 s)."""

    __slots__ = ("_at_s", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def add(self, now_s: float, num_bytes: int) -> None:
        """Counts bytes that have come now."""
        self._rate = self.read(now_s) + num_bytes / _METER_S
        self._at_s = now_s

    def read(self, now_s: float) -> float:
        """Bytes a second."""
        return self._rate * math.exp(min(0.0, self._at_s - now_s) / _METER_S)


class Counters:
    """The numbers while they change.

    Thread-safety: One thread writes; a snapshot from another may miss what happens meanwhile.
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
        self.meter = Meter()
        self.small = FirstByteTimes()
        self.streams = FirstByteTimes()

    def snapshot(self, *, now_s: float, in_flight: int, limit: int) -> FetchStats:
        """All of it at this moment."""
        first_bytes = self.small.values + self.streams.values
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
            first_byte_p50_s=percentile(first_bytes, 0.5),
            first_byte_p95_s=percentile(first_bytes, 0.95),
            first_byte_p99_s=percentile(first_bytes, 0.99),
            wait_s=self.wait_s,
        )
