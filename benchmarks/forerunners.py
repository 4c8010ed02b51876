"""Beside our forerunners: ``python -m benchmarks.forerunners [--json FILE] [--quick]``; five minutes on two cores.

The tables of those who were there before, measured again with our loader in their place, and beside the figures that
they published: ConcurrentDataloader (`benchmarks.layers`, `benchmarks.in_flight_map`), datadings
(`benchmarks.sequential`), Zolnouri et al. (`benchmarks.pipelines`) and L3 (`benchmarks.lossless`). The last two are
measured by those benchmarks: their committed figures are taken, or they are run if there are none.

Each epoch has a process of its own, sides alternate, figures are medians, and what every side delivered is compared
with the files. The JSON has:

- ``compared``: a published figure a row: ``forerunner``, ``what``, ``theirs``, ``ours``, ``source``;
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
- ``pipelines``, ``lossless``: what those benchmarks found, with ``origin``: when, or that it was now;
- the setting: ``num_photos``, ``mean_bytes``, ``batch_size``, ``num_workers``, ``in_flight`` (of the drop-in),
  ``num_rounds``, ``server``, ``latency``, ``latency_ms`` (measured), ``cache_state``, ``other_programs_share``,
  ``took_s``, ``machine``, ``versions``.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    # Before torch is there: OpenMP's threads would spin while they wait, and take cores from those that decode.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.bucket import Bucket, open_bucket
from benchmarks.committed import committed_or
from benchmarks.console import Bar, bar, ends_with_one_line
from benchmarks.delivery import digest_of
from benchmarks.figures import Delivered, check_same_samples
from benchmarks.filling import put_objects
from benchmarks.forerunners_figures import compared, heat_map, layer_rows, remote_share, sequential_rows, speedups
from benchmarks.fresh_process import cpu_of_fresh_processes_s, in_fresh_process
from benchmarks.in_flight_map import Cell, CellEpoch, measure_cell
from benchmarks.layers import CASES, Case, Epoch, measure_layer
from benchmarks.machine import Bystanders, describe_machine, versions
from benchmarks.photo_places import Where, order_of
from benchmarks.photos import CLASSES, PhotoFolder, make_photos
from benchmarks.published import DIFFERENCES
from benchmarks.sequential import READERS, Reading, measure_reading
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.fetch import InFlight

_BYTES_PER_S = 90e6  # of one connection; see benchmarks.bucket
_EPOCH_S = 120.0  # an epoch that takes longer has hung
_PRELOAD = ("benchmarks.layers", "benchmarks.in_flight_map", "benchmarks.sequential")
_CACHE_STATE = (
    "Every epoch has a fresh process and no cache of ours; all files and the server's objects are in the page cache."
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 256  # of the dataset
    # that are read by sides that wait for one object after another, one a time; twice as many with workers
    num_slow: int = 32
    num_rounds: int = 5  # of everything
    batch_size: int = 16  # images a batch
    num_workers: int = 2  # of torch's loader and the drop-in
    in_flight: int = 16  # of the drop-in, a process; ConcurrentDataloader's headline has as many fetchers
    map_workers: tuple[int, ...] = (0, 2)  # of the heat map
    map_in_flight: tuple[InFlight, ...] = (1, 4, 16, 64, "auto")  # of the heat map
    reading_s: float = 0.2  # of a reader from the local drive, at least
    latency_ms: int = 30  # to the first byte

    def limit(self, case: Case) -> int | None:
        """How many images a side reads; None for all."""
        if not case.is_slow:
            return None
        return self.num_slow * (1 if case.layer in ("store", "dataset") else self.num_workers)

    def map_limit(self, cell: Cell) -> int:
        """How many objects a cell reads: for half a second or so, until the processors are the limit."""
        at_once = 64 if cell.in_flight == "auto" else cell.in_flight
        return min(self.num_photos, 16 * max(1, cell.workers) * min(16, at_once))


FULL = Load()
QUICK = Load(
    num_photos=24, num_slow=4, num_rounds=1, batch_size=4, map_workers=(2,), map_in_flight=(4, "auto"), reading_s=0.05
)


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds; returns the figures, as they are written to the JSON file."""
    machine, began = describe_machine(), perf_counter()
    cases: dict[Case, list[Epoch]] = {case: [] for case in CASES}
    cells: dict[Cell, list[CellEpoch]] = {
        Cell(workers, number): [] for workers in load.map_workers for number in load.map_in_flight
    }
    readings: dict[str, list[Reading]] = {name: [] for name in READERS}
    with _prepared(load, console) as (photos, bucket, where):
        others = Bystanders()
        total = load.num_rounds * (len(cases) + len(cells) + len(readings))
        with bar(console, "Epochs", total) as progress:
            for number in range(load.num_rounds):
                _round(load, where, cases, cells, readings, backwards=number % 2 == 1, progress=progress)
        share = others.share(also_own_s=cpu_of_fresh_processes_s())
        _check(load, where, cases, cells, readings)
        mean_bytes, server, latency, latency_ms = photos.mean_bytes, bucket.server, bucket.latency, bucket.latency_ms
    rows = layer_rows(cases, load.batch_size)
    figures: dict[str, Any] = {
        "layers": rows,
        "batch_load_speedup": speedups(rows, "loader", "batch_load_s"),
        "batch_every_speedup": speedups(rows, "loader", "batch_every_s"),
        "remote_share": {layer: remote_share(rows, layer) for layer in ("loader", "training")},
        "heat_map": heat_map(cells, latency_s=latency_ms / 1000, mean_bytes=mean_bytes, bytes_per_s=_BYTES_PER_S),
        "sequential": sequential_rows(readings),
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
        "other_programs_share": round(share, 3),
        "took_s": round(perf_counter() - began, 1),
        "machine": machine,
        "versions": versions(),
    }
    return {"compared": compared(figures), **figures}


def _round(
    load: Load,
    where: Where,
    cases: dict[Case, list[Epoch]],
    cells: dict[Cell, list[CellEpoch]],
    readings: dict[str, list[Reading]],
    *,
    backwards: bool,
    progress: Bar,
) -> None:
    """One of everything; every other round in the opposite order."""
    step = -1 if backwards else 1
    for case in list(cases)[::step]:
        arguments = (case, where, load.limit(case), load.batch_size, load.num_workers, load.in_flight)
        cases[case].append(_fresh(measure_layer, arguments, str(case)))
        progress.advance()
    for cell in list(cells)[::step]:
        cells[cell].append(_fresh(measure_cell, (cell, where, load.map_limit(cell)), str(cell)))
        progress.advance()
    for name in list(readings)[::step]:
        readings[name].append(_fresh(measure_reading, (name, where, load.reading_s), name))
        progress.advance()


def _fresh(measure: Any, arguments: Sequence[Any], what: str) -> Any:
    return in_fresh_process(measure, arguments, what=what, preload=_PRELOAD, timeout_s=_EPOCH_S)


def _check(
    load: Load,
    where: Where,
    cases: Mapping[Case, Sequence[Epoch]],
    cells: Mapping[Cell, Sequence[CellEpoch]],
    readings: Mapping[str, Sequence[Reading]],
) -> None:
    """Makes sure that every side delivered the images that it was to read, and nothing else."""
    for case, epochs in cases.items():
        expected = _expected(where, load.limit(case), raw=case.is_raw)
        check_same_samples({"files": [expected], str(case): epochs})
    for cell, found in cells.items():
        check_same_samples({"files": [_expected(where, load.map_limit(cell), raw=True)], str(cell): found})
    whole = _expected(where, None, raw=True)
    for name, made in readings.items():
        check_same_samples({"files": [whole], name: made})


@dataclass(frozen=True, slots=True)
class _Expected:
    num_samples: int
    class_counts: list[int]
    digest: str


def _expected(where: Where, limit: int | None, *, raw: bool) -> Delivered:
    """What a side delivers that does as it was told, from the files themselves."""
    order = order_of(len(where.names), limit)
    counts = [0] * len(CLASSES)
    total = 0
    for number in order:
        counts[where.labels[number]] += 1
        total += digest_of(number, (Path(where.root) / where.names[number]).read_bytes() if raw else b"")
    return _Expected(len(order), counts, f"{total % 2**128:032x}")


@contextlib.contextmanager
def _prepared(load: Load, console: Console) -> Iterator[tuple[PhotoFolder, Bucket, Where]]:
    """The images as files and as shards, on the local drive and in a bucket; gone with the block."""
    with tempfile.TemporaryDirectory(prefix="forerunners-") as folder:
        with bar(console, "Photographs", load.num_photos) as progress:
            photos = make_photos(Path(folder), count=load.num_photos, on_photo=progress.advance)
        paths = photos.paths()
        labels = tuple(CLASSES.index(path.parent.name) for path in paths)
        local_shards = str(Path(folder) / "shards")
        with open_bucket(Path(folder) / "s3", latency_ms=load.latency_ms) as bucket:
            where = Where(
                root=str(photos.root),
                names=tuple(f"{path.parent.name}/{path.name}" for path in paths),
                labels=labels,
                local_shards=local_shards,
                bucket=bucket.name,
                options=bucket.remote,
            )
            put_objects(photos, where.objects_url, bucket.direct)
            for url, options in ((local_shards, {}), (where.shards_url, dict(bucket.direct))):
                columns = {"image": "jpeg", "label": "int64", "number": "int64"}
                with ShardWriter(url, columns=columns, storage_options=options) as writer:
                    for number, path in enumerate(paths):
                        writer.write({"image": path.read_bytes(), "label": labels[number], "number": number})
            yield photos, bucket, where


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forerunners", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a few images, to see that it works")
    parser.add_argument("--rounds", type=int, help=f"of everything (default {FULL.num_rounds})")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds is at least 1")
    load = QUICK if options.quick else FULL
    load = replace(load, num_rounds=options.rounds or load.num_rounds)

    def run() -> None:
        console = Console()
        figures = run_benchmark(load, console)
        for row in figures["compared"]:
            console.print(
                f"{row['forerunner']}: {row['what']}: theirs {row['theirs']}; ours {row['ours']}", markup=False
            )
        if options.json is not None:
            options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    return ends_with_one_line(run)


if __name__ == "__main__":
    sys.exit(main())
