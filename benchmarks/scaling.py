"""How batches a second grow with threads and with worker processes, by what the transform is made of.

    python -m benchmarks.scaling [--json FILE] [--quick]

JPEG photographs in shards on the local drive, in a warm cache: only the processors count. Two transforms:

- ``native``: decoding and a random box scaled to 128 × 128 by torchvision, which release the GIL;
- ``python``: the same, and a loop in pure Python over a part of the pixels, which holds it.

Each measurement has a process of its own, sides alternating over the rounds. It runs three epochs with persistent
workers: one to start and warm everything, one that is timed, one in which memory is looked at. ``samples_s`` and
``cpu_s_per_1000`` are medians of the timed epochs, ``peak_rss_mb`` is of all processes together, what they share
counted once (PSS). ``start_s`` is from the first request for a batch to that batch, starts of processes included.
``ratios`` are medians over the rounds of each side's rate to that of one thread in the same round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
from rich.console import Console

from benchmarks.console import bar, ends_with_one_line
from benchmarks.machine import cpu_of_tree_s, describe_machine, num_cores, versions
from benchmarks.output import present
from benchmarks.photos import make_photos
from benchmarks.training import augmentation
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

TRANSFORMS = ("native", "python")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int  # in the dataset, and so samples an epoch
    num_rounds: int  # of all sides
    batch_size: int = 32  # of the loader
    loop_length: int = 20_000  # turns of the loop in pure Python, a sample
    most: int = 1024  # sides with more threads or processes are left out
    transforms: tuple[str, ...] = TRANSFORMS  # some of `TRANSFORMS`


FULL = Load(num_photos=960, num_rounds=5)
# Each side is a process of its own, which takes seconds to start; "python" does what "native" does, and more.
QUICK = Load(num_photos=16, num_rounds=1, batch_size=4, loop_length=100, most=1, transforms=("python",))


@dataclass(frozen=True, slots=True)
class Side:
    """One way to load."""

    mode: str  # ``"threads"`` or ``"processes"``
    n: int  # how many
    transform: str  # one of `TRANSFORMS`


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one side; see the module."""

    mode: str
    n: int
    transform: str
    samples_s: float
    cpu_s_per_1000: float
    peak_rss_mb: float
    start_s: float


class Native:
    """Scales a random box; nothing of it is Python."""

    def __init__(self) -> None:
        self._augment = augmentation()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": self._augment(sample["image"]), "label": sample["label"]}


class Python(Native):
    """Then walks over pixels one by one, as nobody should."""

    def __init__(self, loop_length: int) -> None:
        super().__init__()
        self._loop_length = loop_length

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        made = super().__call__(sample)
        total = 0
        for value in bytes(made["image"].flatten()[: self._loop_length].numpy()):
            total = (total * 31 + value) & 0xFFFFFFFF
        return {**made, "sum": total}


def sides(load: Load) -> list[Side]:
    """All of them, in the order of a round."""
    threads, processes = {1, 2, 4}, {1, 2, num_cores()}
    ways = [("threads", n) for n in sorted(threads)] + [("processes", n) for n in sorted(processes)]
    return [Side(mode, n, transform) for transform in load.transforms for mode, n in ways if n <= load.most]


def measure(load: Load, folder: Path, *, on_side: Callable[[], object] = lambda: None) -> list[list[Row]]:
    """Makes the dataset and measures every side in every round."""
    url = str(folder / "shards")
    photos = make_photos(folder, count=load.num_photos)
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, shard_size="4MiB") as writer:
        for number, path in enumerate(photos.paths()):
            writer.write({"image": path.read_bytes(), "label": number})
    rounds = []
    for number in range(load.num_rounds):
        rows = []
        for side in sides(load) if number % 2 == 0 else reversed(sides(load)):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                rows.append(process.submit(run_side, side, load, url, str(folder / "cache")).result())
            on_side()
        rounds.append(rows)
    return rounds


def run_side(side: Side, load: Load, url: str, cache_dir: str) -> Row:
    """Measures one side, in the process that it is called in."""
    with ShardDataset(url, cache_dir=cache_dir) as dataset:
        loader = ConcurrentDataLoader(
            dataset,
            batch_size=load.batch_size,
            shuffle=True,
            decode={"image": "rgb"},
            transform=Native() if side.transform == "native" else Python(load.loop_length),
            num_threads=side.n,
            num_workers=side.n if side.mode == "processes" else 0,
            persistent_workers=side.mode == "processes",
            multiprocessing_context="forkserver" if side.mode == "processes" else None,
        )
        for _ in loader:
            continue
        start_s = loader.stats.first_batch_s
        cpu_before, began = cpu_of_tree_s(), perf_counter()
        num_samples = sum(len(batch["label"]) for batch in loader)
        elapsed_s, cpu_s = perf_counter() - began, cpu_of_tree_s() - cpu_before
        peak_bytes = max(_resident_bytes() for _ in loader)
    return Row(
        side.mode,
        side.n,
        side.transform,
        samples_s=num_samples / elapsed_s,
        cpu_s_per_1000=1000 * cpu_s / num_samples,
        peak_rss_mb=peak_bytes / 1e6,
        start_s=start_s,
    )


def _resident_bytes() -> int:
    """Of this process and all below it, what they share counted once."""
    here = psutil.Process()
    infos = [process.memory_full_info() for process in (here, *here.children(recursive=True))]
    return sum(int(getattr(info, "pss", info.rss)) for info in infos)


def medians(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """One row a side, of the medians over the rounds."""
    return [
        Row(
            side.mode,
            side.n,
            side.transform,
            **{
                name: median(getattr(_of(side, rows), name) for rows in rounds)
                for name in ("samples_s", "cpu_s_per_1000", "peak_rss_mb", "start_s")
            },
        )
        for side in _sides_of(rounds)
    ]


def ratios(rounds: Sequence[Sequence[Row]]) -> dict[str, float]:
    """``transform-mode-n`` → rate ÷ that of one thread with the same transform in the same round; medians."""
    found = {}
    for side in _sides_of(rounds):
        alone = Side("threads", 1, side.transform)
        found[f"{side.transform}-{side.mode}-{side.n}"] = median(
            _of(side, rows).samples_s / _of(alone, rows).samples_s for rows in rounds
        )
    return found


def _sides_of(rounds: Sequence[Sequence[Row]]) -> list[Side]:
    return [Side(row.mode, row.n, row.transform) for row in rounds[0]]


def _of(side: Side, rows: Sequence[Row]) -> Row:
    return next(row for row in rows if (row.mode, row.n, row.transform) == (side.mode, side.n, side.transform))


def _run(load: Load, file: Path | None) -> None:
    console = Console()
    machine = describe_machine()
    with (
        tempfile.TemporaryDirectory(prefix="scaling-benchmark-") as folder,
        bar(console, "scaling", load.num_rounds * len(sides(load))) as progress,
    ):
        rounds = measure(load, Path(folder), on_side=progress.advance)
    rows, found = medians(rounds), ratios(rounds)
    report = {
        "rows": [asdict(row) for row in rows],
        "ratios": found,
        "load": asdict(load),
        "machine": machine,
        "versions": versions(),
    }
    present("scaling", report, console, file)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a minute or so, to see that it runs; no figures to quote")
    options = parser.parse_args(arguments)
    return ends_with_one_line(lambda: _run(QUICK if options.quick else FULL, options.json))


if __name__ == "__main__":
    raise SystemExit(main())
