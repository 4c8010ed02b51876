"""Data of other formats, read in place: against the format's own loader, and against native shards.

    python -m benchmarks.adopt [--json FILE] [--without-rivals] [--quick]

Photographs (19,200 JPEGs, 1.07 GB, delivered as bytes) from one MinIO behind a first byte of 30 ms ± 10 ms and 90 MB/s
per connection. Each rival (`benchmarks.peers.catalog`) writes them in its format and reads them with its loader. Then
`concurrent_loader.storage.adopt.adopt` scans the same bytes, and `ShardDataset` reads them in place. *Native* is the
same loader over shards of this project. Each epoch is a fresh process, and everything that an epoch delivers is
checked. Sides take turns; a ratio is the median over the rounds of the ratio within a round. *Cold* is without a cache,
*warm* with the cache that the cold epoch before left. An epoch that did not end in a minute counts for no figure.

JSON: ``tar_vs_native``, ``warm_vs_native``: images per second in place, from tar files, against native, cold and warm.
``tar_vs_webdataset, mds_vs_streaming, litdata_vs_litdata, parquet_vs_hf``: cold, against the rival on the same bytes;
null if the format was not measured, or its loader always failed. ``scan_mb_s``: MB per second of processor time of a
scan of the tar files, without latency; ``scan_wall_mb_s``: per second. ``scan_rss_mb``: highest memory of the scan's
process. ``index_bytes_per_sample``: size of all objects of the tar files' index per sample and column. ``scans``: the
same for each format. ``rows``: for each ``format``, ``side`` (``in_place, rival, native``) and ``epoch``; ``complete``:
rounds that ended. ``errors``: what failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.bucket import far_away
from benchmarks.command import command_line, publish
from benchmarks.figures import four_digits, with_spread
from benchmarks.harness import CommandError
from benchmarks.machine import read_into_page_cache
from benchmarks.peers.bucket import BUCKET, led_to, put_files, signed_urls
from benchmarks.peers.catalog import find
from benchmarks.peers.figures import check, image_digest, without_paths
from benchmarks.peers.job import Job, Outcome, paths, written
from benchmarks.peers.processes import EnvironmentFailed, python_of, run_job
from benchmarks.peers.turns import Side, empty_folder, median_ratio, take_turns
from benchmarks.photos import make_photos, replicate_photos
from benchmarks.program import ROOT
from concurrent_loader.storage.testing import LocalS3, local_s3

_DEADLINE_S = 180.0
_WRITE_S = 900.0
_NATIVE = "native"
# Format → its own loader in the catalogue, key of the ratio in the JSON, columns of the image and of its number.
CONTESTS: dict[str, tuple[str, str, tuple[str, str]]] = {
    "webdataset": ("webdataset", "tar_vs_webdataset", ("jpg", "__key__")),
    "mds": ("mosaicml", "mds_vs_streaming", ("image", "number")),
    "litdata": ("litdata", "litdata_vs_litdata", ("image", "number")),
    "parquet": ("hf_datasets", "parquet_vs_hf", ("image", "number")),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3_200  # that are cut
    raw_bytes: int = 1_000_000_000  # size that they are repeated to
    latency_ms: int = 30
    num_rounds: int = 5  # turns of each side
    batch_size: int = 128
    limit_s: float = 60.0  # when an epoch is cut short
    num_workers: int = 2  # worker processes, or threads for ours
    tar_bytes: int = 64_000_000
    resident: bool = True  # whether real memory is put behind the page cache before each epoch


FULL = Load()
QUICK = Load(60, 1, latency_ms=5, num_rounds=1, batch_size=16, num_workers=1, tar_bytes=1 << 20, resident=False)


@dataclass(slots=True)
class _Side(Side):
    """Ours in place, ours over native shards, or a rival, with one format."""

    format: str = ""
    keys: Sequence[str] = ()  # of the rival's objects, which are signed when the way is known
    faults: set[str] = field(default_factory=set)
    peak_bytes: int = 0
    error: str | None = None


class _Measuring:
    """One run; without rivals there are tar files only, which Python writes."""

    def __init__(self, load: Load, data: Path, console: Console, *, with_rivals: bool) -> None:
        self._load = load
        self._with_rivals = with_rivals
        self._environments = data.resolve() / "peers" / "environments"  # of `benchmarks.peers`
        self._data = data.resolve() / "adopt"
        self._run = self._data / "run"
        self._console = console
        self._sides: list[_Side] = []
        self._scans: dict[str, dict[str, float]] = {}
        self._errors: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        """Measures everything."""
        load = self._load
        self._data.mkdir(parents=True, exist_ok=True)
        photos = replicate_photos(make_photos(self._data, count=load.num_photos), min_bytes=load.raw_bytes)
        found = paths(str(photos.root))
        self._digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
        resident_bytes = photos.num_bytes * 11 // 10 if load.resident else 0
        self._job = Job(
            peer="ours", photos=str(photos.root), prefix=_NATIVE, options={"layout": "shards"},
            batch_size=load.batch_size, num_workers=load.num_workers, resident_bytes=resident_bytes,
        )  # fmt: skip
        self._order = random.Random(0).sample(range(len(found)), len(found))
        with empty_folder(self._run), local_s3(data_dir=self._run / "s3") as server:
            server.make_bucket(BUCKET)
            writing = structs.replace(self._job, task="write", order=self._order)
            run_job(sys.executable, led_to(writing, server.storage_options()), deadline_s=_WRITE_S)
            self._sides.append(_Side(_NATIVE, sys.executable, self._job, True, format=_NATIVE))
            for name in CONTESTS if self._with_rivals else ("webdataset",):
                self._prepare(name, server)
            with far_away(server, load.latency_ms) as (far, first_byte_ms):
                self._take_turns(far)
        return {**self._figures(), "first_byte_ms": first_byte_ms}

    def _prepare(self, name: str, server: LocalS3) -> None:
        """Has the rival write its format, and adopts that."""
        rival, _, columns = CONTESTS[name]
        peer = find(rival)
        job = structs.replace(self._job, peer=peer.program, prefix=name, options=dict(peer.options))
        if name == "webdataset":
            job.options["tar_bytes"] = self._load.tar_bytes
        self._tell(f"{name}: the images are written and scanned")
        python = sys.executable
        try:
            with empty_folder(self._run / "write") as folder:
                writing = structs.replace(job, task="write", folder=folder, order=self._order)
                if self._with_rivals:
                    python = python_of(peer.environment, self._environments)
                    run_job(python, led_to(writing, server.storage_options()), deadline_s=_WRITE_S)
                else:
                    _write_tars(writing)
                keys = put_files(server, name, Path(folder))
        except (CommandError, EnvironmentFailed, subprocess.TimeoutExpired, OSError) as error:
            self._fail(rival, error)
            return
        scans = [self._scan(name, server, number) for number in range(self._load.num_rounds)]
        self._scans[name] = {key: median(scan[key] for scan in scans) for key in scans[0]}
        options = {"layout": "shards", "columns": columns}
        ours = structs.replace(self._job, prefix=f"{name}-index-0", options=options)
        self._sides.append(_Side("in_place", sys.executable, ours, True, format=name))
        if self._with_rivals:
            self._sides.append(_Side("rival", python, job, peer.caches, format=name, keys=keys))

    def _scan(self, name: str, server: LocalS3, number: int) -> dict[str, float]:
        """Adopts a format in a process that imports nothing else: its memory is measured."""
        read_into_page_cache(self._run / "s3" / BUCKET / name)
        task = {"format": name, "source": f"s3://{BUCKET}/{name}", "index": f"s3://{BUCKET}/{name}-index-{number}"}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.adopt_scan"],
            input=json.dumps({**task, "options": dict(server.storage_options())}),
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=_WRITE_S,
        )  # fmt: skip
        if done.returncode:
            raise CommandError(f"the scan of {name} ended with status {done.returncode}\n{done.stderr}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def _take_turns(self, far: LocalS3) -> None:
        def run(side: _Side, job: Job, epoch: str, number: int) -> Outcome | None:
            self._tell(f"round {number + 1}: {side.format}, {side.name}, {epoch}")
            outcome = None
            with self._told(side):
                outcome, _ = self._epoch(side, job, far)
            return outcome

        take_turns(self._sides, self._load.num_rounds, self._run / "cache", run)
        for side in self._sides:
            with self._told(side), empty_folder(self._run / "cache") as cache:
                job = structs.replace(side.job, cache_dir=cache if side.caches else None)
                _, side.peak_bytes = self._epoch(side, job, far, watch_memory=True)

    def _epoch(self, side: _Side, job: Job, far: LocalS3, *, watch_memory: bool = False) -> tuple[Outcome, int]:
        read_into_page_cache(self._run / "s3" / BUCKET / side.format)
        urls = signed_urls(far, side.keys) if job.peer == "webdataset_tars" else []
        job = structs.replace(led_to(job, far.storage_options()), limit_s=self._load.limit_s, urls=urls)
        outcome, peak_bytes = run_job(side.python, job, deadline_s=_DEADLINE_S, watch_memory=watch_memory)
        if fault := check(outcome, self._digests, decoded=False):
            side.faults.add(fault)
        return outcome, peak_bytes

    @contextlib.contextmanager
    def _told(self, side: _Side) -> Iterator[None]:
        """A rival that fails a turn has the error beside its figures; ours must not fail."""
        try:
            yield
        except (CommandError, OSError) as error:
            if side.name != "rival":
                raise
            side.error = self._fail(side.format, error)

    def _fail(self, name: str, error: Exception) -> str:
        self._errors[name] = without_paths(str(error), str(self._data), str(ROOT))
        self._tell(f"{name} fails:\n{error}")
        return self._errors[name]

    def _tell(self, what: str) -> None:
        self._console.print(what, markup=False, highlight=False, style="dim")

    def _figures(self) -> dict[str, Any]:
        sides = {(side.format, side.name): side.outcomes for side in self._sides}

        def ratio(ours: str, theirs: tuple[str, str], epoch: str) -> float | None:
            mine, others = (sides.get(side, {}).get(epoch, {}) for side in ((ours, "in_place"), theirs))
            return median_ratio(mine, others, lambda outcome: outcome.samples_s)

        scan = self._scans.get("webdataset", {})
        keys = ("scan_mb_s", "scan_wall_mb_s", "scan_rss_mb", "index_bytes_per_sample")
        return {
            "tar_vs_native": ratio("webdataset", (_NATIVE, _NATIVE), "cold"),
            "warm_vs_native": ratio("webdataset", (_NATIVE, _NATIVE), "warm"),
            **{key: ratio(name, (name, "rival"), "cold") for name, (_, key, _) in CONTESTS.items()},
            **{key: scan.get(key) for key in keys},
            "rows": [row(side, epoch) for side in self._sides for epoch in side.outcomes],
            "scans": self._scans,
            "errors": self._errors,
            "load": asdict(self._load),
        }


def row(side: _Side, epoch: str) -> dict[str, Any]:
    """Returns a row of the JSON: medians over the rounds that ended."""
    outcomes = [outcome for outcome in side.outcomes[epoch].values() if outcome.complete]
    values = {
        name: [getattr(each, name) for each in outcomes] for name in ("samples_s", "cpu_s_per_1000", "first_batch_s")
    }
    return {
        "format": side.format,
        "side": side.name,
        "epoch": epoch,
        "rounds": len(side.outcomes[epoch]),
        "complete": len(outcomes),
        **(with_spread(values, four_digits) if outcomes else {**dict.fromkeys(values), "spread": {}}),
        "peak_rss_mb": round(side.peak_bytes / 1e6, 1),  # of one more cold epoch, after the rounds
        "fault": "; ".join(sorted(side.faults)) or None,
        "error": side.error,
    }


def _write_tars(job: Job) -> None:
    """Writes tar files as WebDataset's writer does."""
    files: list[tuple[int, bytes]] = []
    num_bytes = num_tars = 0
    for number, data in chain(written(job), [(-1, b"")]):
        if files and (number < 0 or num_bytes + len(data) > job.options["tar_bytes"]):
            with tarfile.open(Path(job.folder) / f"{num_tars:06d}.tar", "w") as tar:
                for each, image in files:
                    info = tarfile.TarInfo(f"{each:07d}.jpg")
                    info.size = len(image)
                    tar.addfile(info, io.BytesIO(image))
            files.clear()
            num_bytes, num_tars = 0, num_tars + 1
        files.append((number, data))
        num_bytes += len(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark from the command line; returns the exit status."""
    parser = command_line("adopt", __doc__)
    parser.add_argument("--without-rivals", action="store_true", help="tar files only, in place and native")
    options = parser.parse_args(arguments)
    load, with_rivals = QUICK if options.quick else FULL, not options.without_rivals

    def measure(console: Console) -> Mapping[str, Any]:
        return _Measuring(load, Path(".demo"), console, with_rivals=with_rivals).run()

    return publish("adopt", measure, options.json)


if __name__ == "__main__":
    sys.exit(main())
