"""Runs the peers in turn: cells, rounds, counting and resuming; a peer that fails is reported and the others go on."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.bucket import BANDWIDTH_MB_S, far_away
from benchmarks.harness import ROOT, CommandError
from benchmarks.machine import Bystanders, read_into_page_cache, versions
from benchmarks.peers.bucket import BUCKET, counted, led_to, prefix_of, put_files, put_objects, signed_urls
from benchmarks.peers.catalog import OURS, Cell, Load, Peer
from benchmarks.peers.figures import Run, check, headline, image_digest, is_slow, make_row, without_paths
from benchmarks.peers.job import Job, Outcome, paths
from benchmarks.peers.processes import python_of, requirements_file, run_job
from benchmarks.peers.turns import empty_folder
from benchmarks.photos import PhotoFolder, make_photos, replicate_photos
from concurrent_loader.storage.testing import LocalS3, local_s3

_DEADLINE_S = 60.0
_WRITE_S = 600.0
_TAR_FILES = 16
_CHANCES = 2  # of a kind: a peer that fails a turn is out with the second one


@dataclass(frozen=True, slots=True)
class _Images:
    """A dataset and where each peer has it."""

    photos: PhotoFolder
    order: list[int]
    digests: list[int]
    keys: dict[str, list[str]]


class Measuring:
    """One run of the benchmark, in a folder; without ours there is nothing to compare with, and no ratios."""

    def __init__(self, load: Load, peers: Sequence[Peer], data: Path, console: Console) -> None:
        self._load = load
        self._peers = list(peers)
        self._data = data.resolve() / "peers"
        self._run = self._data / "run"
        self._filled = self._run / "filled"
        self._console = console
        self._pythons: dict[str, str] = {}
        self._errors: dict[tuple[str, str], str] = {}  # of peers that are out
        self._stumbles: dict[tuple[str, str], list[str]] = defaultdict(list)  # messages of failed turns
        self._runs: dict[tuple[str, Cell, str], list[Run]] = defaultdict(list)
        self._extras: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
        self._images: dict[str, _Images] = {}
        self._first_byte_ms: dict[str, float] = {}
        self._others = Bystanders()
        self._began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"

    def run(self, *, on_figures: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Measures everything; ``on_figures`` gets the figures so far after each cell."""
        shutil.rmtree(self._run, ignore_errors=True)
        self._data.mkdir(parents=True, exist_ok=True)
        self._make_environments()
        photos = make_photos(self._data, count=self._load.num_photos)
        with local_s3(data_dir=self._run / "s3") as server:
            server.make_bucket(BUCKET)
            cells = self._load.cells()
            for cell in filter(self._load.measures, cells):
                if cell.kind not in self._images:
                    self._prepare(server, cell.kind, photos)
                with far_away(server, cell.latency_ms) as (far, first_byte_ms):
                    self._first_byte_ms[str(cell.latency_ms)] = first_byte_ms
                    self._measure(cell, far)
                    on_figures(self.figures(server.kind))
                    if cell == cells[0]:
                        self._resume(cell, far)
                    if cell in cells[: self._load.num_counted]:
                        self._count(server, cell)
                    figures = self.figures(server.kind)
                    on_figures(figures)
        shutil.rmtree(self._run, ignore_errors=True)
        return figures

    # -- what has to be there ------------------------------------------------------------------------------------------

    def _make_environments(self) -> None:
        for peer in self._peers:
            self._tell(f"environment of {peer.name}")
            try:
                self._pythons[peer.name] = python_of(peer.environment, self._data / "environments")
            except (CommandError, subprocess.TimeoutExpired, OSError) as error:
                self._errors |= {(peer.name, kind): self._said(error) for kind in ("raw", "decoded")}
                self._tell(f"{peer.name} is left out:\n{error}", style="red")

    def _prepare(self, server: LocalS3, kind: str, photos: PhotoFolder) -> None:
        """Writes a kind's images in every format."""
        photos = self._photos_of(kind, photos)
        found = paths(str(photos.root))
        order = random.Random(0).sample(range(len(found)), len(found))
        digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
        made = self._images[kind] = _Images(photos, order, digests, {})
        for prefix in sorted({prefix_of(peer) for peer in self._peers if peer.place == "objects"}):
            self._tell(f"{kind}: {len(found):,} objects below {prefix}")
            put_objects(f"s3://{BUCKET}/{kind}/{prefix}", server.storage_options(), found)
        for peer in self._able(kind):
            if peer.place == "objects" or peer.reads_files:
                continue
            self._tell(f"{kind}: {peer.name} writes its format")
            job = self._job(peer, Cell(kind, 0, 1), server)
            with self._told(peer, kind), empty_folder(self._run / "write") as folder:
                job = structs.replace(job, task="write", folder=folder, order=order)
                run_job(self._pythons[peer.name], job, deadline_s=_WRITE_S)
                made.keys[peer.name] = put_files(server, f"{kind}/{prefix_of(peer)}", Path(folder))

    def _photos_of(self, kind: str, photos: PhotoFolder) -> PhotoFolder:
        return replicate_photos(photos, min_bytes=self._load.raw_bytes) if kind == "raw" else photos

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(self, cell: Cell, far: LocalS3) -> None:
        for number in range(self._load.num_rounds):
            peers = [peer for peer in self._able(cell.kind) if self._has_turns(peer, cell)]
            turn = number * len(peers) // self._load.num_rounds
            for peer in (*peers[turn:], *peers[:turn])[:: -1 if number % 2 else 1]:
                self._tell(f"{cell}, round {number + 1}: {peer.name}")
                with self._told(peer, cell.kind, chances=_CHANCES):
                    self._turn(peer, cell, far, number)
        shutil.rmtree(self._filled, ignore_errors=True)

    def _turn(self, peer: Peer, cell: Cell, far: LocalS3, number: int) -> None:
        """Measures a cold epoch, and a warm one of a peer that has a cache."""
        self._put_at_hand(peer, cell.kind)
        with self._cache(peer) as cache:
            cold = self._epoch(peer, cell, "cold", far, cache, number)
            if not peer.caches:
                return
            if cold.complete:
                self._epoch(peer, cell, "warm", far, cache, number)
                return
        with self._cache(peer) as cache:
            assert cache is not None
            self._fill(peer, cell, far, cache)
            self._epoch(peer, cell, "warm", far, cache, number)

    def _fill(self, peer: Peer, cell: Cell, far: LocalS3, cache: str) -> None:
        """Puts into a cache folder what a whole cold epoch leaves there.

        To fill one takes long, and once in a cell is enough. Later turns have a copy: some loaders change what they
        find, and a warm epoch is the second one here, not the third.
        """
        kept = self._filled / peer.name
        if kept.exists():
            shutil.copytree(kept, cache, dirs_exist_ok=True, symlinks=True)
            return
        self._do(peer, structs.replace(self._job(peer, cell, far), cache_dir=cache))
        copy = kept.with_name(f"{kept.name}.part")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(cache, copy, symlinks=True)
        copy.rename(kept)  # a copy that broke off is none

    def _epoch(self, peer: Peer, cell: Cell, epoch: str, far: LocalS3, cache: str | None, number: int) -> Outcome:
        limit_s = self._load.objects_limit_s if peer.place == "objects" else self._load.limit_s
        job = structs.replace(self._job(peer, cell, far), cache_dir=cache, limit_s=limit_s)
        outcome = self._do(peer, job)
        fault = check(outcome, self._images[cell.kind].digests, decoded=cell.kind == "decoded")
        self._runs[peer.name, cell, epoch].append(Run(outcome, number, fault))
        return outcome

    def _do(self, peer: Peer, job: Job) -> Outcome:
        return run_job(self._pythons[peer.name], job, deadline_s=_DEADLINE_S)[0]

    def _has_turns(self, peer: Peer, cell: Cell) -> bool:
        """Returns whether a peer is measured in a cell; the slow ones have no turns beside the headline's.

        The headline's first round alone decides who is slow: in the others nobody stops half way.
        """
        main = next(other for other in self._load.cells() if other.kind == cell.kind)
        if cell != main:
            theirs, ours = (self._runs[name, main, "cold"][:1] for name in (peer.name, OURS))
            if theirs and ours and is_slow(theirs[0].outcome, ours[0].outcome):
                return False
        return self._load.has_turn(peer, cell)

    def _count(self, server: LocalS3, cell: Cell) -> None:
        """Runs one more epoch each, cold and warm, without latency: requests and bytes on the wire, and memory."""
        for peer in self._able(cell.kind):
            self._tell(f"{cell.kind}: requests and memory of {peer.name}")
            self._put_at_hand(peer, cell.kind)
            with self._cache(peer) as cache:
                for epoch in peer.epochs:
                    with self._noted(peer, cell.kind, epoch, "counting_error"):
                        self._extras[peer.name, cell.kind, epoch] |= self._counts(server, peer, cell, cache)

    def _counts(self, server: LocalS3, peer: Peer, cell: Cell, cache: str | None) -> dict[str, Any]:
        images = self._images[cell.kind]
        limit_s = 2 * self._load.objects_limit_s if peer.place == "objects" else None
        with counted(server) as (proxied, requests):
            job = structs.replace(self._job(peer, cell, proxied), cache_dir=cache, limit_s=limit_s)
            outcome, peak_bytes = run_job(self._pythons[peer.name], job, deadline_s=2 * _DEADLINE_S, watch_memory=True)
        memory = {"peak_rss_mb": round(peak_bytes / 1e6, 1)}
        if peer.place == "local":
            return memory
        scale = len(images.order) / len(outcome.numbers)
        return memory | {
            "gets": round(requests[0].gets * scale),
            "bytes_ratio": round(requests[0].bytes * scale / images.photos.num_bytes, 4),
        }

    def _resume(self, cell: Cell, far: LocalS3) -> None:
        """Stops half way and goes on in a new process."""
        images = self._images[cell.kind]
        half = len(images.order) // self._load.batch_size // 2
        for peer in self._able(cell.kind):
            epoch = peer.epochs[-1]
            runs = self._runs[peer.name, cell, epoch]
            if not runs:
                continue
            extra = self._extras[peer.name, cell.kind, epoch]
            if not peer.resumes:
                # An epoch that was cut short is half done when its rate says so.
                factor = len(images.order) / len(runs[-1].outcome.numbers)
                extra |= {"resume": "replay", "resume_s": round(runs[-1].outcome.half_s * factor, 3)}
                continue
            self._tell(f"{peer.name} stops half way and goes on")
            self._put_at_hand(peer, cell.kind)
            with self._noted(peer, cell.kind, epoch, "resume"), self._cache(peer) as cache:
                job = structs.replace(self._job(peer, cell, far), cache_dir=cache)
                first = self._do(peer, structs.replace(job, num_batches=half))
                second = self._do(peer, structs.replace(job, state=first.state))
                both = structs.replace(first, numbers=first.numbers + second.numbers, complete=True)
                wrong = check(both, images.digests, decoded=True)
                told = f"state ({wrong})" if wrong else "state"
                extra |= {"resume": told, "resume_s": round(second.first_batch_s, 3)}

    # -- what came of it -----------------------------------------------------------------------------------------------

    def figures(self, server: str) -> dict[str, Any]:
        """Returns the figures so far, as they are written to the JSON file."""
        cells = self._load.cells()
        rows = []
        measured = [cell for cell in cells if cell.kind in self._images and self._load.measures(cell)]
        for cell, peer in product(measured, self._peers):
            for epoch in peer.epochs:
                runs = self._runs[peer.name, cell, epoch]
                error = self._errors.get((peer.name, cell.kind))
                if not runs and error is None:
                    continue
                if error is None and self._stumbles[peer.name, cell.kind]:
                    error = f"one turn: {self._stumbles[peer.name, cell.kind][0]}"
                row = make_row(peer, cell, epoch, runs, self._images[cell.kind].order, error)
                if cell in cells[:2]:
                    row |= self._extras[peer.name, cell.kind, epoch]
                rows.append(row)
        files = {peer.environment: requirements_file(peer.environment) for peer in self._peers if peer.environment}
        return {
            "rows": rows,
            **headline(self._runs, cells[0], cells[1]),
            "began": self._began,
            "load": asdict(self._load),
            "photos": {
                kind: {"samples": len(made.order), "bytes": made.photos.num_bytes, "digest": made.photos.digest}
                for kind, made in self._images.items()
            },
            "sample_bytes": round(next(iter(self._images.values())).photos.mean_bytes),
            "first_byte_ms": self._first_byte_ms,
            "bandwidth_mb_s": BANDWIDTH_MB_S,
            "server": server,
            "environments": {name: file.read_text().splitlines() for name, file in files.items() if file.exists()},
            "machine": self._others.machine,
            "versions": versions(),
            "other_programs_share": self._others.share(),
        }

    # -- small things --------------------------------------------------------------------------------------------------

    def _able(self, kind: str) -> list[Peer]:
        """Returns the peers that have not failed at this kind."""
        return [peer for peer in self._peers if (peer.name, kind) not in self._errors]

    def _job(self, peer: Peer, cell: Cell, server: LocalS3) -> Job:
        images = self._images[cell.kind]
        keys = images.keys.get(peer.name, [])
        options = dict(peer.options)
        by_url = peer.program == "webdataset_tars"
        if options.get("layout") == "local":
            options["folder"] = str(self._run / f"local-{cell.kind}")
        if by_url:
            # As large as its documentation advises if each worker still has several.
            options["tar_bytes"] = min(64_000_000, images.photos.num_bytes // _TAR_FILES)
        job = Job(
            peer=peer.program, photos=str(images.photos.root), prefix=f"{cell.kind}/{prefix_of(peer)}", options=options,
            urls=signed_urls(server, keys) if by_url and keys else [], decoded=cell.kind == "decoded",
            batch_size=self._load.batch_size, num_workers=cell.workers,
            resident_bytes=images.photos.num_bytes * 11 // 10 if self._load.resident else 0,
        )  # fmt: skip
        return led_to(job, server.storage_options())

    def _put_at_hand(self, peer: Peer, kind: str) -> None:
        """Reads what a peer's turn reads into the page cache: neither the server's drive nor the local one is measured.

        Some gigabytes have been written shortly before. Which of them the system still holds is chance, and would be
        another peer's bad luck in every run.
        """
        local = self._images[kind].photos.root if peer.reads_files else self._run / f"local-{kind}"
        read_into_page_cache(local if peer.place == "local" else self._run / "s3" / BUCKET / kind / prefix_of(peer))

    def _cache(self, peer: Peer) -> AbstractContextManager[str | None]:
        """Makes an empty folder for a peer that keeps what it has fetched."""
        return empty_folder(self._run / "cache") if peer.caches else contextlib.nullcontext()

    @contextlib.contextmanager
    def _caught(self, peer: Peer, kind: str, then: Callable[[str], object]) -> Iterator[None]:
        """Prints what a peer fails at, and goes on; ours must not fail."""
        try:
            yield
        except (CommandError, OSError) as error:
            if peer.name == OURS:
                raise
            self._tell(f"{peer.name} ({kind}) fails:\n{error}", style="red")
            then(self._said(error))

    def _told(self, peer: Peer, kind: str, *, chances: int = 1) -> AbstractContextManager[None]:
        """Leaves out a peer that fails so often, with its error in the report."""

        def then(error: str) -> None:
            stumbles = self._stumbles[peer.name, kind]
            stumbles.append(error)
            if len(stumbles) >= chances:
                self._errors[peer.name, kind] = error

        return self._caught(peer, kind, then)

    def _noted(self, peer: Peer, kind: str, epoch: str, key: str) -> AbstractContextManager[None]:
        """Notes in its row that a peer failed at something beside the measuring; it stays."""
        extra = self._extras[peer.name, kind, epoch]
        return self._caught(peer, kind, lambda error: extra.update({key: f"failed: {error}"}))

    def _said(self, error: Exception) -> str:
        return without_paths(str(error), str(self._data), str(ROOT), tempfile.gettempdir())

    def _tell(self, what: str, *, style: str = "dim") -> None:
        self._console.print(what, markup=False, highlight=False, style=style)
