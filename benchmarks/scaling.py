"""How batches per second grow with threads and with worker processes, by what the transform is made of.

    python -m benchmarks.scaling [--json FILE] [--quick]

JPEG photographs in shards on the local drive, in a warm cache: only the processors count. Two transforms:

- ``native``: decoding and a random box scaled to 128 × 128 by torchvision, which release the GIL;
- ``python``: the same, and a loop in pure Python over a part of the pixels, which holds it.

Each measurement has a process of its own, sides alternating over the rounds. It runs three epochs with persistent
workers: one to start and warm everything, one that is timed, one in which memory is looked at. ``samples_s`` and
``cpu_s_per_1000`` are medians of the timed epochs. ``peak_rss_mb`` is of all processes together, what they share
counted once (PSS). ``start_s`` is from the first request for a batch to that batch, starts of processes included.
``ratios`` are medians over the rounds of each side's rate to that of one thread in the same round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
from rich.console import Console
from torch import Tensor

from benchmarks.command import program, rounds
from benchmarks.figures import medians
from benchmarks.fresh_process import in_fresh_process
from benchmarks.machine import cpu_of_tree_s, num_cores, resident_bytes
from benchmarks.photos import make_photos
from benchmarks.training import augmentation
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

Sample = dict[str, Any]
TRANSFORMS = ("native", "python")
_SIDE_S = 600.0  # a side that takes longer has hung


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int  # samples per epoch
    num_rounds: int
    batch_size: int = 32
    loop_length: int = 20_000  # turns of the loop in pure Python, per sample
    most: int = 1024  # sides with more threads or processes are left out
    transforms: tuple[str, ...] = TRANSFORMS


FULL = Load(num_photos=960, num_rounds=5)
# Each side is a process of its own, which takes seconds to start; "python" does what "native" does, and more.
QUICK = Load(num_photos=16, num_rounds=1, batch_size=4, loop_length=100, most=1, transforms=("python",))


@dataclass(frozen=True, slots=True)
class Side:
    """One way to load."""

    mode: str  # ``"threads"`` or ``"processes"``
    n: int
    transform: str  # one of `TRANSFORMS`


def native(augment: Callable[[Tensor], Tensor], sample: Sample) -> Sample:
    """Scales a random box in native code."""
    return {"image": augment(sample["image"]), "label": sample["label"]}


def python(scale: Callable[[Sample], Sample], loop_length: int, sample: Sample) -> Sample:
    """Does the same and then walks over pixels one by one."""
    made = scale(sample)
    total = 0
    for value in bytes(made["image"].flatten()[:loop_length].numpy()):
        total = (total * 31 + value) & 0xFFFFFFFF
    return {**made, "sum": total}


def sides(load: Load) -> list[Side]:
    """Returns all sides in the order of a round."""
    ways = [("threads", n) for n in (1, 2, 4)] + [("processes", n) for n in sorted({1, 2, num_cores()})]
    return [Side(mode, n, transform) for transform in load.transforms for mode, n in ways if n <= load.most]


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures every side in every round."""
    with tempfile.TemporaryDirectory(prefix="scaling-benchmark-") as folder:
        url, cache_dir = str(Path(folder) / "shards"), str(Path(folder) / "cache")
        photos = make_photos(Path(folder), count=load.num_photos)
        with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, shard_size="4MiB") as writer:
            for number, path in enumerate(photos.paths()):
                writer.write({"image": path.read_bytes(), "label": number})

        def turn(side: Side) -> dict[str, float]:
            return in_fresh_process(run_side, (side, load, url, cache_dir), what=str(side), timeout_s=_SIDE_S)

        found = rounds(console, "scaling", sides(load), load.num_rounds, turn)
    rows = [{**asdict(side), **medians(runs)} for side, runs in found.items()]
    return {"rows": rows, "ratios": ratios(found), "load": asdict(load)}


def run_side(side: Side, load: Load, url: str, cache_dir: str) -> dict[str, float]:
    """Measures one side, in the process that it is called in."""
    in_processes = side.mode == "processes"
    scale = partial(native, augmentation())
    transform = scale if side.transform == "native" else partial(python, scale, load.loop_length)
    with ShardDataset(url, cache_dir=cache_dir) as dataset:
        loader = ConcurrentDataLoader(
            dataset, load.batch_size, shuffle=True, decode={"image": "rgb"}, num_threads=side.n, transform=transform,
            num_workers=side.n if in_processes else 0, persistent_workers=in_processes,
            multiprocessing_context="forkserver" if in_processes else None,
        )  # fmt: skip
        for _ in loader:
            continue
        start_s = loader.stats.first_batch_s
        cpu_before, began = cpu_of_tree_s(), perf_counter()
        num_samples = sum(len(batch["label"]) for batch in loader)
        elapsed_s, cpu_s = perf_counter() - began, cpu_of_tree_s() - cpu_before
        here = psutil.Process()
        peak_bytes = max(resident_bytes([here, *here.children(recursive=True)]) for _ in loader)
    return {
        "samples_s": num_samples / elapsed_s,
        "cpu_s_per_1000": 1000 * cpu_s / num_samples,
        "peak_rss_mb": peak_bytes / 1e6,
        "start_s": start_s,
    }


def ratios(found: dict[Side, list[dict[str, float]]]) -> dict[str, float]:
    """Divides each side's rate by that of one thread with the same transform in the same round; medians."""
    made = {}
    for side, runs in found.items():
        pairs = zip(runs, found[Side("threads", 1, side.transform)], strict=True)
        shares = [one["samples_s"] / alone["samples_s"] for one, alone in pairs]
        made[f"{side.transform}-{side.mode}-{side.n}"] = median(shares)
    return made


main = program("scaling", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
