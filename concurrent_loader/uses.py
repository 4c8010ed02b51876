"""When an epoch uses each shard, all at once: what a cache needs to know of the plan. Arrays only, below `plan`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.split import Split

__all__ = ["ShardUses", "shard_uses"]

Indices = npt.NDArray[np.int64]
Steps = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ShardUses:
    """The uses of shards in one epoch, by any rank.

    Attributes:
        first_step: (num_shards,) float64, when each is needed first, as expected from the window: shards in this order
            are in the order of their first use, but for what chance does within a window. Infinity: never.
        last_step: (num_shards,) float64, after which no rank needs it; a bound, at most two windows late. -1: never.
        shared: (num_shards,) bool, whether several ranks need it.
    """

    first_step: Steps
    last_step: Steps
    shared: npt.NDArray[np.bool_]


def shard_uses(
    order: Indices, ends: Indices, lengths: Indices, split: Split, *, window: int, world_size: int
) -> ShardUses:
    """Computes the uses of all shards; 100,000 of them take some milliseconds.

    Args:
        order: (num_shards,) the shard in each slot of the epoch's row.
        ends: (num_shards,) where each slot ends, in samples.
        lengths: (num_shards,) samples of each shard.
        split: How the row is divided.
        window: Of each group, in samples.
        world_size: Number of ranks.

    The expectation: item ``i`` has the sort key ``i + u * window`` (see `concurrent_loader.shuffle`), and the smallest
    of the ``m`` keys of a shard that begins at ``i`` lies at ``i + window / (m + 1)``. Before a key ``k`` come, on
    average, ``k - window / 2`` items; fewer at either end of the group, where the window opens and closes.
    """
    num_shards = len(order)
    first = np.full(num_shards, np.inf)
    last = np.full(num_shards, -1.0)
    lowest_rank = np.full(num_shards, world_size)
    highest_rank = np.full(num_shards, -1)
    starts = ends - lengths[order]
    for group in range(split.num_groups):
        offset, stop = split.group_starts[group], split.group_starts[group + 1]
        size = stop - offset
        slots = slice(int(np.searchsorted(ends, offset, side="right")), int(np.searchsorted(starts, stop)))
        low = np.maximum(starts[slots] - offset, 0)
        num = np.minimum(ends[slots] - offset, size) - low
        shards = order[slots][num > 0]
        low, num = low[num > 0], num[num > 0]
        if window < size:
            position = _expected_position(low + window / (num + 1), size, window)
            bound = np.minimum(low + num - 1 + window - 1, size - 1)
        else:  # a uniform permutation
            position, bound = size / (num + 1), np.full(len(shards), size - 1)
        first[shards] = np.minimum(first[shards], position / split.per_group)
        last[shards] = np.maximum(last[shards], bound // split.per_group)
        group_start = group * split.per_group
        lowest_rank[shards] = np.minimum(lowest_rank[shards], group_start * world_size // split.global_batch_size)
        highest = ((group_start + split.per_group) * world_size - 1) // split.global_batch_size
        highest_rank[shards] = np.maximum(highest_rank[shards], highest)
    return ShardUses(first, last, highest_rank > lowest_rank)


def _expected_position(key: Steps, size: int, window: int) -> Steps:
    """Returns how many of a group's items come before a sort key, on average."""
    opening = key**2 / (2 * window)
    closing = size - np.maximum(size + window - key, 0) ** 2 / (2 * window)
    return np.where(key < window, opening, np.where(key > size, closing, key - window / 2))
