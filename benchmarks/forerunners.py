"""Beside our forerunners: ``python -m benchmarks.forerunners [--json FILE] [--quick]``; five minutes on two cores.

Their tables, measured again with our loader in their place, beside the figures that they published. *Layers*: Svogor et
al. (ConcurrentDataloader, arXiv 2211.04908) time what loads an item's bytes (*store*), items (*dataset*), batches
(*loader*), and *training* on them, from a local drive and from S3; here with the same images for all sides. Vanilla is
one file after another by ``open`` or botocore, and torch's DataLoader with two workers; ours are one of our stores, the
drop-in in threads or over coroutines, and our own datasets. *Cells*: objects per second with so many workers and
requests in flight, by the drop-in over an `ObjectDataset`, after an epoch that opens connections. *Readers*: datadings'
comparison, images as bytes from the local drive, from a folder and from a format of few files. Zolnouri et al. and L3
are measured by `benchmarks.pipelines` and `benchmarks.lossless`, whose committed figures are taken.

Each epoch has a process of its own, sides alternate, figures are medians, and what every side delivered is compared
with the files. The JSON has:

- ``compared``: a published figure per row; ``differences``: by forerunner, in what the set-ups differ;
- ``layers``: a row for each ``place``, ``layer`` and ``side``; ``batch_load_s``: median, from a batch's first item
  begun to its being whole, null where items have no beginning; ``batch_every_s``: time of an epoch for each batch;
- ``batch_load_speedup``, ``batch_every_speedup``: vanilla ÷ each of our sides, loader, from S3; ``remote_share``: for
  ``loader`` and ``training`` the rate from S3 ``of_vanilla_local`` and ``of_own_local``, by side;
- ``heat_map``: ``of_in_flight`` of a cell is its share of requests in flight ÷ time of a request;
- ``sequential``: a row for each ``reader``; ``pipelines``, ``lossless``: committed figures, with their ``origin``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from msgspec import structs
from rich.console import Console
from torch.utils.data import DataLoader

from benchmarks.bucket import BANDWIDTH_MB_S, Bucket, open_bucket, photos_in
from benchmarks.command import program, rounds
from benchmarks.forerunners_figures import CASES, DIFFERENCES, Case, Cell, compared, figures_of
from benchmarks.fresh_process import in_fresh_process
from benchmarks.machine import cpu_of_tree_s, peak_rss_bytes, start_peak_rss, workers_rss
from benchmarks.peers.bucket import led_to, put_objects
from benchmarks.peers.figures import expected_digest, image_digest
from benchmarks.peers.job import Job, Outcome, paths
from benchmarks.peers.programs import ours
from benchmarks.peers.programs.items import Photos, collate_timed, order_of
from benchmarks.peers.side import read
from benchmarks.training import INPUT_SIZE, MIN_SCALE
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.fetch import InFlight

_EPOCH_S = 120.0  # an epoch that takes longer has hung
_PRELOAD = ("benchmarks.forerunners",)
_CACHE_STATE = (
    "Every epoch has a fresh process and no cache of ours; all files and the server's objects are in the page cache."
)
_RESULTS = Path(__file__).parent / "results"
_CELL_BATCH = 16
_ASKED_FOR = 256  # items at once where "auto" decides how many of them become requests
_LEARNING = 192  # items per process for "auto" to learn from
_READING_BATCH = 64


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
        """Returns how many images a side reads: a part if it waits for one object after another; None for all."""
        if (case.place, case.side) != ("s3", "vanilla"):
            return None
        return self.num_slow * (1 if case.layer in ("store", "dataset") else self.num_workers)

    def map_limit(self, cell: Cell) -> int:
        """Returns how many objects a cell reads: for half a second or so, until the processors are the limit."""
        at_once = 64 if cell.in_flight == "auto" else cell.in_flight
        return min(self.num_photos, 16 * max(1, cell.workers) * min(16, at_once))


FULL = Load()
QUICK = Load(24, num_slow=4, num_rounds=1, batch_size=4, map_workers=(2,), map_in_flight=(4, "auto"), reading_s=0.05)


# -- jobs --------------------------------------------------------------------------------------------------------------

_LOADERS = {"store": ("one", "store"), "dataset": ("one", "many"), "loader": ("torch", "drop_in")}
_SOURCES = {"coroutines": "obstore", "objects": "objects", "shards": "shards"}


def layer_job(case: Case, load: Load, local: Job, far: Job) -> Job:
    """Returns the job of a layer; ``local`` and ``far`` lead to the images on the drive and in the bucket."""
    job, in_batches = local if case.place == "local" else far, case.layer in ("loader", "training")
    places = {"prefix": "shards" if case.side == "shards" else "objects"}
    job = structs.replace(
        job, **places, decoded=case.layer != "store", train=case.layer == "training", batch_size=load.batch_size,
        num_workers=load.num_workers,
    )  # fmt: skip
    if in_batches and case.side in ("objects", "shards"):
        layout = "objects" if case.side == "objects" else "local" if case.place == "local" else "shards"
        options = {**job.options, "layout": layout, "transform": True}
        return structs.replace(job, peer="ours", num_workers=None, options=options)
    options = {
        **job.options,
        "loader": _LOADERS["loader" if in_batches else case.layer][case.side != "vanilla"],
        "read": _SOURCES.get(case.side, "files" if case.place == "local" else "botocore"),
        "by_coroutine": case.side in _SOURCES,
        "in_flight": load.in_flight,
        "limit": load.limit(case),
    }
    return structs.replace(job, options=options)


def cell_job(cell: Cell, load: Load, far: Job) -> Job:
    """Returns the job of a cell, with a first epoch that is not measured."""
    is_auto = cell.in_flight == "auto"
    options = {
        "read": "objects", "loader": "drop_in", "by_coroutine": True, "requests": cell.in_flight,
        "in_flight": _ASKED_FOR if is_auto else cell.in_flight,
        "warm_up": (_LEARNING if is_auto else _CELL_BATCH) * max(1, cell.workers), "limit": load.map_limit(cell),
    }  # fmt: skip
    return structs.replace(far, prefix="objects", batch_size=_CELL_BATCH, num_workers=cell.workers, options=options)


def measure(job: Job) -> Outcome:
    """Does a job in the process that it is called in."""
    multiprocessing.set_start_method("fork", force=True)  # torch's workers, as anywhere on Linux
    return read(importlib.import_module(f"benchmarks.peers.programs.{job.peer}"), job)


def check(job: Job, outcome: Outcome, digests: Sequence[int]) -> Outcome:
    """Returns the outcome; raises ValueError unless it has the images that it should have, each once."""
    expected = order_of(len(digests), job.options.get("limit"))
    right = sorted(outcome.numbers) == sorted(expected)
    if not right or (not job.decoded and outcome.digest != expected_digest(expected, digests)):
        raise ValueError(f"the sides did not deliver the same images: {job.peer}, {job.options}")
    return outcome


# -- readers from the local drive --------------------------------------------------------------------------------------


def _by_open(job: Job) -> Iterator[tuple[Any, Any]]:
    found = paths(job.photos)
    for start in range(0, len(found), _READING_BATCH):
        numbers = range(start, min(start + _READING_BATCH, len(found)))
        yield [found[number].read_bytes() for number in numbers], torch.tensor(numbers)


def _by_torch(job: Job, *, num_workers: int) -> Iterator[tuple[Any, Any]]:
    photos = Photos(structs.replace(job, options={"read": "files"}))
    for images, numbers, _ in DataLoader(photos, _READING_BATCH, num_workers=num_workers, collate_fn=collate_timed):
        yield images, numbers


def _by_shards(job: Job, *, shuffle: bool) -> Iterator[tuple[Any, Any]]:
    with ShardDataset(job.options["folder"]) as dataset:
        for batch in ConcurrentDataLoader(dataset, _READING_BATCH, shuffle=shuffle):
            yield batch["image"], batch["number"]


READERS: dict[str, Callable[[Job], Iterator[tuple[Any, Any]]]] = {
    "files, open() in a loop": _by_open,
    "files, torch DataLoader, no workers": partial(_by_torch, num_workers=0),
    "files, torch DataLoader, 2 workers": partial(_by_torch, num_workers=2),
    "shards, in order": partial(_by_shards, shuffle=False),
    "shards, shuffled": partial(_by_shards, shuffle=True),
}


def measure_reading(name: str, job: Job, digests: Sequence[int], at_least_s: float) -> Outcome:
    """Measures one of `READERS`: a first pass is compared with the files, then as many are timed as take so long."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    by = READERS[name]
    seen = [
        (number, image) for images, numbers in by(job) for number, image in zip(numbers.tolist(), images, strict=True)
    ]
    if sorted((number, image_digest(bytes(image), number)) for number, image in seen) != list(enumerate(digests)):
        raise ValueError(f"{name} did not deliver the same images")
    del seen
    start_peak_rss()
    taken, first_s = [], 0.0
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    while perf_counter() - began < at_least_s:
        for _, numbers in by(job):
            first_s = first_s or perf_counter() - began
            taken += numbers.tolist()
    seconds, cpu_s, peak_bytes = perf_counter() - began, cpu_of_tree_s() - cpu_before_s, peak_rss_bytes()
    # Looking at the workers takes long, and so is no part of what is timed.
    workers_bytes = max(workers_rss() if place == 0 else 0 for place, _ in enumerate(by(job)))
    return Outcome(
        numbers=taken, epoch_s=seconds, cpu_s=cpu_s, first_batch_s=first_s,
        peak_rss_mb=(peak_bytes + workers_bytes) / 1e6,
    )  # fmt: skip


# -- all of it ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def prepared(load: Load, console: Console) -> Iterator[tuple[Job, Job, list[int], Bucket]]:
    """Makes the images as files and as shards, on the drive and in a bucket; yields how to get there, and digests."""
    with tempfile.TemporaryDirectory(prefix="forerunners-") as folder:
        photos = photos_in(folder, load.num_photos, console)
        found = paths(str(photos.root))
        local = Job(
            peer="items", photos=str(photos.root), order=list(range(len(found))), size=INPUT_SIZE, min_scale=MIN_SCALE,
            options={"folder": f"{folder}/shards"},
        )  # fmt: skip
        with open_bucket(Path(folder) / "s3", latency_ms=load.latency_ms) as bucket:
            far = structs.replace(local, options={})
            put_objects(f"s3://{bucket.name}/objects", bucket.direct, found)
            near = led_to(
                structs.replace(far, prefix="shards", options={"layout": "shards"}), bucket.direct, bucket=bucket.name
            )
            for job in (near, structs.replace(local, options={**local.options, "layout": "local"})):
                ours.write(job)
            digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
            far = led_to(structs.replace(far, order=[]), bucket.remote, bucket=bucket.name)
            yield structs.replace(local, order=[]), far, digests, bucket


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds."""
    cells = [Cell(workers, in_flight) for workers in load.map_workers for in_flight in load.map_in_flight]
    keys: list[Case | Cell | str] = [*CASES, *cells, *READERS]
    with prepared(load, console) as (local, far, digests, bucket):
        mean_bytes = sum(path.stat().st_size for path in paths(local.photos)) / len(digests)
        fresh = partial(in_fresh_process, preload=_PRELOAD, timeout_s=_EPOCH_S)

        def turn(key: Case | Cell | str) -> Outcome:
            if isinstance(key, str):
                return fresh(measure_reading, (key, local, digests, load.reading_s), what=key)
            job = layer_job(key, load, local, far) if isinstance(key, Case) else cell_job(key, load, far)
            return check(job, fresh(measure, (job,), what=str(key)), digests)

        epochs = rounds(console, "Epochs", keys, load.num_rounds, turn)
    request_s = bucket.latency_ms / 1000 + mean_bytes / (BANDWIDTH_MB_S * 1e6)
    figures: dict[str, Any] = {
        **figures_of(epochs, load.batch_size, request_s),
        "pipelines": committed("pipelines"),
        "lossless": committed("lossless"),
        "differences": DIFFERENCES,
        "num_photos": load.num_photos,
        "batch_size": load.batch_size,
        "num_workers": load.num_workers,
        "in_flight": load.in_flight,
        "num_rounds": load.num_rounds,
        "mean_bytes": round(mean_bytes),
        "server": bucket.server,
        "latency": bucket.latency,
        "latency_ms": bucket.latency_ms,
        "cache_state": _CACHE_STATE,
    }
    return {"compared": compared(figures), **figures}


def committed(name: str) -> dict[str, Any]:
    """Returns the committed figures of another benchmark; ``origin`` tells of when they are."""
    file = _RESULTS / f"{name}.json"
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    when = figures.get("machine", {}).get("measured_at", "an unknown time")
    return {**figures, "origin": f"benchmarks/results/{file.name}, measured at {when}"}


main = program("forerunners", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
