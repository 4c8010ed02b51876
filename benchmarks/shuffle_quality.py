"""How well the shuffle mixes: ``python -m benchmarks.shuffle_quality [--json FILE] [--quick]``. Arithmetic only.

A dataset that is sorted by class is the worst case. For windows from one shard to the whole set it says

- how far the classes of a batch are from those of the dataset: total variation distance, mean over the epoch, and of
  the first eight batches, while the window is still opening. Independent draws have a distance, too: that of a full
  permutation;
- what neighbours do: how often two samples of a batch come from one shard, and how often the next sample of the data
  set is in the same batch, both as multiples of what a full permutation has;

and the same for a dataset whose samples were written in random order, as ``concurrent-loader ingest`` does. It says,
too, which share of the shards each of several nodes touches in an epoch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.console import bar, ends_with_one_line
from benchmarks.machine import describe_machine, versions
from benchmarks.output import present
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.options import DEFAULT_SHUFFLE_WINDOW
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.sizes import parse_size

_OPENING = 8  # batches while the window opens
_NODES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Options:
    """What is shuffled."""

    num_shards: int = 1400  # of the dataset
    per_shard: int = 144  # of 58 KB in a shard of the default size
    num_classes: int = 100  # of the labels
    batch_size: int = 256  # all ranks together

    @property
    def num_samples(self) -> int:
        return self.num_shards * self.per_shard

    def plan(self, window: int) -> EpochPlan:
        """An epoch's order."""
        return EpochPlan(
            samples_per_shard=np.full(self.num_shards, self.per_shard, dtype=np.int64),
            global_batch_size=self.batch_size,
            window=window,
            last_batch="drop",
        )


QUICK = Options(num_shards=80, per_shard=20, num_classes=10, batch_size=64)


@dataclass(frozen=True, slots=True)
class Row:
    """One window."""

    window_shards: int  # its size in shards
    default: bool  # whether it is the default, for shards of the default size
    sorted_distance: float  # of a batch's classes from the dataset's, sorted by class; mean over the epoch
    sorted_distance_first: float  # of the first batches
    random_distance: float  # of data written in random order
    same_shard: float  # pairs of a batch that come from one shard, as a multiple of what a permutation has
    next_in_batch: float  # samples whose successor in the dataset is in the same batch, likewise


def windows(num_shards: int) -> list[int]:
    """Windows in shards: the default among powers of four, and all."""
    default = parse_size(DEFAULT_SHUFFLE_WINDOW) // CHUNK_BYTES  # a shard's default size
    powers = {1, 4, 16, 64, 256, 1024, default}
    return [*sorted(size for size in powers if size < num_shards), num_shards]


def run_benchmark(options: Options, console: Console) -> dict[str, object]:
    """Measures all windows."""
    default = parse_size(DEFAULT_SHUFFLE_WINDOW) // CHUNK_BYTES  # a shard's default size
    sizes = windows(options.num_shards)
    by_number = np.arange(options.num_samples) * options.num_classes // options.num_samples
    shuffled = np.random.default_rng(0).permutation(by_number)
    raw = []
    with bar(console, "Windows", len(sizes)) as progress:
        for size in sizes:
            batches = [index.sample for index in options.plan(size * options.per_shard).batches()]
            distances = class_distances(batches, by_number, options.num_classes)
            raw.append(
                (
                    size,
                    distances.mean(),
                    distances[:_OPENING].mean(),
                    class_distances(batches, shuffled, options.num_classes).mean(),
                    _same_shard(batches, options.per_shard),
                    _next_in_batch(batches),
                )
            )
            progress.advance()
    *_, same, following = raw[-1]
    rows = [
        Row(
            size, size == default, round(float(whole), 4), round(float(first), 4), round(float(random), 4),
            round(float(one / same), 2), round(float(after / following), 2),
        )
        for size, whole, first, random, one, after in raw
    ]  # fmt: skip
    return {
        "machine": describe_machine(),
        "versions": versions(),
        "options": {**asdict(options), "num_samples": options.num_samples},
        "rows": [asdict(row) for row in rows],
        "share_of_shards": {str(nodes): _shares(options, nodes, default * options.per_shard) for nodes in _NODES},
    }


def class_distances(
    batches: list[npt.NDArray[np.int64]], classes: npt.NDArray[np.int64], num_classes: int
) -> npt.NDArray[np.float64]:
    """(batches,): total variation distance of each batch's classes from the uniform distribution."""
    found = [np.bincount(classes[batch], minlength=num_classes) / len(batch) for batch in batches]
    distances: npt.NDArray[np.float64] = np.abs(np.array(found) - 1 / num_classes).sum(axis=1) / 2
    return distances


def _same_shard(batches: list[npt.NDArray[np.int64]], per_shard: int) -> float:
    """The share of a batch's pairs that come from one shard."""
    shares = []
    for batch in batches:
        counts = np.bincount(batch // per_shard)
        shares.append((counts * (counts - 1)).sum() / (len(batch) * (len(batch) - 1)))
    return float(np.mean(shares))


def _next_in_batch(batches: list[npt.NDArray[np.int64]]) -> float:
    """The share of samples whose successor in the dataset is in the same batch."""
    return float(np.mean([(np.diff(np.sort(batch)) == 1).sum() / len(batch) for batch in batches]))


def _shares(options: Options, nodes: int, window: int) -> dict[str, float]:
    """Which share of the shards a node touches in an epoch: the largest one, and all nodes' together."""
    plan = options.plan(window)
    touched = [len(list(plan.shards_in_order(0, rank, nodes))) / options.num_shards for rank in range(nodes)]
    return {"largest": round(max(touched), 4), "together": round(sum(touched), 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle_quality", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    for name, value in asdict(Options()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it works")
    parsed = vars(parser.parse_args(sys.argv[1:] if arguments is None else arguments))
    file = parsed.pop("json")
    if parsed.pop("quick"):
        parsed = asdict(QUICK)
    if min(parsed.values()) < 1:
        parser.error("all numbers are at least 1")

    def run() -> None:
        console = Console()
        figures = run_benchmark(Options(**parsed), console)
        present("shuffle_quality", figures, console, file)

    return ends_with_one_line(run)


if __name__ == "__main__":
    sys.exit(main())
