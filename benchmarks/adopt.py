"""Tar files of others, read in place, against native shards: ``python -m benchmarks.adopt [--json FILE] [--quick]``.

Photographs (19,200 JPEGs, 1.07 GB, delivered as bytes) from one MinIO behind a first byte of 30 ms ± 10 ms and 90 MB/s
per connection. `concurrent_loader.storage.adopt.adopt` scans tar files as WebDataset writes them, and `ShardDataset`
reads them in place; *native* is the same loader over shards of this project. WebDataset's own loader takes part in
`benchmarks.peers`. Each epoch is a fresh process, and everything that it delivers is checked. Sides take
turns; a ratio is the median over the rounds of the ratio within a round. *Cold* is without a cache, *warm* with the
cache that the cold epoch before left. An epoch that did not end in a minute counts for no figure.

JSON: ``tar_vs_native``, ``warm_vs_native``: images per second in place against native, cold and warm. ``scan_mb_s``: MB
per second of processor time of a scan, without latency; ``scan_wall_mb_s``: per second; ``scan_rss_mb``: highest memory
of its process; ``index_bytes_per_sample``: size of the index per sample and column; ``scans``: all of these. ``rows``:
for each ``side`` (``in_place, native``) and ``epoch``; ``complete``: rounds that ended.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.bucket import far_away
from benchmarks.command import bar, program
from benchmarks.figures import four_digits, with_spread
from benchmarks.harness import CommandError
from benchmarks.machine import read_into_page_cache
from benchmarks.peers.bucket import BUCKET, led_to, put_files
from benchmarks.peers.figures import check, image_digest
from benchmarks.peers.job import Job, Outcome, paths, written
from benchmarks.peers.processes import run_job
from benchmarks.peers.turns import Side, empty_folder, median_ratio, take_turns
from benchmarks.photos import make_photos, replicate_photos
from benchmarks.program import ROOT
from concurrent_loader.storage.testing import LocalS3, local_s3

_DEADLINE_S = 180.0
_WRITE_S = 900.0
_FORMAT = "webdataset"


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3_200  # that are cut
    raw_bytes: int = 1_000_000_000  # size that they are repeated to
    latency_ms: int = 30
    num_rounds: int = 5  # turns of each side
    batch_size: int = 128
    limit_s: float = 60.0  # when an epoch is cut short
    num_threads: int = 2
    tar_bytes: int = 64_000_000
    resident: bool = True  # whether real memory is put behind the page cache before each epoch
    data: str = ".demo/adopt"  # folder for all that is made


FULL = Load()
QUICK = Load(60, 1, latency_ms=5, num_rounds=1, batch_size=16, num_threads=1, tar_bytes=1 << 20, resident=False)


@dataclass(slots=True)
class _Side(Side):
    """Ours, in place or over native shards."""

    format: str = ""
    faults: set[str] = field(default_factory=set)
    peak_bytes: int = 0


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Writes both forms, scans the tar files, and lets both sides read."""
    data = Path(load.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    photos = replicate_photos(make_photos(data, count=load.num_photos), min_bytes=load.raw_bytes)
    found = paths(str(photos.root))
    digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
    order = random.Random(0).sample(range(len(found)), len(found))
    native = Job(
        peer="ours", photos=str(photos.root), prefix="native", options={"layout": "shards"}, batch_size=load.batch_size,
        num_workers=load.num_threads, resident_bytes=photos.num_bytes * 11 // 10 if load.resident else 0,
    )  # fmt: skip
    in_place = structs.replace(
        native, prefix=f"{_FORMAT}-index-0", options={"layout": "shards", "columns": ("jpg", "__key__")}
    )
    sides = [
        _Side("native", sys.executable, native, True, format="native"),
        _Side("in_place", sys.executable, in_place, True, format=_FORMAT),
    ]
    with (
        empty_folder(data / "run") as run_folder,
        local_s3(data_dir=Path(run_folder) / "s3") as server,
        bar(console, "Epochs and scans", load.num_rounds * 5) as progress,
    ):
        server.make_bucket(BUCKET)
        writing = structs.replace(native, task="write", order=order)
        run_job(sys.executable, led_to(writing, server.storage_options()), deadline_s=_WRITE_S)
        with empty_folder(Path(run_folder) / "write") as folder:
            _write_tars(structs.replace(writing, folder=folder), load.tar_bytes)
            put_files(server, _FORMAT, Path(folder))
        scans = []
        for number in range(load.num_rounds):
            read_into_page_cache(Path(run_folder) / "s3" / BUCKET / _FORMAT)
            scans.append(_scan(server, number))
            progress.advance()
        scan = {key: median(each[key] for each in scans) for key in scans[0]}
        with far_away(server, load.latency_ms) as (far, first_byte_ms):

            def read(side: _Side, job: Job, *, watch_memory: bool = False) -> tuple[Outcome, int]:
                read_into_page_cache(Path(run_folder) / "s3" / BUCKET / side.format)
                job = structs.replace(led_to(job, far.storage_options()), limit_s=load.limit_s)
                outcome, peak_bytes = run_job(side.python, job, deadline_s=_DEADLINE_S, watch_memory=watch_memory)
                if fault := check(outcome, digests, decoded=False):
                    side.faults.add(fault)
                return outcome, peak_bytes

            def run(side: _Side, job: Job, epoch: str, number: int) -> Outcome:
                progress.advance()
                return read(side, job)[0]

            cache = Path(run_folder) / "cache"
            take_turns(sides, load.num_rounds, cache, run)
            for side in sides:
                with empty_folder(cache) as folder:
                    _, side.peak_bytes = read(side, structs.replace(side.job, cache_dir=folder), watch_memory=True)
    return {
        **figures_of(*sides),
        **scan,
        "scans": {_FORMAT: scan},
        "first_byte_ms": first_byte_ms,
        "load": asdict(load),
    }


def _scan(server: LocalS3, number: int) -> dict[str, float]:
    """Adopts the tar files in a process that imports nothing else: its memory is measured."""
    source = f"s3://{BUCKET}/{_FORMAT}"
    task = {
        "format": _FORMAT,
        "source": source,
        "index": f"{source}-index-{number}",
        "options": server.storage_options(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.adopt_scan"], input=json.dumps(task), capture_output=True, text=True,
        check=False, cwd=ROOT, timeout=_WRITE_S,
    )  # fmt: skip
    if done.returncode:
        raise CommandError(f"the scan ended with status {done.returncode}\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def figures_of(native: _Side, in_place: _Side) -> dict[str, Any]:
    """Returns the ratios, and a row for each side and kind of epoch."""
    keys = {"tar_vs_native": "cold", "warm_vs_native": "warm"}
    rows = [row(side, epoch) for side in (native, in_place) for epoch in side.outcomes]

    def ratio(epoch: str) -> float | None:
        mine, theirs = (side.outcomes.get(epoch, {}) for side in (in_place, native))
        return median_ratio(mine, theirs, lambda outcome: outcome.samples_s)

    return {**{key: ratio(epoch) for key, epoch in keys.items()}, "rows": rows}


def row(side: _Side, epoch: str) -> dict[str, Any]:
    """Returns a row of the JSON: medians over the rounds that ended."""
    outcomes = [outcome for outcome in side.outcomes[epoch].values() if outcome.complete]
    keys = ("samples_s", "cpu_s_per_1000", "first_batch_s")
    values: dict[str, Sequence[float]] = {name: [getattr(each, name) for each in outcomes] for name in keys}
    return {
        "format": side.format,
        "side": side.name,
        "epoch": epoch,
        "rounds": len(side.outcomes[epoch]),
        "complete": len(outcomes),
        **(with_spread(values, four_digits) if outcomes else {**dict.fromkeys(values), "spread": {}}),
        "peak_rss_mb": round(side.peak_bytes / 1e6, 1),  # of one more cold epoch, after the rounds
        "fault": "; ".join(sorted(side.faults)) or None,
    }


def _write_tars(job: Job, tar_bytes: int) -> None:
    """Writes tar files as WebDataset's writer does."""
    files: list[tuple[int, bytes]] = []
    num_bytes = num_tars = 0
    for number, data in chain(written(job), [(-1, b"")]):
        if files and (number < 0 or num_bytes + len(data) > tar_bytes):
            with tarfile.open(Path(job.folder) / f"{num_tars:06d}.tar", "w") as tar:
                for each, image in files:
                    info = tarfile.TarInfo(f"{each:07d}.jpg")
                    info.size = len(image)
                    tar.addfile(info, io.BytesIO(image))
            files.clear()
            num_bytes, num_tars = 0, num_tars + 1
        files.append((number, data))
        num_bytes += len(data)


main = program("adopt", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
