"""The first batch after a resume, anywhere in an epoch: ``python -m benchmarks.resume [--json FILE] [--quick]``.

A dataset of two million tiny samples on the local drive. Loaders take turns: each gets a state as it would stand in a
checkpoint, at the beginning of an epoch or in its middle. Measured are the time to its first batch and what it had to
fetch. Nothing is replayed. Only the shuffle window makes a difference: it is still opening at an epoch's beginning, and
the first batch needs fewer shards there.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.command import program, rounds
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

_BATCH = 256
_SHARD_SIZE = "256KiB"


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_samples: int = 2_000_000
    num_rounds: int = 9


FULL, QUICK = Load(), Load(20_000, 1)


def write(url: str, num_samples: int) -> None:
    """Writes a dataset of tiny samples."""
    with ShardWriter(url, columns={"data": "bytes", "label": "int64"}, shard_size=_SHARD_SIZE) as writer:
        for number in range(num_samples):
            writer.write({"data": number.to_bytes(16, "little"), "label": number})


def first_batch(dataset: ShardDataset, sample: int) -> tuple[float, int, int]:
    """Resumes at a sample; returns the seconds to the first batch, the GETs until then, and the shards it needs."""
    loader = ConcurrentDataLoader(dataset, _BATCH, shuffle=True, prefetch_bytes=0, prefetch_batches=1)
    step = sample // _BATCH
    state = {**loader.state_dict(), "step": step}
    gets = dataset.fetch_stats.num_gets
    began = perf_counter()
    loader.load_state_dict(state)
    batches = iter(loader)
    batch = next(batches)
    seconds = perf_counter() - began
    gets = dataset.fetch_stats.num_gets - gets
    assert batch.step == step
    num_shards = len(set(next(loader._plan(0).batches(step)).shard.tolist()))
    batches.close()  # type: ignore[attr-defined]
    return seconds, gets, num_shards


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures the first batch at the beginning and in the middle of an epoch, in turns."""
    num_samples, places = load.num_samples, (0, load.num_samples // 2)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, num_samples)
        # By fsspec, as a store far away would be read: with requests to be counted, not in place.
        with ShardDataset(folder, client="fsspec") as dataset:
            first_batch(dataset, num_samples // 4)  # imports, and the first planning
            found = rounds(console, "Resuming", places, load.num_rounds, partial(first_batch, dataset))
    times = {place: [run[0] for run in runs] for place, runs in found.items()}
    rows = [
        {
            "sample": place,
            "first_batch_s": round(median(times[place]), 4),
            "spread_s": [round(min(times[place]), 4), round(max(times[place]), 4)],
            "gets": max(run[1] for run in runs),
            "shards": runs[0][2],
        }
        for place, runs in found.items()
    ]
    begin, middle = (median(times[place]) for place in places)
    return {"num_samples": num_samples, "rows": rows, "ratio": round(middle / begin, 3)}


main = program("resume", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
