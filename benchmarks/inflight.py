"""Requests in flight against latency: ``python -m benchmarks.inflight [--json FILE] [--quick]``.

How much of what is possible the fetch engine reaches with 1 … 256 requests in flight at 5, 30 and 130 ms to the first
byte and 90 MB/s per connection, for raw objects of 115 KB and for ranges of 8 MiB that are taken and discarded; and
whether ``in_flight="auto"`` finds the best number, and how soon. Possible is what the latency measured through the same
proxy allows, and no more than the same client, server and proxy reach in the same run without latency: all of them
share this machine's processors. Rounds alternate over all cells; figures are medians.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.bucket import BANDWIDTH_MB_S, put_all
from benchmarks.command import bar, in_turns, program
from concurrent_loader.storage.fetch import FetchEngine, InFlight
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import local_s3, measure_latency, toxiproxy

OBJECT_BYTES = 115_000
RANGE_BYTES = 8 << 20
NUM_BYTES = {"object": OBJECT_BYTES, "range": RANGE_BYTES}
_NUM_OBJECTS = 200
_NUM_RANGES = 8
# For the processors' limit: a proxy that adds nothing, but does the same work for it.
_NO_LATENCY = 0
_NO_BOUND_MB_S = 100_000
_IN_QUEUE = 8  # requests beyond the limit, so that it is the limit that holds back
_TICK_S = 0.05
_BUCKET_S = 0.25
_BUCKETS_TO_COMPARE = 2
_NEAR = 0.9

Endpoints = Mapping[int, tuple[dict[str, str], float]]  # latency → options of a store, seconds measured


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    latencies_ms: tuple[int, ...] = (5, 30, 130)
    in_flight: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    cpu_in_flight: tuple[int, ...] = (8, 16, 32, 64)  # numbers to try without latency; the best counts
    # Of the table, by kind, because ranges take longer.
    num_rounds: Mapping[str, int] = field(default_factory=lambda: {"object": 2, "range": 1})
    num_turns: int = 5  # of "auto", each with an engine that knows nothing
    num_pairs: int = 3  # in each turn: short spans of "auto" and of the best fixed number, alternating
    window_s: float = 0.5  # of one fixed number, at least; every worker is answered twice in any case
    warm_s: float = 4.0  # that "auto" gets to find its number
    settle_s: float = 0.5  # at the beginning of a span, not measured
    span_s: float = 1.0  # measured then


FULL, QUICK = Load(), Load((5, 30), (1, 16, 64), (16,), {"object": 1, "range": 1}, 1, 1, 0.3, 2.0, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class Auto:
    """What ``in_flight="auto"`` did in one turn, and what the best fixed number did between its spans."""

    per_s: list[float]
    fixed_per_s: list[float]
    limit: int
    converge_s: float


# -- what is made of the measurements ---------------------------------------------------------------------------------


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


# -- measuring ---------------------------------------------------------------------------------------------------------


class Client:
    """Sends requests of both kinds through one proxy."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._store = open_store(url, **options)
        self._number = 0

    async def close(self) -> None:
        """Closes the connections."""
        await self._store.close()

    def request(self, engine: FetchEngine, kind: str) -> Callable[[], Awaitable[object]]:
        """Returns a function that fetches the next object or range."""

        async def drop(position: int, piece: memoryview) -> None: ...

        async def fetch_object() -> None:
            self._number += 1
            await engine.fetch(f"objects/{self._number % _NUM_OBJECTS:04d}", 0, OBJECT_BYTES)

        async def fetch_range() -> None:
            self._number += 1
            start = self._number % _NUM_RANGES * RANGE_BYTES
            await engine.fetch_into("large", start, start + RANGE_BYTES, drop)

        return fetch_object if kind == "object" else fetch_range

    def engine(self, in_flight: InFlight) -> FetchEngine:
        """Makes an engine whose bytes in flight are no bound."""
        gc.collect()  # the limit of the last one must not be inherited
        return FetchEngine(self._store, in_flight=in_flight, bytes_in_flight="16GiB")

    async def fixed(self, kind: str, in_flight: int, window_s: float) -> tuple[float, float]:
        """Returns requests per second with a fixed number in flight, and the client's CPU ms per request."""
        fetch = self.request(self.engine(in_flight), kind)
        firsts, lasts, nums = [0.0] * in_flight, [0.0] * in_flight, [0] * in_flight
        missing = in_flight
        enough = asyncio.Event()

        async def work(worker: int) -> None:
            nonlocal missing
            await fetch()
            firsts[worker] = time.perf_counter()
            while True:
                await fetch()
                lasts[worker] = time.perf_counter()
                nums[worker] += 1
                missing -= nums[worker] == 1
                if not missing and lasts[worker] - began_s >= window_s:
                    enough.set()

        began_s, cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(worker)) for worker in range(in_flight)]
            await enough.wait()
            cpu_s = time.process_time() - cpu_s
            for task in tasks:
                task.cancel()
        done = [Cycles(num, last - first) for num, first, last in zip(nums, firsts, lasts, strict=True)]
        return rate_of(done), 1000 * cpu_s / (sum(nums) + in_flight)

    async def demand(self, engine: FetchEngine, kind: str, seconds: float) -> list[tuple[float, int]]:
        """Asks for a little more at once than the engine admits; returns times, and bytes until then."""
        fetch = self.request(engine, kind)
        num_workers = 0

        def look() -> tuple[float, int]:
            stats = engine.stats
            return time.perf_counter(), stats.num_bytes - stats.wasted_bytes

        async def work() -> None:
            nonlocal num_workers
            while time.perf_counter() < ends_s and num_workers <= engine.stats.limit + 2 * _IN_QUEUE:
                await fetch()
            num_workers -= 1

        seen = [look()]
        ends_s = seen[0][0] + seconds
        async with asyncio.TaskGroup() as group:
            while time.perf_counter() < ends_s:
                for _ in range(engine.stats.limit + _IN_QUEUE - num_workers):
                    num_workers += 1
                    group.create_task(work())
                await asyncio.sleep(_TICK_S)
                if time.perf_counter() - seen[-1][0] >= _BUCKET_S:
                    seen.append(look())
            seen.append(look())
        return seen

    async def span(self, engine: FetchEngine, kind: str, load: Load) -> float:
        """Measures one span; returns answers per second."""
        seen = await self.demand(engine, kind, load.settle_s + load.span_s)
        starts_s = seen[0][0] + load.settle_s
        return rate_over([look for look in seen if look[0] >= starts_s - _TICK_S], num_bytes=NUM_BYTES[kind])


async def _compare(auto: Client, fixed: Client, kind: str, best: int, load: Load) -> Auto:
    """Lets "auto" find its number, then measures it and the best fixed one in short spans, alternating.

    The two clients must name the endpoint differently, because the readers of one endpoint share one limit.
    """
    engines = auto.engine("auto"), fixed.engine(best)
    seen = await auto.demand(engines[0], kind, load.warm_s)
    rates = rates_between(seen, num_bytes=NUM_BYTES[kind])
    found: tuple[list[float], list[float]] = ([], [])
    for _, side in in_turns((1, 0), load.num_pairs):
        found[side].append(await (auto, fixed)[side].span(engines[side], kind, load))
    converge_s = converged_after_s(rates, bucket_s=_BUCKET_S, final_per_s=statistics.median(found[0]))
    return Auto(found[0], found[1], engines[0].stats.limit, converge_s)


@contextlib.contextmanager
def _endpoints(load: Load) -> Iterator[tuple[str, str, Endpoints]]:
    """Starts a bucket behind every latency; yields the server's kind, the URL, and the endpoints."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(local_s3())
        url = server.make_bucket(f"inflight-{secrets.token_hex(6)}")
        values = {f"objects/{number:04d}": secrets.token_bytes(OBJECT_BYTES) for number in range(_NUM_OBJECTS)}
        large = {"large": secrets.token_bytes(_NUM_RANGES * RANGE_BYTES)}
        put_all(url, server.storage_options(), values | large)
        found = {}
        for latency_ms in (_NO_LATENCY, *load.latencies_ms):
            bandwidth = BANDWIDTH_MB_S if latency_ms else _NO_BOUND_MB_S
            proxy = stack.enter_context(toxiproxy(server, latency_ms=latency_ms, bandwidth_mb_s=bandwidth))
            if not latency_ms:
                proxy.add_toxic("latency", "latency", latency=0, jitter=0)
            measured_s = measure_latency(proxy.endpoint_url, num_requests=21) / 1000
            found[latency_ms] = server.through(proxy).storage_options(), measured_s
        yield server.kind, url, found


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds."""
    with _endpoints(load) as (kind, url, endpoints):
        figures = asyncio.run(_measure(url, endpoints, load, console))
    return {**figures, "server": kind, "bandwidth_mb_s": BANDWIDTH_MB_S, "num_bytes": NUM_BYTES, "load": asdict(load)}


async def _measure(url: str, endpoints: Endpoints, load: Load, console: Console) -> dict[str, Any]:
    cells = [
        Cell(kind, latency_ms, in_flight)
        for kind in NUM_BYTES
        for latency_ms in endpoints
        for in_flight in (load.in_flight if latency_ms else load.cpu_in_flight)
    ]
    pairs = [(kind, latency_ms) for kind in NUM_BYTES for latency_ms in load.latencies_ms]
    rates: dict[Cell, list[float]] = {cell: [] for cell in cells}
    cpu_ms: dict[Cell, list[float]] = {cell: [] for cell in cells}
    autos: dict[tuple[str, int], list[Auto]] = {pair: [] for pair in pairs}
    clients = {latency_ms: Client(url, options) for latency_ms, (options, _) in endpoints.items()}
    others = {latency_ms: Client(url, _by_name(options)) for latency_ms, (options, _) in endpoints.items()}
    num_steps = sum(load.num_rounds[cell.kind] for cell in cells) + load.num_turns * len(pairs)
    try:
        with bar(console, "Requests in flight", num_steps) as progress:
            for number, cell in in_turns(cells, max(load.num_rounds.values())):
                if number < load.num_rounds[cell.kind]:
                    rate, cost_ms = await clients[cell.latency_ms].fixed(cell.kind, cell.in_flight, load.window_s)
                    rates[cell].append(rate)
                    cpu_ms[cell].append(cost_ms)
                    progress.advance()
            # The best of nine measurements flatters its number: it is measured again, between spans of "auto".
            for _ in range(load.num_turns):
                for kind, latency_ms in pairs:
                    best = best_fixed(rates, kind, latency_ms)
                    done = await _compare(clients[latency_ms], others[latency_ms], kind, best, load)
                    autos[kind, latency_ms].append(done)
                    progress.advance()
    finally:
        for client in (*clients.values(), *others.values()):
            await client.close()
    return _figures(rates, cpu_ms, autos, {latency_ms: latency_s for latency_ms, (_, latency_s) in endpoints.items()})


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the same endpoint under another name."""
    return {**options, "endpoint_url": options["endpoint_url"].replace("127.0.0.1", "localhost")}


def _figures(
    rates: Mapping[Cell, Sequence[float]],
    cpu_ms: Mapping[Cell, Sequence[float]],
    autos: Mapping[tuple[str, int], Sequence[Auto]],
    latency_s: Mapping[int, float],
) -> dict[str, Any]:
    cpu_per_s = {
        kind: max(statistics.median(found) for cell, found in rates.items() if cell[:2] == (kind, _NO_LATENCY))
        for kind in NUM_BYTES
    }
    behind = {cell: found for cell, found in rates.items() if cell.latency_ms != _NO_LATENCY}
    limits = {
        cell: limit_per_s(
            cell.in_flight,
            latency_s=latency_s[cell.latency_ms],
            num_bytes=NUM_BYTES[cell.kind],
            bytes_per_s=BANDWIDTH_MB_S * 1e6,
            cpu_per_s=cpu_per_s[cell.kind],
        )
        for cell in behind
    }
    auto: list[dict[str, Any]] = []
    for (kind, latency_ms), runs in autos.items():
        pairs = [pair for run in runs for pair in zip(run.per_s, run.fixed_per_s, strict=True)]
        auto.append(
            {
                "kind": kind,
                "latency_ms": latency_ms,
                "per_s": round(statistics.median(per_s for per_s, _ in pairs), 2),
                "best_fixed": best_fixed(rates, kind, latency_ms),
                "best_fixed_per_s": round(statistics.median(fixed for _, fixed in pairs), 2),
                "ratio": round(statistics.median(per_s / fixed for per_s, fixed in pairs), 3),
                "limits": [run.limit for run in runs],
                "converge_s": statistics.median(run.converge_s for run in runs),
            }
        )
    latencies = dict.fromkeys(row["latency_ms"] for row in auto)
    return {
        "rows": rows(behind, cpu_ms, limits),
        # By latency, the worse of the two kinds.
        "auto_ratio": {
            str(latency): min(row["ratio"] for row in auto if row["latency_ms"] == latency) for latency in latencies
        },
        "auto": auto,
        "cpu_limit_per_s": {kind: round(per_s, 1) for kind, per_s in cpu_per_s.items()},
        "measured_latency_ms": {str(latency): round(1000 * seconds, 2) for latency, seconds in latency_s.items()},
    }


main = program("inflight", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
