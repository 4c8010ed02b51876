"""Requests in flight against latency: ``python -m benchmarks.inflight [--json FILE] [--quick]``.

How much of what is possible the fetch engine reaches with 1 … 256 requests in flight at 5, 30 and 130 ms to the first
byte and 90 MB/s a connection, for raw objects of 115 KB and for ranges of 8 MiB that are only taken and thrown away;
and whether ``in_flight="auto"`` finds the best number, and how soon. Possible is what the latency measured through the
same proxy allows, and no more than the same client, server and proxy reach in the same run without latency: all of them
share this machine's processors. Rounds alternate over all cells; figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.console import bar, ends_with_one_line
from benchmarks.inflight_figures import (
    Cell,
    Cycles,
    best_fixed,
    converged_after_s,
    limit_per_s,
    rate_of,
    rate_over,
    rates_between,
    rows,
)
from benchmarks.machine import Bystanders, describe_machine, versions
from benchmarks.output import present
from concurrent_loader.storage.fetch import FetchEngine, InFlight
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import local_s3, measure_latency, toxiproxy

OBJECT_BYTES = 115_000
RANGE_BYTES = 8 << 20
NUM_BYTES = {"object": OBJECT_BYTES, "range": RANGE_BYTES}
_BANDWIDTH_MB_S = 90
_NUM_OBJECTS = 200
_NUM_RANGES = 8
# For the processors' limit: a proxy that adds nothing, but does the same work for it.
_NO_LATENCY = 0
_NO_BOUND_MB_S = 100_000
_IN_QUEUE = 8  # requests beyond the limit, so that it is the limit that holds back
_TICK_S = 0.05
_BUCKET_S = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    latencies_ms: tuple[int, ...]  # to the first byte
    in_flight: tuple[int, ...]  # fixed numbers
    cpu_in_flight: tuple[int, ...]  # numbers to try without latency; the best counts
    num_rounds: Mapping[str, int]  # of the table, by kind, as ranges take longer
    num_turns: int  # of "auto", each with an engine that knows nothing
    num_pairs: int  # in each turn: as many short spans of "auto" and of the best fixed number, alternating
    window_s: float  # of one fixed number, at least; every worker is answered twice in any case
    warm_s: float  # that "auto" gets to find its number
    settle_s: float  # at the beginning of a span, that is not measured
    span_s: float  # that is measured then


FULL = Load(
    (5, 30, 130),
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
    (8, 16, 32, 64),
    {"object": 2, "range": 1},
    5,
    3,
    0.5,
    4.0,
    0.5,
    1.0,
)
QUICK = Load((5, 30), (1, 16, 64), (16,), {"object": 1, "range": 1}, 1, 1, 0.3, 2.0, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class Auto:
    """What ``in_flight="auto"`` did in one turn, and what the best fixed number did between its spans."""

    per_s: list[float]
    fixed_per_s: list[float]
    limit: int
    converge_s: float


class Client:
    """Sends requests of both kinds through one proxy."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._store = open_store(url, **options)
        self._number = 0

    async def close(self) -> None:
        """Closes the connections."""
        await self._store.close()

    def request(self, engine: FetchEngine, kind: str) -> Callable[[], Awaitable[object]]:
        """A function that brings the next object or range."""

        async def drop(position: int, piece: memoryview) -> None: ...

        async def bring_object() -> None:
            self._number += 1
            await engine.fetch(f"objects/{self._number % _NUM_OBJECTS:04d}", 0, OBJECT_BYTES)

        async def bring_range() -> None:
            self._number += 1
            start = self._number % _NUM_RANGES * RANGE_BYTES
            await engine.fetch_into("large", start, start + RANGE_BYTES, drop)

        return bring_object if kind == "object" else bring_range

    def engine(self, in_flight: InFlight) -> FetchEngine:
        """An engine of its own, whose bytes in flight are no bound."""
        gc.collect()  # the limit of the last one must not be inherited
        return FetchEngine(self._store, in_flight=in_flight, bytes_in_flight="16GiB")

    async def fixed(self, kind: str, in_flight: int, window_s: float) -> tuple[float, float]:
        """Requests a second with a fixed number in flight, and the client's processor time of one in ms."""
        bring = self.request(self.engine(in_flight), kind)
        firsts, lasts, nums = [0.0] * in_flight, [0.0] * in_flight, [0] * in_flight
        missing = in_flight
        enough = asyncio.Event()

        async def work(worker: int) -> None:
            nonlocal missing
            await bring()
            firsts[worker] = time.perf_counter()
            while True:
                await bring()
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
        """Wants a little more at once than the engine admits; returns times, and bytes until then."""
        bring = self.request(engine, kind)
        num_workers = 0

        def look() -> tuple[float, int]:
            stats = engine.stats
            return time.perf_counter(), stats.num_bytes - stats.wasted_bytes

        async def work() -> None:
            nonlocal num_workers
            while time.perf_counter() < ends_s and num_workers <= engine.stats.limit + 2 * _IN_QUEUE:
                await bring()
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
        """Measures one span: answers a second."""
        seen = await self.demand(engine, kind, load.settle_s + load.span_s)
        starts_s = seen[0][0] + load.settle_s
        return rate_over([look for look in seen if look[0] >= starts_s - _TICK_S], num_bytes=NUM_BYTES[kind])


async def _compare(auto: Client, fixed: Client, kind: str, best: int, load: Load) -> Auto:
    """Lets "auto" find its number, then measures it and the best fixed one in short spans, alternating.

    The two clients must name the endpoint differently: its readers share one limit.
    """
    engines = auto.engine("auto"), fixed.engine(best)
    seen = await auto.demand(engines[0], kind, load.warm_s)
    rates = rates_between(seen, num_bytes=NUM_BYTES[kind])
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(load.num_pairs):
        for side in (0, 1) if number % 2 else (1, 0):
            found[side].append(await (auto, fixed)[side].span(engines[side], kind, load))
    return Auto(
        found[0],
        found[1],
        engines[0].stats.limit,
        converged_after_s(rates, bucket_s=_BUCKET_S, final_per_s=statistics.median(found[0])),
    )


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """The same endpoint under another name."""
    return {**options, "endpoint_url": options["endpoint_url"].replace("127.0.0.1", "localhost")}


async def _fill(url: str, options: Mapping[str, str]) -> None:
    async with open_store(url, **options) as store:
        data = secrets.token_bytes(OBJECT_BYTES)
        for start in range(0, _NUM_OBJECTS, 20):
            await asyncio.gather(*(store.put(f"objects/{number:04d}", data) for number in range(start, start + 20)))
        await store.put("large", secrets.token_bytes(_NUM_RANGES * RANGE_BYTES))


@contextlib.contextmanager
def _endpoints(load: Load) -> Iterator[tuple[str, str, dict[int, tuple[dict[str, str], float]]]]:
    """A bucket behind every latency: the server's kind, the URL, and by latency its options and what was measured."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(local_s3())
        name = f"inflight-{secrets.token_hex(6)}"
        url = server.make_bucket(name)
        asyncio.run(_fill(url, server.storage_options()))
        found = {}
        for latency_ms in (_NO_LATENCY, *load.latencies_ms):
            bandwidth = _BANDWIDTH_MB_S if latency_ms else _NO_BOUND_MB_S
            proxy = stack.enter_context(toxiproxy(server, latency_ms=latency_ms, bandwidth_mb_s=bandwidth))
            if not latency_ms:
                proxy.add_toxic("latency", "latency", latency=0, jitter=0)
            measured_s = measure_latency(proxy.endpoint_url, num_requests=21) / 1000
            found[latency_ms] = server.through(proxy).storage_options(), measured_s
        yield server.kind, url, found


def run_benchmark(load: Load, console: Console) -> dict[str, object]:
    """Runs all rounds."""
    machine = describe_machine()
    began_s = time.perf_counter()
    with _endpoints(load) as (kind, url, endpoints):
        others = Bystanders()
        figures = asyncio.run(_measure(url, endpoints, load, console))
        share = others.share()
    return {
        **figures,
        "server": kind,
        "bandwidth_mb_s": _BANDWIDTH_MB_S,
        "num_bytes": NUM_BYTES,
        "load": asdict(load),
        "took_s": round(time.perf_counter() - began_s, 1),
        "other_programs_share": round(share, 3),
        "machine": machine,
        "versions": versions(),
    }


async def _measure(
    url: str, endpoints: Mapping[int, tuple[dict[str, str], float]], load: Load, console: Console
) -> dict[str, object]:
    rates: dict[Cell, list[float]] = {}
    cpu_ms: dict[Cell, list[float]] = {}
    autos: dict[tuple[str, int], list[Auto]] = {}
    clients = {latency_ms: Client(url, options) for latency_ms, (options, _) in endpoints.items()}
    others = {latency_ms: Client(url, _by_name(options)) for latency_ms, (options, _) in endpoints.items()}
    cells = [
        Cell(kind, latency_ms, in_flight)
        for kind in NUM_BYTES
        for latency_ms in endpoints
        for in_flight in (load.in_flight if latency_ms else load.cpu_in_flight)
    ]
    pairs = [(kind, latency_ms) for kind in NUM_BYTES for latency_ms in load.latencies_ms]
    try:
        num_steps = sum(load.num_rounds[cell.kind] for cell in cells) + load.num_turns * len(pairs)
        with bar(console, "Requests in flight", num_steps) as progress:
            for number in range(max(load.num_rounds.values())):
                for cell in cells if number % 2 == 0 else reversed(cells):
                    if number >= load.num_rounds[cell.kind]:
                        continue
                    rate, cost_ms = await clients[cell.latency_ms].fixed(cell.kind, cell.in_flight, load.window_s)
                    rates.setdefault(cell, []).append(rate)
                    cpu_ms.setdefault(cell, []).append(cost_ms)
                    progress.advance()
            # The best of nine measurements is better than its number: it is measured again, between spans of "auto".
            for _ in range(load.num_turns):
                for kind, latency_ms in pairs:
                    best = best_fixed(rates, kind, latency_ms)
                    done = await _compare(clients[latency_ms], others[latency_ms], kind, best, load)
                    autos.setdefault((kind, latency_ms), []).append(done)
                    progress.advance()
    finally:
        for client in (*clients.values(), *others.values()):
            await client.close()
    return _figures(rates, cpu_ms, autos, {latency_ms: latency_s for latency_ms, (_, latency_s) in endpoints.items()})


def _figures(
    rates: Mapping[Cell, Sequence[float]],
    cpu_ms: Mapping[Cell, Sequence[float]],
    autos: Mapping[tuple[str, int], Sequence[Auto]],
    latency_s: Mapping[int, float],
) -> dict[str, object]:
    cpu_per_s = {
        kind: max(
            statistics.median(found) for cell, found in rates.items() if (cell.kind, cell.latency_ms) == (kind, 0)
        )
        for kind in NUM_BYTES
    }
    behind = {cell: found for cell, found in rates.items() if cell.latency_ms != _NO_LATENCY}
    limits = {
        cell: limit_per_s(
            cell.in_flight,
            latency_s=latency_s[cell.latency_ms],
            num_bytes=NUM_BYTES[cell.kind],
            bytes_per_s=_BANDWIDTH_MB_S * 1e6,
            cpu_per_s=cpu_per_s[cell.kind],
        )
        for cell in behind
    }
    table = rows(behind, cpu_ms, limits)
    ratios = {
        pair: statistics.median(
            per_s / fixed for run in runs for per_s, fixed in zip(run.per_s, run.fixed_per_s, strict=True)
        )
        for pair, runs in autos.items()
    }
    auto = [
        {
            "kind": kind,
            "latency_ms": latency_ms,
            "per_s": round(statistics.median(per_s for run in runs for per_s in run.per_s), 2),
            "best_fixed": best_fixed(rates, kind, latency_ms),
            "best_fixed_per_s": round(statistics.median(per_s for run in runs for per_s in run.fixed_per_s), 2),
            "ratio": round(ratios[kind, latency_ms], 3),
            "limits": [run.limit for run in runs],
            "converge_s": statistics.median(run.converge_s for run in runs),
        }
        for (kind, latency_ms), runs in autos.items()
    ]
    return {
        "rows": [asdict(row) for row in table],
        # By latency, the worse of the two kinds.
        "auto_ratio": {
            str(latency): round(min(ratio for (_, other), ratio in ratios.items() if other == latency), 3)
            for latency in {latency for _, latency in ratios}
        },
        "auto": auto,
        "cpu_limit_per_s": {kind: round(per_s, 1) for kind, per_s in cpu_per_s.items()},
        "measured_latency_ms": {str(latency): round(1000 * seconds, 2) for latency, seconds in latency_s.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inflight", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a few cells in half a minute, to see that it works")
    parsed = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    def run() -> None:
        console = Console()
        figures = run_benchmark(QUICK if parsed.quick else FULL, console)
        present("inflight", figures, console, parsed.json)

    return ends_with_one_line(run)


if __name__ == "__main__":
    sys.exit(main())
