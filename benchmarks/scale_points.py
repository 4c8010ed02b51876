"""The measurements of `benchmarks.scale`, each of them made in a process of its own: how long, how much, how often."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time

import torch

from benchmarks.memory import peak_rss_bytes, start_peak_rss
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.order.epoch_plan import EpochPlan

_BATCH = 256
_NUM_SEEKS = 32  # batches planned one by one, all over the epoch
_NUM_SHUFFLED = 256  # batches planned in a row

Spread = list[float]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, once a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> Spread:
        return [min(self.values), max(self.values)]


@dataclass(frozen=True, slots=True)
class OpenPoint:
    """A dataset of so many samples, of which only the manifest is there."""

    open_s: Times  # ``ShardDataset(url)``: list, fetch the manifest, check it
    loader_s: Times  # ``ConcurrentDataLoader(dataset, …)``
    shuffle_s: Times  # the first batch of an epoch that was not planned before: shards are permuted here
    batch_s: Times  # A batch of those in a row after it, planned
    seek_s: Times  # A batch anywhere in that epoch, planned by itself
    resume_s: Times  # ``load_state_dict`` of a state in the middle of an epoch, and its first batch planned
    schedule_s: Times  # when each shard is used, for the cache to evict by
    # resident memory that opening and planning once added, at its highest. Opening again and again in one process says
    # more of the allocator than of the dataset
    rss_added_mb: float


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """A dataset on the local drive, read by the loader, no cache."""

    open_s: Times  # ``ShardDataset(url)``
    first_batch_s: Times  # from asking for it, dataset and loader being there
    epoch_s: Times  # from the same moment to the last batch
    cpu_s: Times  # processor time of the epoch
    gets: int  # of one epoch
    rss_added_mb: float  # resident memory added, at its highest


def measure_opening(url: str, num_rounds: int) -> OpenPoint:
    """Opens, shuffles, seeks and resumes; once for all that is loaded and made only once, then timed."""
    rss_before = start_peak_rss()
    _open_once(url, epoch=0)
    rss_added_mb = _added_mb(rss_before)
    found = [_open_once(url, epoch=number) for number in range(1, num_rounds + 1)]
    times = {name: Times(tuple(timed[name] for timed in found)) for name in found[0]}
    return OpenPoint(rss_added_mb=rss_added_mb, **times)


def _open_once(url: str, epoch: int) -> dict[str, float]:
    gc.collect()
    timed: dict[str, float] = {}

    def clock(name: str, run: Callable[[], object], *, times: int = 1) -> None:
        began = perf_counter()
        run()
        timed[name] = (perf_counter() - began) / times

    began = perf_counter()
    with ShardDataset(url) as dataset:
        timed["open_s"] = perf_counter() - began
        began = perf_counter()
        loader = ConcurrentDataLoader(dataset, _BATCH, shuffle=True, drop_last=True)
        timed["loader_s"] = perf_counter() - began
        plan = loader._plan(epoch)
        assert isinstance(plan, EpochPlan)
        batches = plan.batches(0)
        clock("shuffle_s", lambda: next(batches))
        num_more = min(_NUM_SHUFFLED, plan.max_steps - 1)
        clock("batch_s", lambda: [next(batches) for _ in range(num_more)], times=num_more)
        places = [plan.max_steps * part // _NUM_SEEKS for part in range(_NUM_SEEKS)]
        clock("seek_s", lambda: [plan.batch(step) for step in places], times=_NUM_SEEKS)
        state = {**loader.state_dict(), "epoch": epoch + 1, "step": plan.max_steps // 2}
        resumed = ConcurrentDataLoader(dataset, _BATCH, shuffle=True, drop_last=True)

        def resume() -> None:
            resumed.load_state_dict(state)
            first = next(resumed._plan(resumed.epoch).batches(state["step"]))
            assert (first.step, len(first)) == (state["step"], _BATCH)

        clock("resume_s", resume)
        clock("schedule_s", lambda: plan.shard_usage(1))
    return timed


def measure_reading(url: str, batch_size: int, num_rounds: int) -> ReadPoint:
    """Reads an epoch that is not counted, then one a round; makes sure that each brings every sample once."""
    rss_before = start_peak_rss()
    found = [_read_once(url, batch_size, seed=number) for number in range(num_rounds + 1)][1:]
    names = ("open_s", "first_batch_s", "epoch_s", "cpu_s")
    times = {name: Times(tuple(timed[name] for timed in found)) for name in names}
    return ReadPoint(gets=int(found[-1]["gets"]), rss_added_mb=_added_mb(rss_before), **times)


def _read_once(url: str, batch_size: int, seed: int) -> dict[str, float]:
    gc.collect()
    began = perf_counter()
    # By fsspec, as a store far away would be read: with requests to be counted, not in place.
    with ShardDataset(url, client="fsspec") as dataset:
        open_s = perf_counter() - began
        loader = ConcurrentDataLoader(dataset, batch_size, shuffle=True, seed=seed)
        gets_before, cpu_before, began = dataset.fetch_stats.num_gets, process_time(), perf_counter()
        numbers, first_batch_s = [], 0.0
        for batch in loader:
            first_batch_s = first_batch_s or perf_counter() - began
            numbers.append(batch["number"])
        epoch_s, cpu_s = perf_counter() - began, process_time() - cpu_before
        if not torch.equal(torch.cat(numbers).sort().values, torch.arange(len(dataset))):
            raise AssertionError("an epoch did not bring every sample once")
        gets = dataset.fetch_stats.num_gets - gets_before
    return {"open_s": open_s, "first_batch_s": first_batch_s, "epoch_s": epoch_s, "cpu_s": cpu_s, "gets": gets}


def _added_mb(rss_before: int) -> float:
    return max(0, peak_rss_bytes() - rss_before) / 1e6
