"""Which S3 client should `storage.open_store` take? Every client, through our own stores, against one local server.

    python -m benchmarks.clients [--json FILE] [--quick]

Small objects at 32 in flight and 8 MiB ranges at 16 in flight; rounds alternate between the clients, so that a busy
machine is busy for all of them; medians, and the CPU time that the client cost this process (the server is another).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.console import bar
from benchmarks.machine import describe_machine, versions
from storage.stores import Store, open_store
from storage.testing import local_s3

__all__ = ["Cost", "Figures", "main", "measure", "summarise"]

CLIENTS = {"obstore": "obstore", "aiobotocore": "aiobotocore", "s3fs": "fsspec"}
SMALL_BYTES = 58_000
RANGE_BYTES = 8 << 20
SMALL_IN_FLIGHT = 32
RANGES_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked for in a round: ``small`` so that a test can run it, `FULL` for figures."""

    num_keys: int
    num_small: int
    num_ranges: int
    num_rounds: int


FULL = Load(num_keys=500, num_small=2000, num_ranges=64, num_rounds=5)
QUICK = Load(num_keys=3, num_small=6, num_ranges=2, num_rounds=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """One round of one client: wall time, and CPU time of this process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of a client's rounds.

    Attributes:
        small_per_s: Objects of 58 KB a second.
        small_cpu_ms: CPU time of one of them.
        ranges_gb_per_s: GB a second in ranges of 8 MiB.
        ranges_cpu_s_per_gb: CPU time of a GB.
    """

    small_per_s: float
    small_cpu_ms: float
    ranges_gb_per_s: float
    ranges_cpu_s_per_gb: float


def summarise(small: list[Cost], ranges: list[Cost], load: Load) -> Figures:
    """Medians over rounds, per request and per GB."""
    num_gb = load.num_ranges * RANGE_BYTES / 1e9
    return Figures(
        small_per_s=load.num_small / statistics.median(cost.wall_s for cost in small),
        small_cpu_ms=1000 * statistics.median(cost.cpu_s for cost in small) / load.num_small,
        ranges_gb_per_s=num_gb / statistics.median(cost.wall_s for cost in ranges),
        ranges_cpu_s_per_gb=statistics.median(cost.cpu_s for cost in ranges) / num_gb,
    )


async def measure(
    url: str, options: dict[str, str], load: Load, *, on_round: Callable[[], object] = lambda: None
) -> dict[str, Figures]:
    """Fills a bucket, lets every client read it in turn, and sums up."""
    small: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
    ranges: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
    async with AsyncExitStack() as stack:
        stores = {
            name: await stack.enter_async_context(open_store(url, client=client, **options))
            for name, client in CLIENTS.items()
        }
        num_blocks = await _fill(stores["obstore"], load)
        for number in range(load.num_rounds + 1):
            for name in _rotated(list(CLIENTS), number):
                read_small, read_range = _readers(stores[name], load.num_keys, num_blocks)
                small_cost = await _timed(read_small, load.num_small, SMALL_IN_FLIGHT)
                range_cost = await _timed(read_range, load.num_ranges, RANGES_IN_FLIGHT)
                if number:  # the first round makes clients and connections
                    small[name].append(small_cost)
                    ranges[name].append(range_cost)
                on_round()
    return {name: summarise(small[name], ranges[name], load) for name in CLIENTS}


async def _fill(store: Store, load: Load) -> int:
    """Puts the objects; returns how many ranges the large one has."""
    data = secrets.token_bytes(SMALL_BYTES)
    num_blocks = min(load.num_ranges, 16)
    await asyncio.gather(*(store.put(f"small/{number:05d}", data) for number in range(load.num_keys)))
    await store.put("large", secrets.token_bytes(num_blocks * RANGE_BYTES))
    return num_blocks


def _readers(
    store: Store, num_keys: int, num_blocks: int
) -> tuple[Callable[[int], Awaitable[int]], Callable[[int], Awaitable[int]]]:
    async def read_small(number: int) -> int:
        return len((await store.get(f"small/{number % num_keys:05d}")).data)

    async def read_range(number: int) -> int:
        start = number % num_blocks * RANGE_BYTES
        return len((await store.get_range("large", start, start + RANGE_BYTES)).data)

    return read_small, read_range


async def _timed(read: Callable[[int], Awaitable[int]], num_requests: int, in_flight: int) -> Cost:
    numbers = iter(range(num_requests))

    async def work() -> None:
        for number in numbers:
            await read(number)

    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _table(figures: dict[str, Figures]) -> Table:
    table = Table(title="S3 clients, one process, one local server (medians)")
    table.add_column("client", no_wrap=True)
    for title in ("58 KB objects/s", "CPU ms each", "8 MiB ranges GB/s", "CPU s a GB", "÷ obstore"):
        table.add_column(title, justify="right")
    for name, found in figures.items():
        table.add_row(
            name,
            f"{found.small_per_s:,.0f}",
            f"{found.small_cpu_ms:.2f}",
            f"{found.ranges_gb_per_s:.2f}",
            f"{found.ranges_cpu_s_per_gb:.2f}",
            f"{found.small_per_s / figures['obstore'].small_per_s:.2f}",
        )
    return table


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a few requests, to see that it works")
    options = parser.parse_args(arguments)
    file: Path | None = options.json
    load = QUICK if options.quick else FULL
    console = Console()
    machine = describe_machine()
    with local_s3() as server, bar(console, "clients", (load.num_rounds + 1) * len(CLIENTS)) as progress:
        name = f"clients-{secrets.token_hex(6)}"
        server.make_bucket(name)
        figures = asyncio.run(measure(f"s3://{name}", server.storage_options(), load, on_round=progress.advance))
    console.print(_table(figures))
    if file is not None:
        report = {
            "clients": {name: asdict(found) for name, found in figures.items()},
            "load": asdict(load)
            | {"small_bytes": SMALL_BYTES, "range_bytes": RANGE_BYTES}
            | {"small_in_flight": SMALL_IN_FLIGHT, "ranges_in_flight": RANGES_IN_FLIGHT},
            "server": server.kind,
            "machine": machine,
            "versions": versions(),
        }
        file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
