"""The measurements of `benchmarks.scale`, each made in a process of its own: how long, how much, how often."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.machine import peak_rss_bytes, start_peak_rss
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.options import parse_window
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.manifest import Manifest

_BATCH = 256
PREFIX_REQUESTS_S = 5_500  # GETs per second and prefix that S3 serves at least, before it splits the prefix
_NUM_SEEKS = 32  # batches planned one by one, all over the epoch
_NUM_SHUFFLED = 256  # batches planned in a row


class Point(NamedTuple):
    """What was measured of one dataset."""

    seconds: dict[str, list[float]]  # what was done → seconds, once per round
    rss_added_mb: float  # resident memory added, at its highest
    gets: int = 0  # of one epoch


def measure_opening(url: str, num_rounds: int) -> Point:
    """Opens, shuffles, seeks and resumes a dataset of which only the manifest is there.

    - ``open_s``: ``ShardDataset(url)`` lists, fetches the manifest and checks it;
    - ``loader_s``: ``ConcurrentDataLoader(dataset, …)``;
    - ``shuffle_s``: plans the first batch of an epoch, which permutes the shards;
    - ``batch_s``: plans a batch of those in a row after it;
    - ``seek_s``: plans a batch anywhere in that epoch by itself;
    - ``resume_s``: ``load_state_dict`` of a state in the middle of an epoch, and plans its first batch;
    - ``schedule_s``: when each shard is used, for the cache to evict by.

    The first round is not timed; ``rss_added_mb`` is of this round, because opening again and again in one process
    measures the allocator.
    """
    rss_before = start_peak_rss()
    _open_once(url, epoch=0)
    rss_added_mb = _added_mb(rss_before)
    return Point(_collected([_open_once(url, epoch=number) for number in range(1, num_rounds + 1)]), rss_added_mb)


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
        clock("schedule_s", lambda: plan.unit_usage(1))
    return timed


def measure_reading(url: str, batch_size: int, num_rounds: int) -> Point:
    """Reads a dataset on the local drive without a cache: one epoch that is not counted, then one per round.

    ``first_batch_s`` and ``epoch_s`` count from the request for the first batch, ``cpu_s`` is of the epoch.
    """
    rss_before = start_peak_rss()
    found = [_read_once(url, batch_size, seed=number) for number in range(num_rounds + 1)][1:]
    gets = int(found[-1].pop("gets"))
    return Point(_collected(found), _added_mb(rss_before), gets)


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
            raise AssertionError("an epoch did not deliver every sample once")
        gets = dataset.fetch_stats.num_gets - gets_before
    return {"open_s": open_s, "first_batch_s": first_batch_s, "epoch_s": epoch_s, "cpu_s": cpu_s, "gets": gets}


def _collected(rounds: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [timed[name] for timed in rounds] for name in rounds[-1]}


def _added_mb(rss_before: int) -> float:
    return max(0, peak_rss_bytes() - rss_before) / 1e6


def simulate_nodes(
    manifest: Manifest, nodes: int, *, global_batch_size: int, node_samples_s: float, groups: int | None
) -> dict[str, float]:
    """Counts what each node's part of an epoch needs; each node has a cache that its ranks share, empty at first.

    A node is one rank here: the ranks of a node are neighbours, and together take what one rank in their place would.
    Without ``groups`` their number is the default.
    """
    plan = EpochPlan(
        samples_per_unit=[entry.num_samples for entry in manifest.shards],
        global_batch_size=global_batch_size,
        groups=groups,
        window=parse_window("128MiB", manifest.num_bytes / manifest.num_samples),
        last_batch="drop",
    )
    sizes = np.array([entry.size for entry in manifest.shards], np.int64)
    chunks = -(-sizes // CHUNK_BYTES)
    step_s = global_batch_size / (nodes * node_samples_s)
    gets, fetched_bytes, by_second = 0, [], np.zeros(int(plan.max_steps * step_s) + 1)
    for node in range(nodes):
        steps, shards = np.array(list(plan.units_in_order(0, node, nodes)), np.int64).T
        gets += int(chunks[shards].sum())
        fetched_bytes.append(int(sizes[shards].sum()))
        by_second += np.bincount((steps * step_s).astype(np.int64), chunks[shards], len(by_second))
    mean_bytes = sum(fetched_bytes) / nodes
    epoch_s = plan.max_steps * step_s
    requests_s = gets / epoch_s
    return {
        "nodes": nodes,
        "groups": plan.num_groups,
        "gets": gets,  # of all nodes together; one for each started 8 MiB of a shard
        "bytes": sum(fetched_bytes),
        "bytes_ratio": sum(fetched_bytes) / manifest.num_bytes,  # 1 is each shard once
        "shared_shards": float(plan.unit_usage(nodes).shared.mean()),  # share that several nodes need
        "most_over_mean": max(fetched_bytes) / mean_bytes,  # bytes of the node that fetches most
        "least_over_mean": min(fetched_bytes) / mean_bytes,
        "epoch_s": epoch_s,  # at the assumed pace of the nodes
        "requests_s": requests_s,  # GETs per second to the prefix ``shards/``, over the epoch
        "busiest_requests_s": float(by_second.max()),  # if each shard is fetched when it is first needed
        "limit_share": requests_s / PREFIX_REQUESTS_S,
        "objects_limit_share": nodes * node_samples_s / PREFIX_REQUESTS_S,  # with one object and GET per sample
    }
