"""Only the class name changed: ``python -m benchmarks.drop_in [--json FILE] [--quick]``.

A script that reads one object of 115 KB an item from a bucket that is 30 ms and 90 MB/s a connection away, with torch's
DataLoader and with ConcurrentDataLoader, all other arguments the same. Sides alternate, each epoch in a process of its
own; the time of a batch is that of an epoch, workers' start included, by its number of batches; figures are medians.
The first case is a blocking client, botocore, with two workers and the default ``in_flight``. On a machine with few
cores the processor time of a request is the limit, and client, server and proxy share it: ``cpu_ms`` is the client's.

A second part has datasets whose items compute or lie in memory (`benchmarks.local_items`), with 0, 2 and 4 workers:
there nothing is to be gained. ``never_slower_min`` is the worst cell's median quotient of torch's time and ours,
``never_slower_cpu_min`` that of the CPU times. In each round torch has two turns, before
and after ours, whose mean counts. ``torch_to_itself_min`` and ``torch_to_itself_cpu_min`` are the worst quotients of
those two: this machine cannot tell anything above them from 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import secrets
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from benchmarks.console import Bar, bar, ends_with_one_line
from benchmarks.fresh_process import cpu_of_fresh_processes_s, in_fresh_process
from benchmarks.local_items import BATCH_SIZE, HUGGING_FACE, KINDS, SIDES, epoch_times, is_installed
from benchmarks.machine import Bystanders, describe_machine, versions
from benchmarks.single_objects import CLIENTS, NUM_OBJECTS, OBJECT_BYTES, key_of
from concurrent_loader import ConcurrentDataLoader
from concurrent_loader.map_style.loader import DEFAULT_IN_FLIGHT
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import local_s3, measure_latency, toxiproxy

_BATCH = 32
_BANDWIDTH_MB_S = 90
_JITTER_PART = 3  # latency is uniform in median ± a third of it
_WORST = {
    "never_slower_min": "ratio",
    "never_slower_cpu_min": "cpu_ratio",
    "torch_to_itself_min": "to_itself",
    "torch_to_itself_cpu_min": "cpu_to_itself",
}
_PRELOAD = ("concurrent_loader.map_style.loader", "benchmarks.local_items", "benchmarks.single_objects")
_EPOCH_S = 300.0  # an epoch that takes longer has hung


@dataclass(frozen=True, slots=True)
class Case:
    """What both sides have in common, and what only ours has."""

    client: str  # see `benchmarks.single_objects`
    num_workers: int  # as for torch's loader
    in_flight: int  # of ours


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    latency_ms: int  # to the first byte
    cases: tuple[Case, ...]  # the first is the main one
    num_rounds: int  # of each
    vanilla_batches: int  # of torch's loader in an epoch, for each of its processes
    ours_batches: int  # of ours in an epoch; more, so that the start weighs as little
    kinds: tuple[str, ...] = tuple(KINDS)  # kinds of local items, keys of `benchmarks.local_items.KINDS`
    workers: tuple[int, ...] = (0, 2, 4)  # numbers of workers for each of these kinds
    num_local_rounds: int = 21  # of each of these cells
    local_scale: float = 1.0  # multiplies the number of local items


_MAIN = Case("botocore", 2, DEFAULT_IN_FLIGHT)
FULL = Load(
    30,
    (
        _MAIN,
        Case("botocore", 0, DEFAULT_IN_FLIGHT),
        Case("obstore", 2, 64),
        Case("obstore async", 2, 64),
        Case("obstore async", 0, 64),
    ),
    num_rounds=5,
    vanilla_batches=8,
    ours_batches=120,
)
QUICK = Load(30, (_MAIN, Case("obstore async", 0, 64)), num_rounds=1, vanilla_batches=1, ours_batches=4,
    kinds=("in memory", "NumPy augmentation", HUGGING_FACE), workers=(0, 1), num_local_rounds=1, local_scale=0.02,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Epoch:
    """One measurement."""

    batch_s: float  # of one batch, on average
    first_batch_s: float  # until the first
    cpu_ms: float  # processor time of the loader's processes for an item


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds of both parts."""
    figures = _run_remote(load, console) if load.cases else {}
    return {**figures, **(_run_local(load, console) if load.kinds else {})}


def _run_local(load: Load, console: Console) -> dict[str, Any]:
    """Measures items that do not wait."""
    machine, began = describe_machine(), perf_counter()
    others = Bystanders()
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="drop-in-") as folder,
        bar(console, "Cells", len(load.kinds) * len(load.workers)) as progress,
    ):
        for kind in load.kinds:
            for num_workers in load.workers:
                rows.append(_local_row(kind, num_workers, load, folder))
                progress.advance()
    return {
        **_worst(rows),
        "local": {
            "rows": rows,
            "batch_size": BATCH_SIZE,
            "num_rounds": load.num_local_rounds,
            "took_s": round(perf_counter() - began, 1),
            "other_programs_share": round(others.share(also_own_s=cpu_of_fresh_processes_s()), 3),
            "machine": machine,
        },
    }


def _local_row(kind: str, num_workers: int, load: Load, folder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "num_workers": num_workers}
    if not is_installed(kind):
        return {**row, **dict.fromkeys(_WORST.values()), "why_not": "not installed"}
    taken: dict[str, list[tuple[float, float]]] = in_fresh_process(
        epoch_times,
        (kind, num_workers, load.num_local_rounds, load.local_scale, folder),
        what=f"{kind}, {num_workers} workers",
        preload=_PRELOAD,
        timeout_s=_EPOCH_S,
    )
    for number, unit in enumerate(("s", "cpu_s")):
        sides = {side: [round(epoch[number], 5) for epoch in taken[side]] for side in SIDES}
        rounds = list(zip(*sides.values(), strict=True))
        ratio = _quotient([((torch + again) / 2, ours) for torch, ours, again in rounds])
        row["ratio" if unit == "s" else "cpu_ratio"] = ratio
        itself = _quotient([(torch, again) for torch, _, again in rounds])
        row["to_itself" if unit == "s" else "cpu_to_itself"] = itself
        row |= {f"{side}_{unit}": times for side, times in sides.items()}
    return row


def _quotient(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Computes the median quotient; None if an epoch was too short for the CPU clock, which counts ticks."""
    if any(divisor == 0 for _, divisor in pairs):
        return None
    return round(statistics.median(time / divisor for time, divisor in pairs), 3)


def _run_remote(load: Load, console: Console) -> dict[str, Any]:
    """Measures objects in a bucket."""
    machine, began = describe_machine(), perf_counter()
    epochs: dict[tuple[Case, str], list[Epoch]] = {}
    with _far_bucket(load.latency_ms) as (bucket, options, latency_ms):
        others = Bystanders()
        with bar(console, "Epochs", 2 * load.num_rounds * len(load.cases)) as progress:
            for number in range(load.num_rounds):
                for case in load.cases:
                    for side in ("vanilla", "ours") if number % 2 == 0 else ("ours", "vanilla"):
                        epochs.setdefault((case, side), []).append(_epoch(bucket, options, case, side, load, progress))
        share = others.share(also_own_s=cpu_of_fresh_processes_s())
    rows = [_row(case, epochs[case, "vanilla"], epochs[case, "ours"]) for case in load.cases]
    return {
        **{name: rows[0][name] for name in ("vanilla_batch_s", "ours_batch_s", "speedup", "in_flight", "num_workers")},
        "rows": rows,
        "batch_size": _BATCH,
        "object_bytes": OBJECT_BYTES,
        "latency_ms": load.latency_ms,
        "measured_latency_ms": round(latency_ms, 2),
        "bandwidth_mb_s": _BANDWIDTH_MB_S,
        "num_rounds": load.num_rounds,
        "batches": {"vanilla_each_process": load.vanilla_batches, "ours": load.ours_batches},
        "batch_s": [
            {**asdict(case), "side": side, "batch_s": [round(epoch.batch_s, 4) for epoch in found]}
            for (case, side), found in epochs.items()
        ],
        "took_s": round(perf_counter() - began, 1),
        "other_programs_share": round(share, 3),
        "machine": machine,
        "versions": versions(),
    }


def _row(case: Case, vanilla: Sequence[Epoch], ours: Sequence[Epoch]) -> dict[str, Any]:
    def median(epochs: Sequence[Epoch], name: str) -> float:
        return float(statistics.median(getattr(epoch, name) for epoch in epochs))

    theirs_s, ours_s = median(vanilla, "batch_s"), median(ours, "batch_s")
    return {
        **asdict(case),
        "vanilla_batch_s": round(theirs_s, 4),
        "ours_batch_s": round(ours_s, 4),
        "speedup": round(theirs_s / ours_s, 2),
        "vanilla_items_per_s": round(_BATCH / theirs_s, 1),
        "ours_items_per_s": round(_BATCH / ours_s, 1),
        "vanilla_first_batch_s": round(median(vanilla, "first_batch_s"), 3),
        "ours_first_batch_s": round(median(ours, "first_batch_s"), 3),
        "vanilla_cpu_ms": round(median(vanilla, "cpu_ms"), 3),
        "ours_cpu_ms": round(median(ours, "cpu_ms"), 3),
    }


@contextlib.contextmanager
def _far_bucket(latency_ms: int) -> Iterator[tuple[str, dict[str, str], float]]:
    """A bucket with objects: its name, the options that lead to it by way of the latency, the latency measured."""
    with local_s3() as server:
        bucket = f"drop-in-{secrets.token_hex(6)}"
        asyncio.run(_fill(server.make_bucket(bucket), server.storage_options()))
        with toxiproxy(
            server, latency_ms=latency_ms, jitter_ms=latency_ms // _JITTER_PART, bandwidth_mb_s=_BANDWIDTH_MB_S
        ) as proxy:
            measured_ms = measure_latency(proxy.endpoint_url, num_requests=21)
            yield bucket, server.through(proxy).storage_options(), measured_ms


async def _fill(url: str, options: Mapping[str, str]) -> None:
    async with open_store(url, **options) as store:
        rest = secrets.token_bytes(OBJECT_BYTES - 4)
        for start in range(0, NUM_OBJECTS, 16):
            await asyncio.gather(
                *(store.put(key_of(number), number.to_bytes(4, "little") + rest) for number in range(start, start + 16))
            )


def _epoch(bucket: str, options: Mapping[str, str], case: Case, side: str, load: Load, progress: Bar) -> Epoch:
    """Measures an epoch in a process of its own, with no client or connection left from the last."""
    epoch = in_fresh_process(
        _measure,
        (bucket, dict(options), case, side, load),
        what=f"{side}, {case}",
        preload=_PRELOAD,
        timeout_s=_EPOCH_S,
    )
    progress.advance()
    return epoch


def _measure(bucket: str, options: dict[str, str], case: Case, side: str, load: Load) -> Epoch:
    multiprocessing.set_start_method("fork", force=True)  # torch's workers, as anywhere on Linux
    torch.set_num_threads(1)
    num_batches = load.vanilla_batches * max(1, case.num_workers) if side == "vanilla" else load.ours_batches
    dataset = CLIENTS[case.client](bucket, options, num_batches * _BATCH, case.in_flight)
    common: dict[str, Any] = {
        "batch_size": _BATCH,
        "shuffle": True,
        "num_workers": case.num_workers,
        "generator": torch.Generator().manual_seed(0),
    }
    began = perf_counter()
    kind: Any = DataLoader
    if side == "ours":
        kind = ConcurrentDataLoader
        if case.in_flight != DEFAULT_IN_FLIGHT:
            common["in_flight"] = case.in_flight
    loader = kind(dataset, **common)
    seen, first_batch_s = [], 0.0
    for numbers, _ in loader:
        first_batch_s = first_batch_s or perf_counter() - began
        seen.extend(numbers.tolist())
    took_s = perf_counter() - began
    order = torch.Generator().manual_seed(0)
    torch.empty((), dtype=torch.int64).random_(generator=order)  # as torch draws the workers' seed first
    if seen != torch.randperm(len(seen), generator=order).tolist():
        raise AssertionError("the items did not come in the sampler's order")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    return Epoch(took_s / num_batches, first_batch_s, 1000 * cpu_s / len(seen))


def merged(earlier: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Puts the figures of a part of the cases in the place of earlier ones of the same cases."""
    both = {**earlier, **figures}
    if "local" in earlier and "local" in figures:
        again = {(row["kind"], row["num_workers"]) for row in figures["local"]["rows"]}
        kept = [row for row in earlier["local"]["rows"] if (row["kind"], row["num_workers"]) not in again]
        order = list(KINDS)
        rows = sorted(
            [*kept, *figures["local"]["rows"]], key=lambda row: (order.index(row["kind"]), row["num_workers"])
        )
        both["local"] = {**figures["local"], "rows": rows}
        both |= _worst(rows)
    return both


def _worst(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    return {
        name: min((row[of] for row in rows if row.get(of) is not None), default=None) for name, of in _WORST.items()
    }


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints the tables."""
    if "rows" in figures:
        _show_remote(figures, console)
    if "local" in figures:
        _show_local(figures, console)


def _show_local(figures: Mapping[str, Any], console: Console) -> None:
    local = figures["local"]
    table = Table(title="items that compute or lie in memory: torch's time ÷ ours", box=box.SIMPLE_HEAD)
    for title in ("items", "workers", "torch s", "ours s", "ratio", "(to itself)", "CPU ratio", "(to itself)"):
        table.add_column(title, justify="left" if title == "items" else "right", no_wrap=True)
    for row in local["rows"]:
        cells = [row.get("why_not", "–")] * 6
        if row["ratio"] is not None:
            cells = [f"{statistics.median(row[side]):.3f}" for side in ("torch_s", "ours_s")]
            cells += [
                "–" if row[name] is None else f"{row[name]:.3f}"
                for name in ("ratio", "to_itself", "cpu_ratio", "cpu_to_itself")
            ]
        table.add_row(row["kind"], str(row["num_workers"]), *cells)
    console.print(table)


def _show_remote(figures: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"batches of {_BATCH} objects, {figures['latency_ms']} ms away", box=box.SIMPLE_HEAD)
    for title in ("client", "workers", "in flight", "torch s", "ours s", "speed-up", "items/s", "CPU ms an item"):
        table.add_column(title, justify="left" if title == "client" else "right", no_wrap=True)
    for row in figures["rows"]:
        table.add_row(
            row["client"],
            str(row["num_workers"]),
            str(row["in_flight"]),
            f"{row['vanilla_batch_s']:.3f}",
            f"{row['ours_batch_s']:.3f}",
            f"{row['speedup']:.1f}×",
            f"{row['vanilla_items_per_s']:,.0f} → {row['ours_items_per_s']:,.0f}",
            f"{row['vanilla_cpu_ms']:.2f} → {row['ours_cpu_ms']:.2f}",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drop_in", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a few batches, to see that it works")
    parser.add_argument(
        "--rounds", type=int, help=f"of each case (default {FULL.num_rounds} and {FULL.num_local_rounds})"
    )
    parser.add_argument("--main", action="store_true", help="only the main case, and no local items")
    parser.add_argument("--only", choices=("remote", "local"), help="one part; the other's figures in FILE are kept")
    parser.add_argument(
        "--kind", nargs="+", choices=tuple(KINDS), metavar="KIND", help="only such local items; FILE keeps the rest"
    )
    parsed = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if parsed.rounds is not None and parsed.rounds < 1:
        parser.error("--rounds is at least 1")
    load = QUICK if parsed.quick else FULL
    load = replace(
        load,
        num_rounds=parsed.rounds or load.num_rounds,
        num_local_rounds=parsed.rounds or load.num_local_rounds,
        cases=() if parsed.only == "local" or parsed.kind else load.cases[:1] if parsed.main else load.cases,
        kinds=() if parsed.main or parsed.only == "remote" else tuple(parsed.kind or load.kinds),
    )

    def run() -> None:
        console = Console()
        figures = run_benchmark(load, console)
        show(figures, console)
        if parsed.json is not None:
            if (parsed.only or parsed.kind) and parsed.json.exists():
                figures = merged(json.loads(parsed.json.read_text(encoding="utf-8")), figures)
            parsed.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    return ends_with_one_line(run)


if __name__ == "__main__":
    sys.exit(main())
