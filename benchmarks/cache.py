"""How much of a dataset that is larger than its cache comes from the cache: by next use, by LRU, and at best.

    python -m benchmarks.cache [--json FILE] [--quick]

The dataset lies on the local drive: shards and bytes count, not seconds. The real loader reads three epochs through the
real cache, shuffled differently each time, for every budget and policy:

- ``ours``: the cache evicts by the plan, as it always does;
- ``lru``: the same cache without the plan, so that it evicts the least recently used file;
- ``optimum``: Belady's offline rule (evict what is used last, do not keep what is used later still), simulated on the
  same sequence of shards and sizes. No cache of that size does better.

``hit_rate`` is over the second and third epochs, because the first has only misses. ``bytes_ratio`` is the bytes
fetched in all three over three times the bytes of the dataset. Window and prefetch are 1 % of the dataset each.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.command import bar, program
from benchmarks.synthetic import write_noise
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.cache import DiskShardCache, UseSchedule

BUDGETS = (0.10, 0.25, 0.50, 1.00)
POLICIES = ("ours", "lru", "optimum")


@dataclass(frozen=True, slots=True)
class Load:
    """What is read."""

    num_shards: int  # approximately
    samples_per_shard: int  # approximately
    sample_bytes: int
    num_epochs: int = 3
    batch_size: int = 32


FULL = Load(num_shards=400, samples_per_shard=16, sample_bytes=2048)
QUICK = Load(num_shards=40, samples_per_shard=4, sample_bytes=1200, batch_size=8)


class _UnscheduledCache(DiskShardCache):
    """Ignores the plan, and so evicts the least recently used file."""

    async def set_schedule(self, make_schedule: Callable[[], UseSchedule]) -> None:
        await asyncio.sleep(0)


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Reads with every budget and policy."""
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="cache-benchmark-") as folder,
        bar(console, "cache", len(BUDGETS) * len(POLICIES)) as progress,
    ):
        url = f"{folder}/data"
        num_samples, shard_bytes = (
            load.num_shards * load.samples_per_shard,
            load.samples_per_shard * (load.sample_bytes + 24),
        )
        write_noise(url, num_samples=num_samples, sample_bytes=load.sample_bytes, shard_bytes=shard_bytes)
        for budget, policy in product(BUDGETS, POLICIES):
            cache_dir = Path(folder) / f"{policy}-{budget}"
            rates = _simulated(load, url, budget) if policy == "optimum" else _read(load, url, cache_dir, budget)
            rows.append({"budget": budget, "policy": policy, "hit_rate": rates[0], "bytes_ratio": rates[1]})
            progress.advance()
    return {"rows": rows, "load": asdict(load)}


def _loader(load: Load, dataset: ShardDataset) -> ConcurrentDataLoader:
    return ConcurrentDataLoader(
        dataset, load.batch_size, shuffle=True, seed=7, num_threads=2, shuffle_window=max(1, len(dataset) // 100),
        prefetch_bytes=dataset.manifest.num_bytes // 100,
    )  # fmt: skip


def _read(load: Load, url: str, cache_dir: Path, budget: float) -> tuple[float, float]:
    """Returns hit rate and bytes ratio of the real loader."""
    kind = DiskShardCache if cache_dir.name.startswith("ours") else _UnscheduledCache
    with ShardDataset(url) as dataset:
        total_bytes = dataset.manifest.num_bytes
        cache = kind(dataset.reader.engine, cache_dir, budget_bytes=int(budget * total_bytes))
        dataset.reader.cache = cache
        loader = _loader(load, dataset)
        stats, before_bytes = [cache.stats], dataset.fetch_stats.num_bytes
        for _ in range(load.num_epochs):
            for _ in loader:
                pass
            stats.append(cache.stats)
        before, first, *_, last = stats
        fetched_bytes = dataset.fetch_stats.num_bytes - before_bytes
        assert first.num_hits == before.num_hits, "the first epoch began with a warm cache"
        num_hits, num_misses = last.num_hits - first.num_hits, last.num_misses - first.num_misses
        dataset.loop.run(cache.close())
    return num_hits / (num_hits + num_misses), fetched_bytes / (total_bytes * load.num_epochs)


def _simulated(load: Load, url: str, budget: float) -> tuple[float, float]:
    """Returns the same by Belady's rule, on the order in which the plan needs the shards."""
    with ShardDataset(url) as dataset:
        shards = dataset.manifest.shards
        loader = _loader(load, dataset)
        plans = [loader._plan(epoch) for epoch in range(load.num_epochs)]
        trace = [[shard for _, shard in plan.upcoming() if shard is not None] for plan in plans]
    sizes = [entry.size for entry in shards]
    hits = optimum(trace, sizes, budget_bytes=int(budget * sum(sizes)))
    later = [hit for epoch in hits[1:] for hit in epoch]
    uses = zip(chain.from_iterable(trace), chain.from_iterable(hits), strict=True)
    fetched_bytes = sum(sizes[shard] for shard, hit in uses if not hit)
    return sum(later) / len(later), fetched_bytes / (sum(sizes) * load.num_epochs)


def optimum(trace: Sequence[Sequence[int]], sizes: Sequence[int], *, budget_bytes: int) -> list[list[bool]]:
    """Tells which uses are hits in an offline cache that keeps what is used soonest, newcomers included.

    ``trace`` has the shards that are used, epoch by epoch. L. A. Belady, "A study of replacement algorithms for a
    virtual-storage computer", IBM Systems Journal 5(2), 1966; optimal for equal sizes.
    """
    flat = list(chain.from_iterable(trace))
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
    found = iter(hits)
    return [list(islice(found, len(row))) for row in trace]


main = program("cache", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
