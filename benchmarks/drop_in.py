"""Only the class name changed: ``python -m benchmarks.drop_in [--json FILE] [--quick]``.

A script that reads one object of 115 KB per item from a bucket that is 30 ms and 90 MB/s per connection away, with
torch's DataLoader and with ConcurrentDataLoader, all other arguments the same. Sides alternate, each epoch in a process
of its own. The time of a batch is that of an epoch, start of the workers included, by its number of batches; figures
are medians. The first case is a blocking client, botocore, with two workers and the default ``in_flight``. On a machine
with few cores the processor time of a request is the limit, and client, server and proxy share it: ``cpu_ms`` is the
client's.

A second part has datasets whose items compute or lie in memory (`benchmarks.local_items`), with 0, 2 and 4 workers:
there nothing is to be gained. ``never_slower_min`` is the worst cell's median quotient of torch's time and ours,
``never_slower_cpu_min`` that of the CPU times. In each round torch has two turns, before and after ours, whose mean
counts. ``torch_to_itself_min`` and ``torch_to_itself_cpu_min`` are the worst quotients of those two: this machine
cannot tell anything above them from 1. Within one process a quotient is up to a tenth off however many rounds it has,
torch's to itself too; so a cell that looks slower is measured in six more, and the median process counts.
"""

from __future__ import annotations

import multiprocessing
import secrets
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.bucket import BANDWIDTH_MB_S, far_away, put_all
from benchmarks.command import bar, program, rounds
from benchmarks.figures import four_digits, medians, with_spread
from benchmarks.fresh_process import cpu_s, in_fresh_process
from benchmarks.local_items import BATCH_SIZE, HUGGING_FACE, KINDS, SIDES, epoch_times, is_installed
from benchmarks.machine import Bystanders
from benchmarks.peers.bucket import led_to
from benchmarks.peers.job import Job
from benchmarks.peers.programs.items import SOURCES, key_of
from concurrent_loader import ConcurrentDataLoader
from concurrent_loader.map_style.loader import DEFAULT_IN_FLIGHT
from concurrent_loader.storage.testing import local_s3

OBJECT_BYTES = 115_000
NUM_OBJECTS = 256
_BATCH = 32
_WORST = {
    "never_slower_min": "ratio",
    "never_slower_cpu_min": "cpu_ratio",
    "torch_to_itself_min": "to_itself",
    "torch_to_itself_cpu_min": "cpu_to_itself",
}
_PRELOAD = ("benchmarks.drop_in",)
_CLEAR_RATIO = 0.98
_UNITS = {"s": "", "cpu_s": "cpu_"}  # of the times, and what their ratios are called
_EPOCH_S = 300.0  # an epoch that takes longer has hung
Epochs = Sequence[Mapping[str, float]]
Taken = Mapping[str, Sequence[tuple[float, float]]]  # (seconds, processor seconds) of each epoch by side


@dataclass(frozen=True, slots=True)
class Case:
    """What both sides have in common, and what only ours has."""

    client: str  # a source of `benchmarks.peers.programs.items`; with `` async`` behind it by its coroutine
    num_workers: int
    in_flight: int = 64  # of ours


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    cases: tuple[Case, ...]  # the first is the main one
    num_rounds: int
    vanilla_batches: int  # of torch's loader in an epoch, for each of its processes
    ours_batches: int  # of ours in an epoch; more, so that the start weighs as little
    latency_ms: int = 30
    kinds: tuple[str, ...] = tuple(KINDS)  # of local items
    workers: tuple[int, ...] = (0, 2, 4)  # for each of these kinds
    num_local_rounds: int = 21
    num_more_processes: int = 6  # for a cell that looks slower
    local_scale: float = 1.0  # multiplies the number of local items


_CASES = (
    Case("botocore", 2, DEFAULT_IN_FLIGHT),
    Case("botocore", 0, DEFAULT_IN_FLIGHT),
    Case("obstore", 2),
    Case("obstore async", 2),
    Case("obstore async", 0),
)
FULL = Load(_CASES, num_rounds=5, vanilla_batches=8, ours_batches=120)
QUICK = Load(
    (_CASES[0], _CASES[-1]), 1, vanilla_batches=1, ours_batches=4,
    kinds=("in memory", "NumPy augmentation", HUGGING_FACE), workers=(0, 1), num_local_rounds=1, num_more_processes=0,
    local_scale=0.02,
)  # fmt: skip


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds of both parts."""
    return {**_run_remote(load, console), **_run_local(load, console)}


# -- items that do not wait --------------------------------------------------------------------------------------------


def _run_local(load: Load, console: Console) -> dict[str, Any]:
    others = Bystanders()
    cells = [(kind, num_workers) for kind in load.kinds for num_workers in load.workers]
    rows = []
    with tempfile.TemporaryDirectory(prefix="drop-in-") as folder, bar(console, "Cells", len(cells)) as progress:
        for kind, num_workers in cells:
            rows.append(_local_row(kind, num_workers, load, folder))
            progress.advance()
    local = {
        "rows": rows,
        "batch_size": BATCH_SIZE,
        "num_rounds": load.num_local_rounds,
        **others.facts(),
        "machine": others.machine,
    }
    return {**_worst(rows), "local": local}


def _local_row(kind: str, num_workers: int, load: Load, folder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "num_workers": num_workers}
    if not is_installed(kind):
        return {**row, **dict.fromkeys(_WORST.values()), "why_not": "not installed"}
    processes: list[Taken] = []
    # The least of 24 medians is mostly noise, so a cell that looks slower is measured again. The first process is a
    # fork of a server; the others are new interpreters, whose memory lies elsewhere.
    num_rounds = load.num_local_rounds
    for preload, count in ((_PRELOAD, num_rounds), *[((), -(-num_rounds // 3))] * load.num_more_processes):
        arguments = (kind, num_workers, count, load.local_scale, folder)
        what = f"{kind}, {num_workers} workers"
        processes.append(in_fresh_process(epoch_times, arguments, what=what, preload=preload, timeout_s=3 * _EPOCH_S))
        if len(processes) == 1 and _ratios(processes)["ratio"] >= _CLEAR_RATIO:
            break
    times = {
        f"{side}_{unit}": [epoch[number] for taken in processes for epoch in taken[side]]
        for number, unit in enumerate(_UNITS)
        for side in SIDES
    }
    return {**row, **_ratios(processes), **with_spread(times, four_digits), "num_processes": len(processes)}


def _ratios(processes: Sequence[Taken]) -> dict[str, Any]:
    """Returns the figures of the median process."""
    found: dict[str, Any] = {}
    for number, prefix in enumerate(_UNITS.values()):
        rounds = [
            list(zip(*([epoch[number] for epoch in taken[side]] for side in SIDES), strict=True)) for taken in processes
        ]
        found[f"{prefix}ratio"] = _quotient([[((a + b) / 2, ours) for a, ours, b in each] for each in rounds])
        found[f"{prefix}to_itself"] = _quotient([[(a, b) for a, _, b in each] for each in rounds])
    return found


def _quotient(processes: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Returns the median process's median; None if an epoch was too short for the CPU clock, which counts ticks."""
    if any(divisor == 0 for pairs in processes for _, divisor in pairs):
        return None
    typical = [statistics.median(time / divisor for time, divisor in pairs) for pairs in processes]
    return round(statistics.median(typical), 3)


def _worst(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    return {
        name: min((row[of] for row in rows if row.get(of) is not None), default=None) for name, of in _WORST.items()
    }


# -- objects in a bucket -----------------------------------------------------------------------------------------------


class _Objects(Dataset[tuple[int, Tensor]]):
    """One GET per item; further items are the same objects again."""

    def __init__(self, job: Job, client: str, length: int) -> None:
        self._source = SOURCES[client](job)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return _item(index, self._source.read(index % NUM_OBJECTS))


class _ObjectsByCoroutine(_Objects):
    async def getitem_async(self, index: int) -> tuple[int, Tensor]:
        return _item(index, await self._source.read_async(index % NUM_OBJECTS))


def _item(index: int, data: Any) -> tuple[int, Tensor]:
    if len(data) != OBJECT_BYTES or int.from_bytes(bytes(data[:4]), "little") != index % NUM_OBJECTS:
        raise AssertionError(f"item {index} has the wrong bytes")
    return index, torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _run_remote(load: Load, console: Console) -> dict[str, Any]:
    sides = [(case, side) for case in load.cases for side in ("vanilla", "ours")]
    rest, bucket = secrets.token_bytes(OBJECT_BYTES - 4), f"drop-in-{secrets.token_hex(6)}"
    with local_s3() as server:
        job = Job(peer="items", photos="", prefix="objects")
        values = {key_of(job, number): number.to_bytes(4, "little") + rest for number in range(NUM_OBJECTS)}
        put_all(server.make_bucket(bucket), server.storage_options(), values)
        with far_away(server, load.latency_ms) as (far, latency_ms):
            job = led_to(job, far.storage_options(), bucket=bucket)

            def turn(side: tuple[Case, str]) -> dict[str, float]:
                arguments = (job, *side, load)
                return in_fresh_process(_measure, arguments, what=str(side), preload=_PRELOAD, timeout_s=_EPOCH_S)

            epochs = rounds(console, "Epochs", sides, load.num_rounds, turn)
    rows = [_row(case, epochs[case, "vanilla"], epochs[case, "ours"]) for case in load.cases]
    return {
        **{name: rows[0][name] for name in ("vanilla_batch_s", "ours_batch_s", "speedup", "in_flight", "num_workers")},
        "rows": rows,
        "batch_size": _BATCH,
        "object_bytes": OBJECT_BYTES,
        "latency_ms": load.latency_ms,
        "measured_latency_ms": latency_ms,
        "bandwidth_mb_s": BANDWIDTH_MB_S,
        "num_rounds": load.num_rounds,
        "batches": {"vanilla_each_process": load.vanilla_batches, "ours": load.ours_batches},
        "batch_s": [
            {**asdict(case), "side": side, "batch_s": [round(epoch["batch_s"], 4) for epoch in found]}
            for (case, side), found in epochs.items()
        ],
    }


def _row(case: Case, vanilla: Epochs, ours: Epochs) -> dict[str, Any]:
    row: dict[str, Any] = asdict(case)
    for side, typical in (("vanilla", medians(vanilla)), ("ours", medians(ours))):
        row |= {f"{side}_{name}": round(value, 4 if name == "batch_s" else 3) for name, value in typical.items()}
        row[f"{side}_items_per_s"] = round(_BATCH / typical["batch_s"], 1)
    return {**row, "speedup": round(row["vanilla_batch_s"] / row["ours_batch_s"], 2)}


def _measure(job: Job, case: Case, side: str, load: Load) -> dict[str, float]:
    """Measures an epoch, in a process of its own: no client or connection is left from the last.

    Returns the seconds of one batch, on average, and to the first one, and the loader's processor ms per item.
    """
    multiprocessing.set_start_method("fork", force=True)  # torch's workers, as anywhere on Linux
    torch.set_num_threads(1)
    num_batches = load.vanilla_batches * max(1, case.num_workers) if side == "vanilla" else load.ours_batches
    client, _, by_coroutine = case.client.partition(" ")
    dataset = (_ObjectsByCoroutine if by_coroutine else _Objects)(job, client, num_batches * _BATCH)
    common: dict[str, Any] = {"batch_size": _BATCH, "shuffle": True, "num_workers": case.num_workers}
    common["generator"] = torch.Generator().manual_seed(0)
    began = perf_counter()
    kind: Any = DataLoader if side == "vanilla" else ConcurrentDataLoader
    if side == "ours" and case.in_flight != DEFAULT_IN_FLIGHT:
        common["in_flight"] = case.in_flight
    seen, first_batch_s = [], 0.0
    for numbers, _ in kind(dataset, **common):
        first_batch_s = first_batch_s or perf_counter() - began
        seen.extend(numbers.tolist())
    took_s = perf_counter() - began
    order = torch.Generator().manual_seed(0)
    torch.empty((), dtype=torch.int64).random_(generator=order)  # as torch draws the workers' seed first
    if seen != torch.randperm(len(seen), generator=order).tolist():
        raise AssertionError("the items did not come in the sampler's order")
    return {"batch_s": took_s / num_batches, "first_batch_s": first_batch_s, "cpu_ms": 1000 * cpu_s() / len(seen)}


main = program("drop_in", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
