"""The slowest batches, with and without hedging: ``python -m benchmarks.tail [--json FILE] [--quick]``.

A bucket behind a proxy that draws every answer's latency from a lognormal distribution and makes 1 % of the requests 50
times as slow, as real stores do. Batches of small objects, several in flight; a batch takes as long as its slowest
object. Two engines that differ in hedging alone take turns, so that a machine that changes its pace changes both.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.bucket import at_once, put_all
from benchmarks.command import Bar, bar, in_turns, program
from concurrent_loader.storage import FetchEngine, HedgePolicy, RetryPolicy, open_store
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
class Load:
    """How much is measured, and how slow the bucket is."""

    num_batches: int = 400  # of each side; 300 make a P99
    latency_ms: float = 30.0  # to the first byte, median
    sigma: float = 0.5  # of the lognormal distribution
    slow: float = 0.01  # share of slow requests
    slow_factor: float = 50.0  # how much slower they are
    seed: int = 0  # of the latencies


FULL, QUICK = Load(), Load(num_batches=6, latency_ms=2.0)


@dataclass(slots=True)
class _Side:
    """One engine and how long its batches took."""

    name: str
    engine: FetchEngine
    batch_s: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        stats, percentiles, needed = self.engine.stats, quantiles(self.batch_s, n=100), len(self.batch_s) * _BATCH
        return {
            "hedging": self.name,
            "batches": len(self.batch_s),
            **{f"p{share}_s": round(percentiles[share - 1], 4) for share in (50, 95, 99)},
            "needed_gets": needed,
            "gets": stats.num_gets,
            "extra_gets": round(stats.num_gets / needed - 1, 4),
            "retries": stats.num_retries,
            "hedges": stats.num_hedges,
            "hedges_won": stats.num_hedges_won,
        }


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs both sides in turns."""
    slowness = {"sigma": load.sigma, "slow": load.slow, "slow_factor": load.slow_factor}
    rates = Rates(seed=load.seed, latency_s=load.latency_ms / 1000, **slowness)
    with local_s3() as server:
        url = server.make_bucket(f"tail-{secrets.token_hex(4)}")
        values = {f"{each:08x}": each.to_bytes(4, "little") * (_OBJECT_BYTES // 4) for each in range(_NUM_OBJECTS)}
        put_all(url, server.storage_options(), values)
        with http_faults_process(server, rates) as proxy:
            far = server.through(proxy)
            first_byte_ms = measure_latency(far.endpoint_url, num_requests=31)
            with bar(console, "Batches", 2 * load.num_batches) as progress:
                sides = asyncio.run(_run(url, far, load, progress))
    off, on = (side.row() for side in sides)
    return {
        "first_byte_ms": round(first_byte_ms, 1),
        "server": server.kind,
        "client": "auto",
        "options": asdict(load),
        "batch": _BATCH,
        "batches_in_flight": _BATCHES_IN_FLIGHT,
        "object_bytes": _OBJECT_BYTES,
        "p99_drop": round(off["p99_s"] / on["p99_s"], 2),
        "extra_gets": on["extra_gets"],
        "rows": [off, on],
        "batch_s": {side.name: [round(took_s, 4) for took_s in side.batch_s] for side in sides},
    }


async def _run(url: str, far: LocalS3, load: Load, progress: Bar) -> list[_Side]:
    async with open_store(url, **far.storage_options()) as store:
        options: dict[str, Any] = {"in_flight": _BATCH * _BATCHES_IN_FLIGHT, "retry": _PATIENT}
        policies = {"off": None, "on": HedgePolicy()}
        sides = [_Side(name, FetchEngine(store, hedge=hedge, **options)) for name, hedge in policies.items()]
        for number, side in in_turns(sides, -(-load.num_batches // _ROUND)):

            async def take(batch: int, side: _Side = side) -> None:
                began = perf_counter()
                async with asyncio.TaskGroup() as group:
                    for item in range(batch * _BATCH, (batch + 1) * _BATCH):
                        group.create_task(_fetch(side.engine, item % _NUM_OBJECTS))
                side.batch_s.append(perf_counter() - began)
                progress.advance()

            await at_once(take, range(load.num_batches)[number * _ROUND : (number + 1) * _ROUND], _BATCHES_IN_FLIGHT)
    return sides


async def _fetch(engine: FetchEngine, number: int) -> None:
    result = await engine.fetch(f"{number:08x}", 0, _OBJECT_BYTES, object_size=_OBJECT_BYTES)
    if int.from_bytes(result.data[:4], "little") != number:
        raise AssertionError(f"object {number} has the wrong bytes")


main = program("tail", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
