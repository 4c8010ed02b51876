"""How much of a dataset that is larger than its cache comes from the cache: by next use, by LRU, and at best.

    python -m benchmarks.cache [--json FILE] [--quick]

The dataset lies on the local drive; what counts here are shards and bytes, not seconds. Three epochs are read by the
real loader through the real cache, shuffled again each time, for every budget and policy:

- ``ours``: the cache evicts by the plan, as it always does;
- ``lru``: the same cache, but the plan is kept from it, so that the least recently used file goes;
- ``optimum``: Belady's offline rule (evict what is used last, do not keep what is used later still), simulated on the
  same sequence of shards and sizes. No cache of that size does better.

``hit_rate`` is over the second and third epochs, since in the first all are misses; ``bytes_ratio`` is the bytes
fetched in all three over three times the bytes of the dataset. Window and prefetch are small parts of the dataset, as
they are of one that needs a cache: 1 % each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.console import bar, ends_with_one_line
from benchmarks.machine import describe_machine, versions
from benchmarks.output import present
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache import DiskShardCache, UseSchedule

BUDGETS = (0.10, 0.25, 0.50, 1.00)
POLICIES = ("ours", "lru", "optimum")


@dataclass(frozen=True, slots=True)
class Load:
    """What is read."""

    num_shards: int  # about so many
    samples_per_shard: int  # about so many
    sample_bytes: int  # of each
    num_epochs: int = 3  # read one after the other
    batch_size: int = 32  # of the loader


FULL = Load(num_shards=400, samples_per_shard=16, sample_bytes=2048)
QUICK = Load(num_shards=40, samples_per_shard=4, sample_bytes=1200, batch_size=8)


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome for one budget, as a part of the dataset, and one policy."""

    budget: float
    policy: str
    hit_rate: float
    bytes_ratio: float


class _UnscheduledCache(DiskShardCache):
    """Does not listen to the plan; without it the least recently used file is evicted."""

    async def set_schedule(self, make_schedule: Callable[[], UseSchedule]) -> None:
        await asyncio.sleep(0)


def measure(load: Load, folder: Path, *, on_round: Callable[[], object] = lambda: None) -> list[Row]:
    """Writes the dataset and reads it for every budget and policy."""
    url = str(folder / "data")
    _write(load, url)
    rows = []
    for budget in BUDGETS:
        for policy in POLICIES:
            if policy == "optimum":
                rows.append(_simulated(load, url, budget))
            else:
                rows.append(_read(load, url, folder / f"{policy}-{budget}", budget, policy))
            on_round()
    return rows


def _write(load: Load, url: str) -> None:
    draw = np.random.default_rng(0)
    with ShardWriter(
        url, columns={"data": "bytes"}, shard_size=load.samples_per_shard * (load.sample_bytes + 16)
    ) as writer:
        for _ in range(load.num_shards * load.samples_per_shard):
            writer.write({"data": draw.bytes(load.sample_bytes)})


def _loader(load: Load, dataset: ShardDataset) -> ConcurrentDataLoader:
    return ConcurrentDataLoader(
        dataset,
        batch_size=load.batch_size,
        shuffle=True,
        seed=7,
        num_threads=2,
        shuffle_window=max(1, len(dataset) // 100),
        prefetch_bytes=dataset.manifest.num_bytes // 100,
    )


def _read(load: Load, url: str, cache_dir: Path, budget: float, policy: str) -> Row:
    """Three epochs by the real loader."""
    with ShardDataset(url) as dataset:
        total_bytes = dataset.manifest.num_bytes
        kind = DiskShardCache if policy == "ours" else _UnscheduledCache
        cache = kind(dataset.reader.engine, cache_dir, budget_bytes=int(budget * total_bytes))
        dataset.reader.cache = cache
        loader = _loader(load, dataset)
        before = first = cache.stats
        before_bytes = dataset.fetch_stats.num_bytes
        for epoch in range(load.num_epochs):
            for _ in loader:
                pass
            if epoch == 0:
                first = cache.stats
        last = cache.stats
        fetched_bytes = dataset.fetch_stats.num_bytes - before_bytes
        assert first.num_hits == before.num_hits, "the first epoch began with a warm cache"
        num_hits, num_misses = last.num_hits - first.num_hits, last.num_misses - first.num_misses
        dataset.loop.run(cache.close())
    return Row(budget, policy, num_hits / (num_hits + num_misses), fetched_bytes / (total_bytes * load.num_epochs))


def _simulated(load: Load, url: str, budget: float) -> Row:
    """The same epochs by Belady's rule, on the order in which the plan needs the shards."""
    with ShardDataset(url) as dataset:
        shards = dataset.manifest.shards
        loader = _loader(load, dataset)
        trace = [_order(loader, epoch) for epoch in range(load.num_epochs)]
    sizes = [entry.size for entry in shards]
    hits = optimum(trace, sizes, budget_bytes=int(budget * sum(sizes)))
    later = [hit for epoch in hits[1:] for hit in epoch]
    uses = [shard for row in trace for shard in row]
    missed = [not hit for epoch in hits for hit in epoch]
    fetched_bytes = sum(sizes[shard] for shard, miss in zip(uses, missed, strict=True) if miss)
    return Row(budget, "optimum", sum(later) / len(later), fetched_bytes / (sum(sizes) * load.num_epochs))


def _order(loader: ConcurrentDataLoader, epoch: int) -> list[int]:
    return [shard for _, shard in loader._plan(epoch).upcoming() if shard is not None]


def optimum(trace: Sequence[Sequence[int]], sizes: Sequence[int], *, budget_bytes: int) -> list[list[bool]]:
    """Says which uses an offline cache hits that keeps what is used soonest, newcomers included."""
    flat = [shard for row in trace for shard in row]
    following = [len(flat)] * len(flat)
    seen: dict[int, int] = {}
    for at in range(len(flat) - 1, -1, -1):
        following[at] = seen.get(flat[at], len(flat) + flat[at])
        seen[flat[at]] = at
    resident: dict[int, int] = {}
    used_bytes, hits = 0, []
    for at, shard in enumerate(flat):
        hits.append(shard in resident)
        if shard not in resident:
            used_bytes += sizes[shard]
        resident[shard] = following[at]
        while used_bytes > budget_bytes:
            victim = max(resident, key=resident.__getitem__)
            del resident[victim]
            used_bytes -= sizes[victim]
    ends = np.cumsum([len(row) for row in trace]).tolist()
    return [hits[end - len(row) : end] for row, end in zip(trace, ends, strict=True)]


def _run(load: Load, file: Path | None) -> None:
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="cache-benchmark-") as folder,
        bar(console, "cache", len(BUDGETS) * len(POLICIES)) as progress,
    ):
        rows = measure(load, Path(folder), on_round=progress.advance)
    report = {
        "rows": [asdict(row) for row in rows],
        "load": asdict(load),
        "machine": describe_machine(),
        "versions": versions(),
    }
    present("cache", report, console, file)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a tiny dataset, to see that it works")
    options = parser.parse_args(arguments)
    return ends_with_one_line(lambda: _run(QUICK if options.quick else FULL, options.json))


if __name__ == "__main__":
    raise SystemExit(main())
