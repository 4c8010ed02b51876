"""Accelerators that a loader keeps busy, emulated as MLPerf Storage does. Unofficial, not MLPerf results.

    python -m benchmarks.accelerators [--json FILE] [--quick] [--workloads NAME,…] [--peers NAME,…] [--kinds KIND,…]

A workload of MLPerf Storage (https://github.com/mlcommons/storage, ``configs/dlio/workload``) says how many bytes a
sample has, how many samples a batch, and how long an accelerator computes on it. Computing is sleeping. All emulated
accelerators of a host pull from **one** loader: in each step each takes a batch, all compute, and wait for each other.
It is the same for all loaders; DLIO runs a process with a loader of its own for every accelerator, which would not fit
two cores. Their utilisation is the time computed ÷ the time from the first step's batches on; DLIO leaves out the first
step as well. The figure is the largest number with at least 90 % (RetinaNet 85 %), by medians of rounds.

Data: photographs, each padded with noise to the size of the workload, from one MinIO behind 30 ± 10 ms and 90 MB/s a
connection, in each peer's own format (see `benchmarks.peers`). ``raw`` batches are bytes, as DLIO's are; ``decoded``
ones are cropped to 224². ``cold``: nothing kept; ``warm``: with the cache that a cold epoch left. An epoch without
computing comes first; its rate says how many accelerators to try. A peer that feeds less than half of one is not tried.

JSON: for each workload ``NAME_auXX, best_peer_NAME_auXX`` (numbers of accelerators, cold, raw), with ``_decoded``
decoded and with ``_warm`` warm; ``rows``: ``workload, kind, peer, title, layout, epoch, accelerators, utilisation``
(number → share)``, samples_s`` (without computing)``, fed`` (that rate ÷ one accelerator's)``, fault, error``;
``note, latency_ms, first_byte_ms, server, workloads``.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.bucket import far_away
from benchmarks.command import program
from benchmarks.figures import four_digits
from benchmarks.harness import CommandError
from benchmarks.peers.bucket import BUCKET
from benchmarks.peers.catalog import FULL as PEERS_LOAD
from benchmarks.peers.catalog import OURS, PEERS, Cell, Peer, find
from benchmarks.peers.figures import check
from benchmarks.peers.job import Outcome
from benchmarks.peers.measuring import Measuring
from benchmarks.peers.processes import run_job
from benchmarks.photos import PhotoFolder, make_photos, pad_photos
from concurrent_loader.storage.testing import LocalS3, local_s3

NOTE = "unofficial, not MLPerf results"
_DEADLINE_S = 300.0
_HOPELESS = 0.5  # of one accelerator


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of MLPerf Storage, and how much of it is read."""

    name: str
    batch_size: int
    sample_bytes: int
    computation_s: float  # of a batch
    utilisation: float  # least share that counts
    num_samples: int  # of the dataset here

    @property
    def samples_s(self) -> float:
        """Samples per second of one busy accelerator."""
        return self.batch_size / self.computation_s


WORKLOADS = (
    Workload("resnet50_h100", 400, 114_660, 0.224, 0.90, 12_000),
    Workload("retinanet_b200", 24, 322_957, 0.04755, 0.85, 4_800),
    Workload("unet3d_h100", 7, 146_600_628, 0.323, 0.90, 21),
    Workload("tiny", 4, 50_000, 0.02, 0.90, 32),  # of no use but to see that the program runs
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    workloads: str = "resnet50_h100,retinanet_b200"  # unet3d takes 3.2 GB/s an accelerator: too much for two cores
    peers: str = ",".join(peer.name for peer in PEERS if peer.place != "local")
    kinds: str = "raw,decoded"
    num_rounds: int = 3  # for each number of accelerators
    latency_ms: int = 30
    most: int = 64  # accelerators
    limit_s: float = 25.0  # when an epoch is cut short
    resident: bool = True


FULL, QUICK = Load(), Load("tiny", num_rounds=1, latency_ms=5, most=1, limit_s=10.0, resident=False)


def largest(utilisation: Callable[[int], float], least: float, guess: int, most: int) -> tuple[int, dict[int, float]]:
    """Returns the largest number of accelerators that are busy enough, and the utilisation of each number tried.

    Goes up from the guess by one, up to the most, and halves the way down. More accelerators are never busier.
    """
    found: dict[int, float] = {}
    busy, idle = 0, most + 1  # the largest number known to be busy enough, the smallest known not to be
    number = min(max(1, guess), most)
    while busy + 1 < idle:
        found[number] = utilisation(number)
        if found[number] >= least:
            busy = number
        else:
            idle = number
        number = busy + 1 if idle > most else (busy + idle) // 2
    return busy, found


class Accelerators(Measuring):
    """One run of one workload, with one kind of batches."""

    def __init__(
        self, workload: Workload, kind: str, load: Load, peers: Sequence[Peer], data: Path, console: Console
    ) -> None:
        size = replace(
            PEERS_LOAD, latencies_ms=(load.latency_ms,), batch_size=workload.batch_size, limit_s=load.limit_s,
            objects_limit_s=load.limit_s, resident=load.resident,
        )  # fmt: skip
        super().__init__(size, peers, data, console)
        self._workload, self._accelerated = workload, load
        self._cell = Cell(kind, load.latency_ms, size.workers[0])

    def _photos_of(self, kind: str, photos: PhotoFolder) -> PhotoFolder:
        return pad_photos(photos, count=self._workload.num_samples, num_bytes=self._workload.sample_bytes)

    def rows(self, photos: PhotoFolder) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Measures all peers; returns the rows, and what the server was."""
        shutil.rmtree(self._run, ignore_errors=True)
        self._data.mkdir(parents=True, exist_ok=True)
        self._make_environments()
        with local_s3(data_dir=self._run / "s3") as server:
            server.make_bucket(BUCKET)
            self._prepare(server, self._cell.kind, photos)
            with far_away(server, self._cell.latency_ms) as (far, first_byte_ms):
                found = [self._row(peer, epoch, far) for peer in self._peers for epoch in peer.epochs]
        shutil.rmtree(self._run, ignore_errors=True)
        return found, {"server": server.kind, "first_byte_ms": first_byte_ms}

    def _row(self, peer: Peer, epoch: str, far: LocalS3) -> dict[str, Any]:
        row: dict[str, Any] = {"workload": self._workload.name, "kind": self._cell.kind, "epoch": epoch, "error": None}
        row |= {"peer": peer.name, "title": peer.title, "layout": peer.layout, "accelerators": None}
        faults: set[str] = set()
        try:
            if (peer.name, self._cell.kind) in self._errors:
                raise CommandError(self._errors[peer.name, self._cell.kind])
            row |= self._measured(peer, epoch, far, faults)
        except (CommandError, OSError) as error:
            if peer.name == OURS:
                raise
            row["error"] = self._said(error)
        return row | {"fault": "; ".join(sorted(faults)) or None}

    def _measured(self, peer: Peer, epoch: str, far: LocalS3, faults: set[str]) -> dict[str, Any]:
        def run(accelerators: int) -> Outcome:
            self._tell(f"{self._workload.name}, {peer.name}, {epoch}: {accelerators or 'no'} accelerators")
            self._put_at_hand(peer, self._cell.kind)
            with self._cache(peer) as cache:
                if epoch == "warm":
                    assert cache is not None
                    self._fill(peer, self._cell, far, cache)
                job = structs.replace(
                    self._job(peer, self._cell, far), cache_dir=cache, limit_s=self._accelerated.limit_s,
                    accelerators=accelerators, computation_s=self._workload.computation_s,
                )  # fmt: skip
                outcome, _ = run_job(self._pythons[peer.name], job, deadline_s=_DEADLINE_S)
            if fault := check(outcome, self._images[self._cell.kind].digests, decoded=self._cell.kind == "decoded"):
                faults.add(fault)
            return outcome

        def utilisation(accelerators: int) -> float:
            return median(run(accelerators).utilisation or 0.0 for _ in range(self._accelerated.num_rounds))

        alone = run(0)
        fed = alone.samples_s / self._workload.samples_s
        least = self._workload.utilisation
        most, guess = self._accelerated.most, math.floor(fed / least)
        number, tried = largest(utilisation, least, guess, most) if fed >= _HOPELESS else (0, {})
        shares = {str(each): round(share, 4) for each, share in sorted(tried.items())}
        rates = {"samples_s": four_digits(alone.samples_s), "fed": four_digits(fed)}
        return {"accelerators": number, "utilisation": shares, **rates}


def headline(workloads: Collection[Workload], rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Returns the figures by workload; None where nobody was measured."""
    figures = {}
    for workload, kind, epoch in product(workloads, FULL.kinds.split(","), ("cold", "warm")):
        where = (workload.name, kind, epoch)
        measured = [row for row in rows if (row["workload"], row["kind"], row["epoch"]) == where]
        numbers = {row["peer"]: row["accelerators"] for row in measured if row["accelerators"] is not None}
        more = "_decoded" * (kind == "decoded") + "_warm" * (epoch == "warm")
        key = f"{workload.name}_au{round(100 * workload.utilisation)}{more}"
        figures[key] = numbers.get(OURS)
        others = [number for peer, number in numbers.items() if not find(peer).is_ours]
        figures[f"best_peer_{key}"] = max(others, default=None)
    return figures


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures all workloads."""
    data, peers = Path(".demo"), [find(name) for name in load.peers.split(",")]
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    by_name = {one.name: one for one in WORKLOADS}
    workloads = [by_name[name] for name in load.workloads.split(",")]
    for workload, kind in product(workloads, load.kinds.split(",")):
        photos = make_photos(data / "peers", count=min(workload.num_samples, 100))
        found, facts = Accelerators(workload, kind, load, peers, data, console).rows(photos)
        rows += found
    facts |= {"note": NOTE, "latency_ms": load.latency_ms, "rounds": load.num_rounds}
    named = dict.fromkeys([by_name[name] for name in FULL.workloads.split(",")] + workloads)
    return {**headline(named, rows), "rows": rows, **facts, "workloads": [asdict(each) for each in workloads]}


main = program(
    "accelerators", __doc__, run_benchmark, FULL, QUICK, workloads=[one.name for one in WORKLOADS],
    peers=FULL.peers.split(","), kinds=FULL.kinds.split(","),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
