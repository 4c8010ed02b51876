"""What the requests-in-flight benchmark makes of its measurements: rates, what was possible, how soon it was found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_BUCKETS_TO_COMPARE = 2
_NEAR = 0.9


class Cycles(NamedTuple):
    """What one of several workers did that sends a request as soon as the last one is answered."""

    num: int  # requests, without the first: connections are made and a queue forms
    seconds: float  # from the end of that first to the end of the last


class Cell(NamedTuple):
    """A place in the table."""

    kind: str  # ``"object"`` or ``"range"``
    latency_ms: int  # as asked for
    in_flight: int


def rate_of(workers: Sequence[Cycles]) -> float:
    """Returns the requests per second of all workers together.

    Each worker's own pace is taken: counting answers within a window would count one wave more or less.
    """
    return sum(worker.num / worker.seconds for worker in workers if worker.seconds > 0)


def limit_per_s(in_flight: int, *, latency_s: float, num_bytes: int, bytes_per_s: float, cpu_per_s: float) -> float:
    """Returns what is possible: each request has its latency and its time on the wire, up to the processors' limit.

    ``cpu_per_s`` is what the same client, server and proxy reach without latency.
    """
    return min(in_flight / (latency_s + num_bytes / bytes_per_s), cpu_per_s)


def rows(
    rates: Mapping[Cell, Sequence[float]], cpu_ms: Mapping[Cell, Sequence[float]], limits: Mapping[Cell, float]
) -> list[dict[str, Any]]:
    """Returns a row of medians for each cell: ``per_s``, its limit, the ratio, and the client's CPU ms per request."""
    return [
        {
            **cell._asdict(),
            "per_s": round(statistics.median(measured), 2),
            "limit_per_s": round(limits[cell], 2),
            "ratio": round(statistics.median(measured) / limits[cell], 3),
            "cpu_ms": round(statistics.median(cpu_ms[cell]), 3),
        }
        for cell, measured in rates.items()
    ]


def best_fixed(rates: Mapping[Cell, Sequence[float]], kind: str, latency_ms: int) -> int:
    """Returns the fixed number in flight with the highest rate, of one kind at one latency."""
    medians = {cell: statistics.median(found) for cell, found in rates.items() if cell[:2] == (kind, latency_ms)}
    return max(medians, key=medians.__getitem__).in_flight


def rate_over(seen: Sequence[tuple[float, int]], *, num_bytes: int) -> float:
    """Returns the requests per second from the first to the last of several (seconds, bytes so far).

    Bytes, not requests: with many in flight, large requests are answered in waves, but their bytes come all the time.
    """
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / num_bytes / (last_s - first_s)


def rates_between(seen: Sequence[tuple[float, int]], *, num_bytes: int) -> list[float]:
    """Returns the same between every look and the next."""
    return [rate_over(seen[number : number + 2], num_bytes=num_bytes) for number in range(len(seen) - 1)]


def converged_after_s(rates: Sequence[float], *, bucket_s: float, final_per_s: float) -> float:
    """Returns the seconds until the rate came within a tenth of its final value; all of the time if it never did.

    ``rates`` are those of spans of ``bucket_s`` from the start. Two at a time are compared, because answers come in
    waves.
    """
    for number in range(len(rates) - _BUCKETS_TO_COMPARE + 1):
        window = rates[number : number + _BUCKETS_TO_COMPARE]
        if statistics.fmean(window) >= _NEAR * final_per_s:
            return (number + _BUCKETS_TO_COMPARE) * bucket_s
    return len(rates) * bucket_s
