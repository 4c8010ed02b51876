"""Beside our forerunners: ``python -m benchmarks.forerunners [--json FILE] [--quick]``; five minutes on two cores.

Their tables, measured again with our loader in their place, beside the figures that they published:
ConcurrentDataloader and datadings (`benchmarks.layers`), Zolnouri et al. (`benchmarks.pipelines`) and L3
(`benchmarks.lossless`). The last two are measured by those benchmarks: their committed figures are taken, or they are
run if there are none.

Each epoch has a process of its own, sides alternate, figures are medians, and what every side delivered is compared
with the files. The JSON has:

- ``compared``: a published figure per row: ``forerunner``, ``what``, ``theirs``, ``ours``, ``source``;
- ``differences``: by forerunner, in what the set-ups differ;
- ``layers``: a row for each ``place`` (local, s3), ``layer`` and ``side``: ``samples_s``, ``samples_s_spread``,
  ``batch_load_s`` (median, from a batch's first item begun to its being whole; null where items have no beginning),
  ``batch_every_s`` (time of an epoch for each of its batches), ``first_batch_s``, ``cpu_s_per_1000``, ``peak_rss_mb``,
  ``num_samples``;
- ``batch_load_speedup``, ``batch_every_speedup``: vanilla ÷ each of our sides, loader, from S3; ``remote_share``: for
  ``loader`` and ``training`` the rate from S3 ``of_vanilla_local`` and ``of_own_local``, by side;
- ``heat_map``: ``workers``, ``in_flight``, ``cells`` (``workers``, ``in_flight``, ``samples_s``, ``samples_s_spread``,
  ``of_in_flight``: share of requests in flight ÷ time of a request, ``cpu_s_per_1000``), ``auto_vs_best`` by workers;
- ``sequential``: a row for each ``reader``: ``samples_s``, ``samples_s_spread``, ``samples_s_core``,
  ``cpu_s_per_1000``, ``first_sample_s``, ``peak_rss_mb``;
- ``pipelines``, ``lossless``: what those benchmarks found, with ``origin``: when, or that it was now.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    # Before torch is imported: OpenMP's threads would spin while they wait, and take cores from those that decode.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import lossless, pipelines
from benchmarks.bucket import BANDWIDTH_MB_S, Bucket, open_bucket
from benchmarks.command import bar, command_line, in_turns, publish
from benchmarks.figures import check_same_samples
from benchmarks.filling import photos_in, put_objects, write_shards
from benchmarks.forerunners_figures import (
    DIFFERENCES,
    compared,
    heat_map,
    layer_rows,
    remote_share,
    sequential_rows,
    speedups,
)
from benchmarks.fresh_process import in_fresh_process
from benchmarks.layers import CASES, READERS, Case, Cell, Epoch, Settings, measure_cell, measure_layer, measure_reading
from benchmarks.photos import CLASSES, PhotoFolder
from benchmarks.timed_photos import Where, digest_of, order_of
from concurrent_loader.storage.fetch import InFlight

_EPOCH_S = 120.0  # an epoch that takes longer has hung
_CACHE_STATE = (
    "Every epoch has a fresh process and no cache of ours; all files and the server's objects are in the page cache."
)
_RESULTS = Path(__file__).parent / "results"
_RUNS: dict[str, Callable[[Console], dict[str, Any]]] = {
    "pipelines": lambda console: pipelines.run_benchmark(pipelines.FULL, console),
    "lossless": lambda console: lossless.run_benchmark(lossless.FULL, console),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 256
    num_slow: int = 32  # that sides read which wait for one object after another; twice as many with workers
    num_rounds: int = 5
    batch_size: int = 16
    num_workers: int = 2
    in_flight: int = 16  # of the drop-in, per process; ConcurrentDataloader's headline has as many fetchers
    map_workers: tuple[int, ...] = (0, 2)
    map_in_flight: tuple[InFlight, ...] = (1, 4, 16, 64, "auto")
    reading_s: float = 0.2  # of a reader from the local drive, at least
    latency_ms: int = 30

    def limit(self, case: Case) -> int | None:
        """Returns how many images a side reads; None for all."""
        if not case.is_slow:
            return None
        return self.num_slow * (1 if case.layer in ("store", "dataset") else self.num_workers)

    def map_limit(self, cell: Cell) -> int:
        """Returns how many objects a cell reads: for half a second or so, until the processors are the limit."""
        at_once = 64 if cell.in_flight == "auto" else cell.in_flight
        return min(self.num_photos, 16 * max(1, cell.workers) * min(16, at_once))


FULL = Load()
QUICK = Load(
    num_photos=24, num_slow=4, num_rounds=1, batch_size=4, map_workers=(2,), map_in_flight=(4, "auto"), reading_s=0.05
)


@dataclass(frozen=True, slots=True)
class _Task:
    """One measurement of every round."""

    measure: Callable[..., Epoch]
    arguments: tuple[Any, ...]
    limit: int | None  # images that it must deliver; None for all
    raw: bool  # as files


def _tasks(load: Load, where: Where) -> dict[Any, _Task]:
    settings = Settings(load.batch_size, load.num_workers, load.in_flight)
    tasks: dict[Any, _Task] = {}
    for case in CASES:
        limit = load.limit(case)
        tasks[case] = _Task(measure_layer, (case, where, limit, settings), limit, case.is_raw)
    for workers in load.map_workers:
        for number in load.map_in_flight:
            cell = Cell(workers, number)
            limit = load.map_limit(cell)
            tasks[cell] = _Task(measure_cell, (cell, where, limit), limit, True)
    for name in READERS:
        tasks[name] = _Task(measure_reading, (name, where, load.reading_s), None, True)
    return tasks


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds."""
    with _prepared(load, console) as (photos, bucket, where):
        tasks = _tasks(load, where)
        epochs: dict[Any, list[Epoch]] = {key: [] for key in tasks}
        with bar(console, "Epochs", load.num_rounds * len(tasks)) as progress:
            for _, key in in_turns(list(tasks), load.num_rounds):
                measure, arguments = tasks[key].measure, tasks[key].arguments
                preload = ("benchmarks.layers",)
                epoch = in_fresh_process(measure, arguments, what=str(key), preload=preload, timeout_s=_EPOCH_S)
                epochs[key].append(epoch)
                progress.advance()
        for key, task in tasks.items():
            check_same_samples({"files": [expected(where, task.limit, raw=task.raw)], str(key): epochs[key]})
        mean_bytes, server, latency, latency_ms = photos.mean_bytes, bucket.server, bucket.latency, bucket.latency_ms
    rows = layer_rows({key: found for key, found in epochs.items() if isinstance(key, Case)}, load.batch_size)
    cells = {key: found for key, found in epochs.items() if isinstance(key, Cell)}
    figures: dict[str, Any] = {
        "layers": rows,
        "batch_load_speedup": speedups(rows, "loader", "batch_load_s"),
        "batch_every_speedup": speedups(rows, "loader", "batch_every_s"),
        "remote_share": {layer: remote_share(rows, layer) for layer in ("loader", "training")},
        "heat_map": heat_map(
            cells, latency_s=latency_ms / 1000, mean_bytes=mean_bytes, bytes_per_s=BANDWIDTH_MB_S * 1e6
        ),
        "sequential": sequential_rows({key: found for key, found in epochs.items() if isinstance(key, str)}),
        "pipelines": committed_or("pipelines", console),
        "lossless": committed_or("lossless", console),
        "differences": DIFFERENCES,
        "num_photos": load.num_photos,
        "mean_bytes": round(mean_bytes),
        "batch_size": load.batch_size,
        "num_workers": load.num_workers,
        "in_flight": load.in_flight,
        "num_rounds": load.num_rounds,
        "server": server,
        "latency": latency,
        "latency_ms": latency_ms,
        "cache_state": _CACHE_STATE,
    }
    return {"compared": compared(figures), **figures}


def committed_or(name: str, console: Console, *, results: Path = _RESULTS) -> dict[str, Any]:
    """Returns the committed figures of another benchmark, or those of a run now; ``origin`` tells which."""
    file = results / f"{name}.json"
    if not file.exists():
        return {**_RUNS[name](console), "origin": f"benchmarks.{name}, run now"}
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    when = figures.get("machine", {}).get("measured_at", "an unknown time")
    return {**figures, "origin": f"benchmarks/results/{file.name}, measured at {when}"}


def expected(where: Where, limit: int | None, *, raw: bool) -> Epoch:
    """Returns what a side must deliver, from the files themselves."""
    order = order_of(len(where.names), limit)
    counts = [0] * len(CLASSES)
    total = 0
    for number in order:
        counts[where.labels[number]] += 1
        total += digest_of(number, (Path(where.root) / where.names[number]).read_bytes() if raw else b"")
    return Epoch(len(order), counts, f"{total % 2**128:032x}", len(order), 0.0, 0.0)


def places_of(photos: PhotoFolder, local_shards: str, bucket: str, options: dict[str, str]) -> Where:
    """Returns where the photographs are."""
    paths = photos.paths()
    names = tuple(f"{path.parent.name}/{path.name}" for path in paths)
    labels = tuple(CLASSES.index(path.parent.name) for path in paths)
    return Where(str(photos.root), names, labels, local_shards, bucket, options)


@contextlib.contextmanager
def _prepared(load: Load, console: Console) -> Iterator[tuple[PhotoFolder, Bucket, Where]]:
    """Makes the images as files and as shards, on the local drive and in a bucket; they are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="forerunners-") as folder:
        photos = photos_in(folder, load.num_photos, console)
        with open_bucket(Path(folder) / "s3", latency_ms=load.latency_ms) as bucket:
            where = places_of(photos, f"{folder}/shards", bucket.name, dict(bucket.remote))
            put_objects(photos, where.objects_url, bucket.direct)
            write_shards(photos, where.local_shards)
            write_shards(photos, where.shards_url, bucket.direct)
            yield photos, bucket, where


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command_line("forerunners", __doc__)
    parser.add_argument("--rounds", type=int, help=f"of everything (default {FULL.num_rounds})")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds is at least 1")
    load = QUICK if options.quick else FULL
    load = replace(load, num_rounds=options.rounds or load.num_rounds)
    return publish("forerunners", lambda console: run_benchmark(load, console), options.json)


if __name__ == "__main__":
    sys.exit(main())
