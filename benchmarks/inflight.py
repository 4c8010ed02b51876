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
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.bucket import BANDWIDTH_MB_S, put_all
from benchmarks.command import bar, in_turns, program
from concurrent_loader.storage.fetch import FetchEngine, InFlight
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import local_s3, measure_latency, toxiproxy

NUM_BYTES = {"object": 115_000, "range": 8 << 20}
_NUM_OBJECTS = 200
_NUM_RANGES = 8
# For the processors' limit: a proxy that adds nothing, but does the same work for it.
_NO_LATENCY = 0
_NO_BOUND_MB_S = 100_000
_IN_QUEUE = 8  # requests beyond the limit, so that it is the limit that holds back
_TICK_S = 0.05
_BUCKET_S = 0.25
_NEAR = 0.9

Endpoints = Mapping[int, tuple[dict[str, str], float]]  # latency → options of a store, seconds measured
Rates = Mapping["Cell", Sequence[tuple[float, float]]]  # by round: requests per second, the client's CPU ms per request


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


class Cell(NamedTuple):
    """A place in the table."""

    kind: str  # ``"object"`` or ``"range"``
    latency_ms: int  # as asked for
    in_flight: int


class Auto(NamedTuple):
    """What ``in_flight="auto"`` did in one turn, and what the best fixed number did between its spans."""

    per_s: list[float]
    fixed_per_s: list[float]
    limit: int
    converge_s: float


def limit_per_s(cell: Cell, *, latency_s: float, cpu_per_s: float) -> float:
    """Returns what is possible: each request has its latency and its time on the wire, up to the processors' limit.

    ``cpu_per_s`` is what the same client, server and proxy reach without latency.
    """
    return min(cell.in_flight / (latency_s + NUM_BYTES[cell.kind] / (BANDWIDTH_MB_S * 1e6)), cpu_per_s)


def best_fixed(rates: Rates, kind: str, latency_ms: int) -> Cell:
    """Returns the cell with the highest rate, of one kind at one latency."""
    cells = [cell for cell in rates if cell[:2] == (kind, latency_ms)]
    return max(cells, key=lambda cell: median(per_s for per_s, _ in rates[cell]))


def rate_over(seen: Sequence[tuple[float, int]], *, num_bytes: int) -> float:
    """Returns the requests per second from the first to the last of several (seconds, bytes so far).

    Bytes, not requests: with many in flight, large requests are answered in waves, but their bytes come all the time.
    """
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / num_bytes / (last_s - first_s)


def converged_after_s(rates: Sequence[float], *, final_per_s: float) -> float:
    """Returns the seconds until the rate came within a tenth of its final value; all of the time if it never did.

    ``rates`` are those of spans of 0.25 s from the start. Two at a time are compared, because answers come in waves.
    """
    for number, pair in enumerate(pairwise(rates), 2):
        if fmean(pair) >= _NEAR * final_per_s:
            return number * _BUCKET_S
    return len(rates) * _BUCKET_S


class Client:
    """Sends requests of both kinds through one proxy."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.store = open_store(url, **options)
        self._number = 0

    def request(self, engine: FetchEngine, kind: str) -> Callable[[], Awaitable[object]]:
        """Returns a function that fetches the next object or range."""

        async def drop(position: int, piece: memoryview) -> None: ...

        async def fetch() -> None:
            self._number += 1
            if kind == "object":
                await engine.fetch(f"objects/{self._number % _NUM_OBJECTS:04d}", 0, NUM_BYTES[kind])
            else:
                start = self._number % _NUM_RANGES * NUM_BYTES[kind]
                await engine.fetch_into("large", start, start + NUM_BYTES[kind], drop)

        return fetch

    def engine(self, in_flight: InFlight) -> FetchEngine:
        """Makes an engine whose bytes in flight are no bound."""
        gc.collect()  # the limit of the last one must not be inherited
        return FetchEngine(self.store, in_flight=in_flight, bytes_in_flight="16GiB")

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
        # Each worker's own pace after its first request: answers in a window would be a wave more or less.
        paces = [num / (last - first) for num, first, last in zip(nums, firsts, lasts, strict=True) if last > first]
        return sum(paces), 1000 * cpu_s / (sum(nums) + in_flight)

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
    rates = [rate_over(pair, num_bytes=NUM_BYTES[kind]) for pair in pairwise(seen)]
    found: tuple[list[float], list[float]] = ([], [])
    for _, side in in_turns((1, 0), load.num_pairs):
        found[side].append(await (auto, fixed)[side].span(engines[side], kind, load))
    converge_s = converged_after_s(rates, final_per_s=median(found[0]))
    return Auto(*found, engines[0].stats.limit, converge_s)


@contextlib.contextmanager
def _endpoints(load: Load) -> Iterator[tuple[str, str, Endpoints]]:
    """Starts a bucket behind every latency; yields the server's kind, the URL, and the endpoints."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(local_s3())
        url = server.make_bucket(f"inflight-{secrets.token_hex(6)}")
        values = {f"objects/{number:04d}": secrets.token_bytes(NUM_BYTES["object"]) for number in range(_NUM_OBJECTS)}
        large = {"large": secrets.token_bytes(_NUM_RANGES * NUM_BYTES["range"])}
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
    rates: dict[Cell, list[tuple[float, float]]] = {cell: [] for cell in cells}
    autos: dict[tuple[str, int], list[Auto]] = {pair: [] for pair in pairs}
    clients = {latency_ms: Client(url, options) for latency_ms, (options, _) in endpoints.items()}
    others = {}  # the same endpoints under another name
    for latency_ms, (options, _) in endpoints.items():
        by_name = {"endpoint_url": options["endpoint_url"].replace("127.0.0.1", "localhost")}
        others[latency_ms] = Client(url, {**options, **by_name})
    num_steps = sum(load.num_rounds[cell.kind] for cell in cells) + load.num_turns * len(pairs)
    try:
        with bar(console, "Requests in flight", num_steps) as progress:
            for number, cell in in_turns(cells, max(load.num_rounds.values())):
                if number < load.num_rounds[cell.kind]:
                    client = clients[cell.latency_ms]
                    rates[cell].append(await client.fixed(cell.kind, cell.in_flight, load.window_s))
                    progress.advance()
            # The best of nine measurements flatters its number: it is measured again, between spans of "auto".
            for _ in range(load.num_turns):
                for kind, latency_ms in pairs:
                    best = best_fixed(rates, kind, latency_ms).in_flight
                    done = await _compare(clients[latency_ms], others[latency_ms], kind, best, load)
                    autos[kind, latency_ms].append(done)
                    progress.advance()
    finally:
        for client in (*clients.values(), *others.values()):
            await client.store.close()
    return _figures(rates, autos, {latency_ms: latency_s for latency_ms, (_, latency_s) in endpoints.items()})


def _figures(
    rates: Rates, autos: Mapping[tuple[str, int], Sequence[Auto]], latency_s: Mapping[int, float]
) -> dict[str, Any]:
    per_s = {cell: median(rate for rate, _ in found) for cell, found in rates.items()}
    cpu_per_s = {kind: per_s[best_fixed(rates, kind, _NO_LATENCY)] for kind in NUM_BYTES}
    rows: list[dict[str, Any]] = []
    for cell, rate in per_s.items():
        if cell.latency_ms != _NO_LATENCY:
            limit = limit_per_s(cell, latency_s=latency_s[cell.latency_ms], cpu_per_s=cpu_per_s[cell.kind])
            cpu_ms = median(cpu_ms for _, cpu_ms in rates[cell])
            figures = {"per_s": round(rate, 2), "limit_per_s": round(limit, 2), "ratio": round(rate / limit, 3)}
            rows.append({**cell._asdict(), **figures, "cpu_ms": round(cpu_ms, 3)})
    auto: list[dict[str, Any]] = []
    for (kind, latency_ms), runs in autos.items():
        pairs = [pair for run in runs for pair in zip(run.per_s, run.fixed_per_s, strict=True)]
        auto.append(
            {
                "kind": kind,
                "latency_ms": latency_ms,
                "per_s": round(median(mine for mine, _ in pairs), 2),
                "best_fixed": best_fixed(rates, kind, latency_ms).in_flight,
                "best_fixed_per_s": round(median(fixed for _, fixed in pairs), 2),
                "ratio": round(median(mine / fixed for mine, fixed in pairs), 3),
                "limits": [run.limit for run in runs],
                "converge_s": median(run.converge_s for run in runs),
            }
        )
    latencies = dict.fromkeys(row["latency_ms"] for row in auto)
    return {
        "rows": rows,
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
