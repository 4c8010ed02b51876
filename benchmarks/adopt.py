"""Data of other formats, read in place: against the format's own loader, and against native shards.

    python -m benchmarks.adopt [--json FILE] [--formats NAME,…] [--num-rounds N] [--without-rivals] [--quick]

Photographs (19,200 JPEGs, 1.07 GB, delivered as bytes) from one MinIO behind a first byte of 30 ms ± 10 ms and 90 MB/s
per connection. Each rival (`benchmarks.peers.catalog`) writes them in its format and reads them with its loader. Then
`concurrent_loader.storage.adopt.adopt` scans the same bytes, and `ShardDataset` reads them in place. *Native* is the
same loader over shards of this project, which have the columns of the tar files: an image, and its key as a text. Each
epoch is a fresh process, and everything that it delivers is checked. Sides take turns; a ratio is the median over the
rounds of the ratio within a round. *Cold* is without a cache, *warm* with the cache that the cold epoch before left. An
epoch that did not end in a minute counts for no figure. A rival whose first epoch, out of turn, does not end gives way
to the same loader with smaller shards, where there is one. Tar files in place and native shards have ten rounds more:
within one round their warm epochs, 0.7 s each, differ by a fifth either way.

JSON: ``tar_vs_native``, ``warm_vs_native``: images per second in place, from tar files, against native, cold and warm.
``tar_vs_webdataset, mds_vs_streaming, litdata_vs_litdata, parquet_vs_hf``: cold, against the rival on the same bytes;
null if the format was not measured, or its loader always failed. ``scan_mb_s``: MB per second of processor time of a
scan of the tar files, without latency; ``scan_wall_mb_s``: per second; ``scan_rss_mb``: highest memory of its process;
``index_bytes_per_sample``: size of the index per sample and column; ``scans``: these for each format. ``rows``: for
each ``format``, ``side`` (``in_place, rival, native``) and ``epoch``; ``complete``: rounds that ended; ``loader``: the
rival's. ``errors``: what failed.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import obstore
from msgspec import structs
from rich.console import Console

from benchmarks.bucket import far_away, obstore_client
from benchmarks.command import program
from benchmarks.figures import four_digits, medians, with_spread
from benchmarks.harness import ROOT, CommandError, ask
from benchmarks.machine import read_into_page_cache
from benchmarks.peers.bucket import BUCKET, led_to, put_files, signed_urls
from benchmarks.peers.catalog import find
from benchmarks.peers.figures import check, image_digest, without_paths
from benchmarks.peers.job import Job, Outcome, paths
from benchmarks.peers.processes import python_of, run_job
from benchmarks.peers.turns import Side, empty_folder, median_ratio, take_turns
from benchmarks.photos import PhotoFolder, make_photos, replicate_photos
from concurrent_loader.storage.testing import LocalS3, local_s3

_ENVIRONMENTS = Path(".demo/peers/environments").resolve()  # of the rivals, which `benchmarks.peers` shares
_DEADLINE_S = 180.0
_WRITE_S = 900.0
_SCANNED = ("scan_mb_s", "scan_wall_mb_s", "scan_rss_mb", "index_bytes_per_sample")


@dataclass(frozen=True, slots=True)
class Contest:
    """A format, its own loaders, and ours in place."""

    format: str  # for `adopt`
    rivals: tuple[str, ...]  # in `benchmarks.peers.catalog`; the next one takes part if one does not end an epoch
    key: str  # of the ratio in the JSON
    columns: tuple[str, str] = ("image", "number")  # of the image and of its number in the adopted dataset


_TAR_COLUMNS = ("jpg", "__key__")
CONTESTS = (
    Contest("webdataset", ("webdataset",), "tar_vs_webdataset", _TAR_COLUMNS),
    Contest("mds", ("mosaicml", "mosaicml_8mb"), "mds_vs_streaming"),
    Contest("litdata", ("litdata",), "litdata_vs_litdata"),
    Contest("parquet", ("hf_datasets",), "parquet_vs_hf"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3_200  # that are cut
    raw_bytes: int = 1_000_000_000  # size that they are repeated to
    latency_ms: int = 30
    num_rounds: int = 5  # turns of each side
    num_more_rounds: int = 10  # of tar files in place and native shards, which are closer than an epoch is steady
    batch_size: int = 128
    limit_s: float = 60.0  # when an epoch is cut short
    num_workers: int = 2  # processes, or threads of ours
    tar_bytes: int = 64_000_000
    resident: bool = True  # whether real memory is put behind the page cache before each epoch
    formats: str = ",".join(contest.format for contest in CONTESTS)
    without_rivals: bool = False  # tar files only, in place and native


FULL = Load()
QUICK = Load(60, 1, 5, num_rounds=1, num_more_rounds=0, batch_size=16, num_workers=1, tar_bytes=1 << 20, resident=False)


@dataclass(slots=True)
class _Side(Side):
    """``in_place``, ``rival`` or ``native``."""

    format: str = "native"
    place: str = "native"  # prefix of the bytes that it reads
    loader: str | None = None  # the rival's, in words
    keys: list[str] = field(default_factory=list)  # of the objects, for a rival that needs signed URLs
    faults: set[str] = field(default_factory=set)
    peak_bytes: int = 0  # of one more cold epoch, after the rounds
    error: str | None = None


class _Measuring:
    """One run: the sides, and what is scanned, delivered and failed."""

    def __init__(
        self, load: Load, photos: PhotoFolder, folder: Path, server: LocalS3, far: LocalS3, console: Console
    ) -> None:
        self._load, self._folder, self._server, self._far, self._console = load, folder, server, far, console
        found = paths(str(photos.root))
        self._digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
        self._order = random.Random(0).sample(range(len(found)), len(found))
        self._native = Job(
            peer="ours", photos=str(photos.root), prefix="native",
            options={"layout": "shards", "columns": _TAR_COLUMNS, "number_type": "str"},
            batch_size=load.batch_size, num_workers=load.num_workers,
            resident_bytes=photos.num_bytes * 11 // 10 if load.resident else 0,
        )  # fmt: skip
        self.sides = [_Side("native", sys.executable, self._native, True)]
        self.scans: dict[str, dict[str, float]] = {}
        self.errors: dict[str, str] = {}
        self._write(sys.executable, self._native)

    def enter(self, contest: Contest) -> None:
        """Has the rival write its format, and adopts that."""
        with_rivals = not self._load.without_rivals
        for name in contest.rivals:
            peer, options = find(name), dict(find(name).options)
            if contest.format == "webdataset":
                options["tar_bytes"] = self._load.tar_bytes
            job = structs.replace(self._native, peer=peer.program, prefix=name, options=options)
            self._console.print(f"{contest.format}: {peer.title} writes, a scan follows", style="dim")
            try:
                # Our own environment has the writer of tar files as well.
                python = python_of(peer.environment if with_rivals else None, _ENVIRONMENTS)
                keys = self._write(python, job)
            except (CommandError, subprocess.TimeoutExpired, OSError) as error:
                self._fail(name, error)
                continue
            told: dict[str, Any] = {"format": contest.format, "place": name, "loader": f"{peer.title}, {peer.layout}"}
            rival = _Side("rival", python, job, peer.caches, **told, keys=keys)
            if with_rivals and name != contest.rivals[-1] and not self._ends(rival):
                failed = self.errors.pop(contest.format, f"its epoch did not end in {self._load.limit_s:g} s")
                self._fail(name, CommandError(failed))
                continue
            self.scans[contest.format] = self._scan(contest.format, name)
            columns = {"layout": "shards", "columns": contest.columns}
            ours = structs.replace(self._native, prefix=f"{name}-index-0", options=columns)
            self.sides.append(_Side("in_place", sys.executable, ours, True, format=contest.format, place=name))
            self.sides += [rival] * with_rivals
            return

    def _write(self, python: str, job: Job) -> list[str]:
        """Writes a format; returns the keys of its files."""
        with empty_folder(self._folder / "write") as folder:
            job = led_to(job, self._server.storage_options())
            run_job(python, structs.replace(job, task="write", folder=folder, order=self._order), deadline_s=_WRITE_S)
            return put_files(self._server, job.prefix, Path(folder))

    def _ends(self, side: _Side) -> bool:
        with empty_folder(self._folder / "cache") as folder:
            outcome = self._epoch(side, structs.replace(side.job, cache_dir=folder))
        return outcome is not None and outcome.complete

    def _scan(self, format_name: str, place: str) -> dict[str, float]:
        """Adopts a format several times, each in a process that imports nothing else; returns medians."""
        scans: list[dict[str, float]] = []
        options = self._server.storage_options()
        task = {"writer": "scan", "format": format_name, "source": f"s3://{BUCKET}/{place}", "options": options}
        for number in range(self._load.num_rounds):
            read_into_page_cache(self._folder / "s3" / BUCKET / place)
            index = f"{place}-index-{number}"
            found = ask(sys.executable, "ingest_side", {**task, "index": f"s3://{BUCKET}/{index}"}, timeout_s=_WRITE_S)
            pages = obstore.list(obstore_client(BUCKET, options), prefix=f"{index}/")
            index_bytes = sum(each["size"] for page in pages for each in page)
            num_values = found["samples"] * found["columns"]
            scans.append({
                "mb": round(found["mb"], 1), "samples": found["samples"], "columns": found["columns"],
                "scan_mb_s": round(found["mb"] / found["cpu_s"], 1),
                "scan_wall_mb_s": round(found["mb"] / found["wall_s"], 1),
                "scan_rss_mb": round(found["rss_mb"], 1), "index_bytes_per_sample": round(index_bytes / num_values, 2),
            })  # fmt: skip
        return medians(scans, lambda value: value)

    def take_turns(self) -> None:
        """Gives every side its turns, and one more cold epoch to see its memory."""

        def run(side: _Side, job: Job, epoch: str, number: int) -> Outcome | None:
            self._console.print(f"round {number + 1}: {side.format}, {side.name}, {epoch}", style="dim")
            return self._epoch(side, job)

        num_rounds, cache = self._load.num_rounds, self._folder / "cache"
        take_turns(self.sides, num_rounds, cache, run)
        close = [side for side in self.sides if side.format in ("native", "webdataset") and side.name != "rival"]
        if len(close) > 1:
            take_turns(close, self._load.num_more_rounds, cache, run, first=num_rounds)
        for side in self.sides:
            with empty_folder(self._folder / "cache") as folder:
                job = structs.replace(side.job, cache_dir=folder if side.caches else None)
                self._epoch(side, job, watch_memory=True)

    def _epoch(self, side: _Side, job: Job, *, watch_memory: bool = False) -> Outcome | None:
        """Returns None if a rival fails: its error is beside its figures; ours must not fail."""
        read_into_page_cache(self._folder / "s3" / BUCKET / side.place)
        urls = signed_urls(self._far, side.keys) if job.peer == "webdataset_tars" else []
        job = structs.replace(led_to(job, self._far.storage_options()), limit_s=self._load.limit_s, urls=urls)
        try:
            outcome, peak_bytes = run_job(side.python, job, deadline_s=_DEADLINE_S, watch_memory=watch_memory)
        except (CommandError, OSError) as error:
            if side.name != "rival":
                raise
            side.error = self._fail(side.format, error)
            return None
        side.peak_bytes = max(side.peak_bytes, peak_bytes)
        if fault := check(outcome, self._digests, decoded=False):
            side.faults.add(fault)
        return outcome

    def _fail(self, name: str, error: Exception) -> str:
        self._console.print(f"{name} fails:\n{error}", markup=False, style="red")
        self.errors[name] = without_paths(str(error), str(_ENVIRONMENTS.parent), str(self._folder), str(ROOT))
        return self.errors[name]


def figures_of(sides: Sequence[_Side]) -> dict[str, Any]:
    """Returns the ratios, and a row for each side and kind of epoch."""
    found = {(side.format, side.name): side for side in sides}
    tar, native = ("webdataset", "in_place"), ("native", "native")
    keys = {"tar_vs_native": (tar, native, "cold"), "warm_vs_native": (tar, native, "warm")}
    for contest in CONTESTS:
        keys[contest.key] = (contest.format, "in_place"), (contest.format, "rival"), "cold"

    def rounds(name: tuple[str, str], epoch: str) -> dict[int, Outcome]:
        return found[name].outcomes.get(epoch, {}) if name in found else {}

    ratios = {
        key: median_ratio(rounds(ours, epoch), rounds(theirs, epoch), lambda outcome: outcome.samples_s)
        for key, (ours, theirs, epoch) in keys.items()
    }
    failed = ("cold",)  # the row that has the error of a rival that never came to an outcome
    epochs = [(side, epoch) for side in sides for epoch in side.outcomes or (failed if side.error else ())]
    return {**ratios, "rows": [row(*each) for each in epochs]}


def row(side: _Side, epoch: str) -> dict[str, Any]:
    """Returns a row of the JSON: medians over the rounds that ended."""
    outcomes = [outcome for outcome in side.outcomes.get(epoch, {}).values() if outcome.complete]
    keys = ("samples_s", "cpu_s_per_1000", "first_batch_s")
    values: dict[str, Sequence[float]] = {name: [getattr(each, name) for each in outcomes] for name in keys}
    return {
        "format": side.format,
        "side": side.name,
        "epoch": epoch,
        "rounds": len(side.outcomes.get(epoch, {})),
        "complete": len(outcomes),
        **(with_spread(values, four_digits) if outcomes else {**dict.fromkeys(values), "spread": {}}),
        "peak_rss_mb": round(side.peak_bytes / 1e6, 1),
        "loader": side.loader,
        "fault": "; ".join(sorted(side.faults)) or None,
        "error": side.error,
    }


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Writes all formats, scans them, and lets all sides read."""
    contests = {contest.format: contest for contest in CONTESTS}
    chosen = ["webdataset"] if load.without_rivals else load.formats.split(",")
    data = Path(".demo/adopt").resolve()
    photos = replicate_photos(make_photos(data, count=load.num_photos), min_bytes=load.raw_bytes)
    with (
        empty_folder(data / "run") as folder,
        local_s3(data_dir=Path(folder) / "s3") as server,
        far_away(server, load.latency_ms) as (far, first_byte_ms),
    ):
        server.make_bucket(BUCKET)
        measuring = _Measuring(load, photos, Path(folder), server, far, console)
        for name in chosen:
            measuring.enter(contests[name])
        measuring.take_turns()
    tar_scan, scans, errors = measuring.scans.get("webdataset", {}), measuring.scans, measuring.errors
    facts = {"scans": scans, "errors": errors, "first_byte_ms": first_byte_ms, "load": asdict(load)}
    return {**figures_of(measuring.sides), **{name: tar_scan.get(name) for name in _SCANNED}, **facts}


main = program(
    "adopt", __doc__, run_benchmark, FULL, QUICK, "num_rounds", "without_rivals", formats=FULL.formats.split(",")
)

if __name__ == "__main__":
    raise SystemExit(main())
