"""What the requests-in-flight benchmark makes of its measurements: rates, what was possible, how soon it was found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BUCKETS_TO_COMPARE = 2
_NEAR = 0.9


@dataclass(frozen=True, slots=True)
class Cycles:
    """What one of several workers did, each of which sends a request as soon as the last one is answered."""

    num: int  # requests whole, the first (connections are made, a queue forms) left out
    seconds: float  # from the end of that first to the end of the last


@dataclass(frozen=True, slots=True)
class Cell:
    """A place in the table."""

    kind: str  # ``"object"`` or ``"range"``
    latency_ms: int  # as asked for
    in_flight: int  # requests at once


@dataclass(frozen=True, slots=True)
class Row:
    """A cell's figures: medians over the rounds."""

    kind: str  # of the cell
    latency_ms: int  # of the cell
    in_flight: int  # of the cell
    per_s: float  # requests a second
    limit_per_s: float  # what requests in flight, latency, bandwidth of a connection and the processors would allow
    ratio: float  # one divided by the other
    cpu_ms: float  # processor time of the client, a request


def rate_of(workers: Sequence[Cycles]) -> float:
    """Requests a second of all workers together.

    Every worker is asked for its own pace: counting answers within a window would count one wave more or less, where
    all workers are answered together.
    """
    return sum(worker.num / worker.seconds for worker in workers if worker.seconds > 0)


def limit_per_s(in_flight: int, *, latency_s: float, num_bytes: int, bytes_per_s: float, cpu_per_s: float) -> float:
    """Returns what is possible: latency and time on the wire of each request, but not beyond the processors."""
    return min(in_flight / (latency_s + num_bytes / bytes_per_s), cpu_per_s)


def rows(
    rates: Mapping[Cell, Sequence[float]], cpu_ms: Mapping[Cell, Sequence[float]], limits: Mapping[Cell, float]
) -> list[Row]:
    """The table, from what the rounds gave."""
    made = []
    for cell, measured in rates.items():
        per_s = statistics.median(measured)
        made.append(
            Row(
                kind=cell.kind,
                latency_ms=cell.latency_ms,
                in_flight=cell.in_flight,
                per_s=round(per_s, 2),
                limit_per_s=round(limits[cell], 2),
                ratio=round(per_s / limits[cell], 3),
                cpu_ms=round(statistics.median(cpu_ms[cell]), 3),
            )
        )
    return made


def best_fixed(rates: Mapping[Cell, Sequence[float]], kind: str, latency_ms: int) -> int:
    """The fixed number in flight with the highest rate, of one kind at one latency."""
    of_pair = {cell: found for cell, found in rates.items() if (cell.kind, cell.latency_ms) == (kind, latency_ms)}
    return max(of_pair, key=lambda cell: statistics.median(of_pair[cell])).in_flight


def rate_over(seen: Sequence[tuple[float, int]], *, num_bytes: int) -> float:
    """Requests a second from the first to the last of several looks at a counter of bytes.

    Bytes, not requests: with many in flight, large requests are answered in waves, but their bytes come all the time.
    """
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / num_bytes / (last_s - first_s)


def rates_between(seen: Sequence[tuple[float, int]], *, num_bytes: int) -> list[float]:
    """The same between every look and the next."""
    return [rate_over(seen[number : number + 2], num_bytes=num_bytes) for number in range(len(seen) - 1)]


def converged_after_s(rates: Sequence[float], *, bucket_s: float, final_per_s: float) -> float:
    """When the rate first came within a tenth of what it ended at, in seconds from the start."""
    for number in range(len(rates) - _BUCKETS_TO_COMPARE + 1):
        window = rates[number : number + _BUCKETS_TO_COMPARE]
        if statistics.fmean(window) >= _NEAR * final_per_s:
            return (number + _BUCKETS_TO_COMPARE) * bucket_s
    return len(rates) * bucket_s
