"""How well the shuffle mixes: ``python -m benchmarks.shuffle_quality [--json FILE] [--quick]``. Arithmetic only.

A dataset that is sorted by class is the worst case. For windows from one shard to the whole dataset this measures

- how far the classes of a batch are from those of the dataset: total variation distance, mean over the epoch, and of
  the first eight batches, while the window is still opening. Independent draws have a distance, too: that of a full
  permutation;
- what neighbours do: how often two samples of a batch come from one shard, and how often the next sample of the
  dataset is in the same batch, both as multiples of what a full permutation has;

and the same for a dataset whose samples were written in random order, as ``concurrent-loader ingest`` does. It also
counts which share of the shards each of several nodes touches in an epoch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.command import bar, program
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.options import DEFAULT_SHUFFLE_WINDOW
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.sizes import parse_size

_OPENING = 8  # batches while the window opens
_NODES = (1, 2, 4, 8)
_DEFAULT = parse_size(DEFAULT_SHUFFLE_WINDOW) // CHUNK_BYTES  # shards of the default size
Batches = list[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Options:
    """What is shuffled."""

    num_shards: int = 1400
    per_shard: int = 144  # samples of 58 KB in a shard of the default size
    num_classes: int = 100
    batch_size: int = 256  # of all ranks together

    @property
    def num_samples(self) -> int:
        return self.num_shards * self.per_shard

    def plan(self, window: int) -> EpochPlan:
        """Returns the order of an epoch."""
        return EpochPlan(
            samples_per_unit=np.full(self.num_shards, self.per_shard, dtype=np.int64),
            global_batch_size=self.batch_size,
            window=window,
            last_batch="drop",
        )


QUICK = Options(num_shards=80, per_shard=20, num_classes=10, batch_size=64)


def windows(num_shards: int) -> list[int]:
    """Returns windows in shards: the default among powers of four, and all."""
    return [*sorted(size for size in {1, 4, 16, 64, 256, 1024, _DEFAULT} if size < num_shards), num_shards]


def run_benchmark(options: Options, console: Console) -> dict[str, Any]:
    """Measures all windows."""
    sizes = windows(options.num_shards)
    by_number = np.arange(options.num_samples) * options.num_classes // options.num_samples
    shuffled = np.random.default_rng(0).permutation(by_number)
    rows: list[dict[str, Any]] = []
    with bar(console, "Windows", len(sizes)) as progress:
        for size in sizes:
            batches = [index.sample for index in options.plan(size * options.per_shard).batches()]
            distances = class_distances(batches, by_number, options.num_classes)
            in_random_order = class_distances(batches, shuffled, options.num_classes)
            rows.append(
                {
                    "window_shards": size,
                    "default": size == _DEFAULT,
                    "sorted_distance": round(float(distances.mean()), 4),
                    "sorted_distance_first": round(float(distances[:_OPENING].mean()), 4),
                    "random_distance": round(float(in_random_order.mean()), 4),
                    "same_shard": _same_shard(batches, options.per_shard),
                    "next_in_batch": _next_in_batch(batches),
                }
            )
            progress.advance()
    permutation = rows[-1].copy()
    for row in rows:
        row |= {key: round(row[key] / permutation[key], 2) for key in ("same_shard", "next_in_batch")}
    return {
        "options": {**asdict(options), "num_samples": options.num_samples},
        "rows": rows,
        "share_of_shards": {str(nodes): _shares(options, nodes, _DEFAULT * options.per_shard) for nodes in _NODES},
    }


def class_distances(batches: Batches, classes: npt.NDArray[np.int64], num_classes: int) -> npt.NDArray[np.float64]:
    """(batches,): total variation distance of each batch's classes from the uniform distribution."""
    found = [np.bincount(classes[batch], minlength=num_classes) / len(batch) for batch in batches]
    distances: npt.NDArray[np.float64] = np.abs(np.array(found) - 1 / num_classes).sum(axis=1) / 2
    return distances


def _same_shard(batches: Batches, per_shard: int) -> float:
    """Returns the share of a batch's pairs that come from one shard."""
    counts = [np.bincount(batch // per_shard) for batch in batches]
    return float(np.mean([(each * (each - 1)).sum() / (each.sum() * (each.sum() - 1)) for each in counts]))


def _next_in_batch(batches: Batches) -> float:
    """Returns the share of samples whose successor in the dataset is in the same batch."""
    return float(np.mean([(np.diff(np.sort(batch)) == 1).sum() / len(batch) for batch in batches]))


def _shares(options: Options, nodes: int, window: int) -> dict[str, float]:
    """Returns the share of the shards that a node touches in an epoch: the largest, and all nodes' together."""
    plan = options.plan(window)
    touched = [len(list(plan.units_in_order(0, rank, nodes))) / options.num_shards for rank in range(nodes)]
    return {"largest": round(max(touched), 4), "together": round(sum(touched), 4)}


main = program("shuffle_quality", __doc__, run_benchmark, Options(), QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
