"""The slowest batches, with and without hedging: ``python -m benchmarks.tail [--json FILE] [--quick]``.

A bucket behind a proxy that draws every answer's latency from a lognormal distribution and makes 1 % of the requests 50
times as slow, as real stores do. Batches of small objects, several in flight; a batch takes as long as its slowest
object. Two engines that differ in hedging alone take turns, so that a machine that changes its pace changes both.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from rich.console import Console

from benchmarks.console import Bar, bar, ends_with_one_line
from benchmarks.machine import describe_machine, versions
from benchmarks.output import present
from concurrent_loader.storage.fetch import FetchEngine, HedgePolicy, RetryPolicy
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing import LocalS3, http_faults_process, local_s3, measure_latency
from concurrent_loader.storage.testing.faults.wire_faults import Rates

_NUM_OBJECTS = 512
_OBJECT_BYTES = 8 * 1024
_BATCH = 64
_BATCHES_IN_FLIGHT = 3
_ROUND = 20  # batches that a side takes in its turn
# What is measured is hedging: no deadline comes before the slowest answer.
_PATIENT = RetryPolicy(first_byte_s=60.0)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    json: Path | None  # file for the figures, or None
    num_batches: int  # of each side
    latency_ms: float  # median to the first byte
    sigma: float  # of the lognormal distribution
    slow: float  # share of slow requests
    slow_factor: float  # how much slower
    seed: int  # of the latencies
    client: str  # as for `concurrent_loader.storage.open_store`


@dataclass(slots=True)
class _Side:
    """One engine and how long its batches took."""

    name: str
    engine: FetchEngine
    batch_s: list[float] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        stats = self.engine.stats
        percentiles = quantiles(self.batch_s, n=100)
        needed = len(self.batch_s) * _BATCH
        return {
            "hedging": self.name,
            "batches": len(self.batch_s),
            "p50_s": round(percentiles[49], 4),
            "p95_s": round(percentiles[94], 4),
            "p99_s": round(percentiles[98], 4),
            "needed_gets": needed,
            "gets": stats.num_gets,
            "extra_gets": round(stats.num_gets / needed - 1, 4),
            "retries": stats.num_retries,
            "hedges": stats.num_hedges,
            "hedges_won": stats.num_hedges_won,
        }


def run_benchmark(options: Options, console: Console) -> dict[str, object]:
    """Runs both sides in turns."""
    rates = Rates(
        seed=options.seed,
        latency_s=options.latency_ms / 1000,
        sigma=options.sigma,
        slow=options.slow,
        slow_factor=options.slow_factor,
    )
    figures: dict[str, object] = {"machine": describe_machine(), "versions": versions()}
    with local_s3() as server:
        url = server.make_bucket(f"tail-{secrets.token_hex(4)}")
        with http_faults_process(server, rates) as proxy:
            far = server.through(proxy)
            figures["first_byte_ms"] = round(measure_latency(far.endpoint_url, num_requests=31), 1)
            with bar(console, "Batches", 2 * options.num_batches) as progress:
                sides = asyncio.run(_run(url, server, far, options, progress))
    off, on = (side.row() for side in sides)
    figures |= {
        "server": server.kind,
        "client": options.client,
        "options": {**asdict(options), "json": None},
        "batch": _BATCH,
        "batches_in_flight": _BATCHES_IN_FLIGHT,
        "object_bytes": _OBJECT_BYTES,
        "p99_drop": round(_number(off, "p99_s") / _number(on, "p99_s"), 2),
        "extra_gets": on["extra_gets"],
        "rows": [off, on],
        "batch_s": {side.name: [round(took_s, 4) for took_s in side.batch_s] for side in sides},
    }
    present("tail", figures, console, options.json)
    return figures


def _number(row: dict[str, object], name: str) -> float:
    value = row[name]
    assert isinstance(value, float)
    return value


async def _run(url: str, server: LocalS3, far: LocalS3, options: Options, progress: Bar) -> list[_Side]:
    async with open_store(url, client=options.client, **server.storage_options()) as near:
        await _fill(near)
    async with open_store(url, client=options.client, **far.storage_options()) as store:
        in_flight = _BATCH * _BATCHES_IN_FLIGHT
        sides = [
            _Side("off", FetchEngine(store, in_flight=in_flight, retry=_PATIENT, hedge=None)),
            _Side("on", FetchEngine(store, in_flight=in_flight, retry=_PATIENT, hedge=HedgePolicy())),
        ]
        for number, start in enumerate(range(0, options.num_batches, _ROUND)):
            batches = range(start, min(start + _ROUND, options.num_batches))
            for side in sides if number % 2 == 0 else reversed(sides):
                await _take_turn(side, batches, progress)
    return sides


async def _fill(store: Store) -> None:
    places = asyncio.Semaphore(16)

    async def put(number: int) -> None:
        async with places:
            await store.put(_key(number), number.to_bytes(4, "little") * (_OBJECT_BYTES // 4))

    async with asyncio.TaskGroup() as group:
        for number in range(_NUM_OBJECTS):
            group.create_task(put(number))


def _key(number: int) -> str:
    return f"{number % _NUM_OBJECTS:08x}"


async def _take_turn(side: _Side, batches: range, progress: Bar) -> None:
    """Fetches some batches, as many at once as there are workers."""
    waiting = iter(batches)

    async def work() -> None:
        for batch in waiting:
            began = perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(batch * _BATCH, (batch + 1) * _BATCH):
                    group.create_task(_fetch(side.engine, number))
            side.batch_s.append(perf_counter() - began)
            progress.advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(_BATCHES_IN_FLIGHT):
            group.create_task(work())


async def _fetch(engine: FetchEngine, number: int) -> None:
    result = await engine.fetch(_key(number), 0, _OBJECT_BYTES, object_size=_OBJECT_BYTES)
    if int.from_bytes(result.data[:4], "little") != number % _NUM_OBJECTS:
        raise AssertionError(f"object {number} has the wrong bytes")


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tail", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--batches", type=int, default=400, help="of each side (default 400; 300 make a P99)")
    parser.add_argument("--latency", type=float, default=30.0, help="ms to the first byte, median (default 30)")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the lognormal distribution (default 0.5)")
    parser.add_argument("--slow", type=float, default=0.01, help="share of slow requests (default 0.01)")
    parser.add_argument("--slow-factor", type=float, default=50.0, help="how much slower (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the latencies (default 0)")
    parser.add_argument("--client", default="auto", help="auto, native, aiobotocore")
    parser.add_argument("--quick", action="store_true", help="a few batches, to see that it works")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.batches, parsed.latency = 6, 2.0
    if parsed.batches < 2 or parsed.latency <= 0 or not 0 <= parsed.slow <= 1:
        parser.error("--batches is at least 2, --latency above 0, --slow a share")
    return Options(
        json=parsed.json,
        num_batches=parsed.batches,
        latency_ms=parsed.latency,
        sigma=parsed.sigma,
        slow=parsed.slow,
        slow_factor=parsed.slow_factor,
        seed=parsed.seed,
        client=parsed.client,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    return ends_with_one_line(lambda: run_benchmark(options, Console()))


if __name__ == "__main__":
    sys.exit(main())
