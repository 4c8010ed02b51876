"""Data of other formats, read in place: against the format's own loader, and against native shards.

    python -m benchmarks.adopt [--json FILE] [--format NAME …] [--rounds N] [--without-rivals] [--quick]

Photographs (19,200 JPEGs, 1.07 GB, delivered as bytes) from one MinIO behind a first byte of 30 ms ± 10 ms and 90 MB/s
per connection. Each rival (`benchmarks.peers.catalog`) writes them in its format and reads them with its loader. Then
`concurrent_loader.storage.adopt.adopt` scans the same bytes, and `ShardDataset` reads them in place. *Native* is the
same loader over shards of this project. Each epoch is a fresh process, and everything that an epoch delivers is
checked. Sides take turns, in another order in each round; a ratio is the median over the rounds of the ratio within a
round. *Cold* is without a cache, *warm* with the cache that the cold epoch before left. An epoch that did not end in a
minute has failed, and counts for no figure.

JSON: ``tar_vs_native``, ``warm_vs_native``: images per second in place, from tar files, against native, cold and warm.
``tar_vs_webdataset, mds_vs_streaming, litdata_vs_litdata, parquet_vs_hf``: cold, against the rival on the same bytes;
null if the format was not measured, or its loader always failed. ``scan_mb_s``: MB per second of processor time of a
scan of the tar files, without latency; ``scan_wall_mb_s``: per second. ``scan_rss_mb``: highest memory of the scan's
process. ``index_bytes_per_sample``: size of all objects of the tar files' index per sample and column. ``rows``:
``format, side`` (``in_place, rival, native``)``, epoch, rounds, complete`` (rounds that came to the end)``, samples_s,
cpu_s_per_1000, first_batch_s, peak_rss_mb`` (of one more cold epoch each, after the rounds)``, fault, error, spread``.
``scans``: the same figures for each format. ``errors``: what failed. ``first_byte_ms, load, machine, versions,
other_programs_share``.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bucket import far_away
from benchmarks.command import command_line, ends_with_one_line
from benchmarks.figures import four_digits, with_spread
from benchmarks.harness import CommandError
from benchmarks.machine import Bystanders, describe_machine, read_into_page_cache, versions
from benchmarks.peers.bucket import BUCKET, led_to, put_files, signed_urls
from benchmarks.peers.catalog import Peer, find
from benchmarks.peers.figures import check, image_digest, without_paths
from benchmarks.peers.job import Job, Outcome, paths, written
from benchmarks.peers.processes import EnvironmentFailed, python_of, run_job
from benchmarks.photos import make_photos, replicate_photos
from benchmarks.program import ROOT
from concurrent_loader.storage.adopt.formats import FORMATS
from concurrent_loader.storage.testing import LocalS3, local_s3

__all__ = ["main"]

_DEADLINE_S = 180.0
_WRITE_S = 900.0
_NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Contest:
    """A format, its own loader, and ours in place.

    Attributes:
        format: Name of the format for `adopt`.
        rival: Name of the rival in `benchmarks.peers.catalog`.
        key: Key of the ratio in the JSON.
        columns: Columns of the image and of its number in the adopted dataset.
    """

    format: str
    rival: str
    key: str
    columns: tuple[str, str] = ("image", "number")


CONTESTS = (
    Contest("webdataset", "webdataset", "tar_vs_webdataset", ("jpg", "__key__")),
    Contest("mds", "mosaicml", "mds_vs_streaming"),
    Contest("litdata", "litdata", "litdata_vs_litdata"),
    Contest("parquet", "hf_datasets", "parquet_vs_hf"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured.

    Attributes:
        num_photos: Number of photographs that are cut.
        raw_bytes: Size that they are repeated to.
        latency_ms: Time to the first byte.
        num_rounds: Number of turns of each side.
        batch_size: Number of images per batch.
        limit_s: Time after which an epoch is cut short.
        num_workers: Number of worker processes, or of threads for ours.
        tar_bytes: Size of a tar file.
        resident: Whether real memory is put behind the page cache before each epoch.
    """

    num_photos: int = 3_200
    raw_bytes: int = 1_000_000_000
    latency_ms: int = 30
    num_rounds: int = 5
    batch_size: int = 128
    limit_s: float = 60.0
    num_workers: int = 2
    tar_bytes: int = 64_000_000
    resident: bool = True


_QUICK = Load(
    num_photos=60, raw_bytes=1, latency_ms=5, num_rounds=1, batch_size=16, num_workers=1, tar_bytes=1 << 20,
    resident=False,
)  # fmt: skip


@dataclass(slots=True)
class _Side:
    """Who takes turns, and what came of them: outcomes by kind of epoch, one per round."""

    format: str
    name: str
    python: str
    job: Job
    caches: bool
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    peak_bytes: int = 0
    error: str | None = None


class _Measuring:
    """One run.

    Args:
        load: How much is measured.
        contests: Formats.
        with_rivals: Whether rivals take part; without them, there are tar files only, which Python writes.
        data: Folder for everything that is made.
        console: Where progress is printed.
    """

    def __init__(
        self, load: Load, contests: Sequence[Contest], *, with_rivals: bool, data: Path, console: Console
    ) -> None:
        self._load = load
        self._contests = contests
        self._with_rivals = with_rivals
        self._data = data.resolve() / "adopt"
        self._environments = data.resolve() / "peers" / "environments"  # of `benchmarks.peers`
        self._console = console
        self._sides: list[_Side] = []
        self._scans: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, str] = {}
        self._others = Bystanders()

    def run(self, on_figures: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Measures everything, and returns the figures; ``on_figures`` gets those so far after each round."""
        shutil.rmtree(self._data / "run", ignore_errors=True)
        self._data.mkdir(parents=True, exist_ok=True)
        photos = replicate_photos(make_photos(self._data, count=self._load.num_photos), min_bytes=self._load.raw_bytes)
        found = paths(str(photos.root))
        self._digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
        self._job = Job(
            peer="ours",
            task="epoch",
            photos=str(photos.root),
            order=[],
            options={"layout": "shards"},
            batch_size=self._load.batch_size,
            num_workers=self._load.num_workers,
            resident_bytes=photos.num_bytes * 11 // 10 if self._load.resident else 0,
        )
        self._order = random.Random(0).sample(range(len(found)), len(found))
        with local_s3(data_dir=self._data / "run" / "s3") as server:
            server.make_bucket(BUCKET)
            self._write_native(server)
            for contest in self._contests:
                self._prepare(contest, server)
            with far_away(server, self._load.latency_ms) as (far, self._first_byte_ms):
                self._take_turns(far, on_figures)
        shutil.rmtree(self._data / "run", ignore_errors=True)
        return self._figures()

    # -- data ----------------------------------------------------------------------------------------------------------

    def _write_native(self, server: LocalS3) -> None:
        self._tell("native shards are written")
        job = structs.replace(self._job, prefix=_NATIVE)
        writing = led_to(structs.replace(job, task="write", order=self._order), server)
        run_job(sys.executable, writing, deadline_s=_WRITE_S)
        self._sides.append(_Side(_NATIVE, _NATIVE, sys.executable, job, caches=True))

    def _prepare(self, contest: Contest, server: LocalS3) -> None:
        """Has the rival write its format, and adopts that."""
        peer = find(contest.rival)
        prefix = contest.format
        job = structs.replace(self._job, peer=peer.program, prefix=prefix, options=dict(peer.options))
        if contest.format == "webdataset":
            job.options["tar_bytes"] = self._load.tar_bytes
        self._tell(f"{contest.format}: {peer.title if self._with_rivals else 'tarfile'} writes the images")
        folder = self._data / "run" / "write"
        folder.mkdir(parents=True)
        writing = structs.replace(job, task="write", folder=str(folder), order=self._order)
        try:
            keys = self._write(peer, led_to(writing, server), server)
        except (CommandError, EnvironmentFailed, subprocess.TimeoutExpired, OSError) as error:
            self._fail(contest.rival, error)
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._scans[contest.format] = self._scan(contest, server)
        columns = {"layout": "shards", "columns": contest.columns}
        ours = structs.replace(self._job, prefix=f"{prefix}-index-0", options=columns)
        self._sides.append(_Side(contest.format, "in_place", sys.executable, ours, caches=True))
        if self._with_rivals:
            job.options["keys"] = keys  # signed when the way is known
            python = python_of(peer.environment, self._environments)
            self._sides.append(_Side(contest.format, "rival", python, job, caches=peer.caches))

    def _write(self, peer: Peer, job: Job, server: LocalS3) -> list[str]:
        if self._with_rivals:
            run_job(python_of(peer.environment, self._environments), job, deadline_s=_WRITE_S)
        else:
            _write_tars(job)
        return put_files(server, job.prefix, Path(job.folder))

    def _scan(self, contest: Contest, server: LocalS3) -> dict[str, Any]:
        """Adopts a format several times, each in a fresh process; returns medians."""
        task = {
            "format": contest.format,
            "source": f"s3://{BUCKET}/{contest.format}",
            "options": dict(server.storage_options()),
        }
        scans: list[dict[str, Any]] = []
        for number in range(self._load.num_rounds):
            self._tell(f"{contest.format}: scan {number + 1}")
            read_into_page_cache(self._data / "run" / "s3" / BUCKET / contest.format)
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.adopt_scan"],
                input=json.dumps({**task, "index": f"s3://{BUCKET}/{contest.format}-index-{number}"}),
                capture_output=True, text=True, check=False, cwd=ROOT, timeout=_WRITE_S,
            )  # fmt: skip
            if done.returncode:
                raise CommandError(f"the scan of {contest.format} ended with status {done.returncode}\n{done.stderr}")
            scans.append(json.loads(done.stdout))
        return {name: statistics.median(scan[name] for scan in scans) for name in scans[0]}

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _take_turns(self, far: LocalS3, on_figures: Callable[[dict[str, Any]], object]) -> None:
        for number in range(self._load.num_rounds):
            turn = number * len(self._sides) // self._load.num_rounds
            for side in (*self._sides[turn:], *self._sides[:turn])[:: -1 if number % 2 else 1]:
                self._tell(f"round {number + 1}: {side.format}, {side.name}")
                with self._told(side), self._cache() as cache:
                    for epoch in ("cold", "warm") if side.caches else ("cold",):
                        outcome, _ = self._epoch(side, far, cache if side.caches else None)
                        side.outcomes.setdefault(epoch, {})[number] = outcome
                        if not outcome.complete:
                            break
            on_figures(self._figures())
        for side in self._sides:
            self._tell(f"memory: {side.format}, {side.name}")
            with self._told(side), self._cache() as cache:
                _, side.peak_bytes = self._epoch(side, far, cache if side.caches else None, watch_memory=True)

    def _epoch(
        self, side: _Side, far: LocalS3, cache: str | None, *, watch_memory: bool = False
    ) -> tuple[Outcome, int]:
        read_into_page_cache(self._data / "run" / "s3" / BUCKET / side.format)
        keys = side.job.options.get("keys", [])
        job = structs.replace(
            led_to(side.job, far),
            cache_dir=cache,
            limit_s=self._load.limit_s,
            urls=signed_urls(far, keys) if side.job.peer == "webdataset_tars" else [],
            options={name: value for name, value in side.job.options.items() if name != "keys"},
        )
        outcome, peak_bytes = run_job(side.python, job, deadline_s=_DEADLINE_S, watch_memory=watch_memory)
        fault = check(outcome, self._digests, decoded=False)
        if fault:
            side.faults.add(fault)
        return outcome, peak_bytes

    @contextlib.contextmanager
    def _cache(self) -> Iterator[str]:
        folder = self._data / "run" / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

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
        self._console.print(f"{name} fails:\n{error}", markup=False, style="red")
        return self._errors[name]

    def _tell(self, what: str) -> None:
        self._console.print(what, markup=False, highlight=False, style="dim")

    # -- figures -------------------------------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        sides = {(side.format, side.name): side for side in self._sides}
        tar, native = sides.get(("webdataset", "in_place")), sides[_NATIVE, _NATIVE]
        scan = self._scans.get("webdataset", {})
        return {
            "tar_vs_native": _ratio(tar, native, "cold"),
            "warm_vs_native": _ratio(tar, native, "warm"),
            **{
                contest.key: _ratio(
                    sides.get((contest.format, "in_place")), sides.get((contest.format, "rival")), "cold"
                )
                for contest in CONTESTS
            },
            **{
                name: scan.get(name)
                for name in ("scan_mb_s", "scan_wall_mb_s", "scan_rss_mb", "index_bytes_per_sample")
            },
            "rows": [_row(side, epoch) for side in self._sides for epoch in side.outcomes],
            "scans": self._scans,
            "errors": self._errors,
            "first_byte_ms": self._first_byte_ms,
            "load": asdict(self._load),
            "machine": describe_machine(),
            "versions": versions(),
            "other_programs_share": round(self._others.share(), 3),
        }


def _ratio(ours: _Side | None, theirs: _Side | None, epoch: str) -> float | None:
    """Returns the median over the rounds of the ratio of rates, or None without a round in which both came to the end.

    An epoch that was cut short may have stood still: it says that the side failed, and not how slow it is.
    """
    if ours is None or theirs is None:
        return None
    mine, others = ours.outcomes.get(epoch, {}), theirs.outcomes.get(epoch, {})
    pairs = [(mine[at], others[at]) for at in mine if at in others and mine[at].complete and others[at].complete]
    return four_digits(statistics.median(_rate(one) / _rate(other) for one, other in pairs)) if pairs else None


def _row(side: _Side, epoch: str) -> dict[str, Any]:
    outcomes = [outcome for outcome in side.outcomes[epoch].values() if outcome.complete]
    values = {
        "samples_s": [_rate(outcome) for outcome in outcomes],
        "cpu_s_per_1000": [1000 * outcome.cpu_s / len(outcome.numbers) for outcome in outcomes],
        "first_batch_s": [outcome.first_batch_s for outcome in outcomes],
    }
    return {
        "format": side.format,
        "side": side.name,
        "epoch": epoch,
        "rounds": len(side.outcomes[epoch]),
        "complete": len(outcomes),
        **(with_spread(values, four_digits) if outcomes else {**dict.fromkeys(values), "spread": {}}),
        "peak_rss_mb": round(side.peak_bytes / 1e6, 1),
        "fault": "; ".join(sorted(side.faults)) or None,
        "error": side.error,
    }


def _rate(outcome: Outcome) -> float:
    return len(outcome.numbers) / outcome.epoch_s


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
    names = [contest.format for contest in CONTESTS]
    parser.add_argument("--format", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, help=f"of all sides (default {Load().num_rounds})")
    parser.add_argument("--without-rivals", action="store_true", help="tar files only, in place and native")
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    parsed = parser.parse_args(arguments)
    load = _QUICK if parsed.quick else Load()
    if parsed.rounds is not None:
        load = replace(load, num_rounds=parsed.rounds)
    chosen = ["webdataset"] if parsed.without_rivals else parsed.format or names
    contests = [contest for contest in CONTESTS if contest.format in chosen and contest.format in FORMATS]

    def write(figures: Mapping[str, Any]) -> None:
        if parsed.json is not None:
            parsed.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    def run() -> None:
        console = Console()
        measuring = _Measuring(load, contests, with_rivals=not parsed.without_rivals, data=parsed.data, console=console)
        figures = measuring.run(write)
        write(figures)
        _show(figures, console)

    return ends_with_one_line(run)


def _show(figures: Mapping[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("format", "side", "epoch", "images/s", "CPU s per 1,000", "first batch, s", "MB", "fault"):
        table.add_column(title, justify="left" if title in ("format", "side", "epoch", "fault") else "right")
    for row in figures["rows"]:
        table.add_row(
            row["format"], row["side"], row["epoch"], f"{row['samples_s']:,.0f}", f"{row['cpu_s_per_1000']:.3f}",
            f"{row['first_batch_s']:.2f}", f"{row['peak_rss_mb']:,.0f}", row["fault"] or "",
        )  # fmt: skip
    console.print(table)
    for name, value in figures.items():
        if value is None or isinstance(value, float):
            console.print(f"{name}: {value}", markup=False)


if __name__ == "__main__":
    raise SystemExit(main())
