"""Computes when an epoch uses each unit, for a cache that plans its evictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.partition import Partition

__all__ = ["UnitUsage", "compute_unit_usage"]

Indices = npt.NDArray[np.int64]
Steps = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class UnitUsage:
    """First and last use of every unit in one epoch, by any rank.

    Attributes:
        first_step: (num_units,) float64, expected step of each unit's first use. Sorting by it gives the order of
            first use, except for random differences within a window. Infinity for a unit that is never used.
        last_step: (num_units,) float64, upper bound of the step of each unit's last use, at most two windows late.
            -1 for a unit that is never used.
        shared: (num_units,) bool, whether several ranks use the unit.
    """

    first_step: Steps
    last_step: Steps
    shared: npt.NDArray[np.bool_]


def compute_unit_usage(
    order: Indices, ends: Indices, lengths: Indices, partition: Partition, *, window: int, world_size: int
) -> UnitUsage:
    """Computes the usage of all units. 100,000 units take a few milliseconds.

    The expected first use: item ``i`` has the sort key ``i + u * window`` (see `concurrent_loader.order.shuffle`). The
    smallest of the ``m`` keys of a unit that begins at ``i`` lies at ``i + window / (m + 1)`` on average. On average
    ``k - window / 2`` items come before a key ``k``; fewer at both ends of the group, where the window is cut off.

    Args:
        order: (num_units,) int64, unit in each slot of the epoch's row.
        ends: (num_units,) int64, end of each slot, in samples.
        lengths: (num_units,) int64, number of samples in each unit.
        partition: Division of the row into groups and batches.
        window: Shuffle window of each group, in samples.
        world_size: Number of ranks.
    """
    num_units = len(order)
    first = np.full(num_units, np.inf)
    last = np.full(num_units, -1.0)
    lowest_rank = np.full(num_units, world_size)
    highest_rank = np.full(num_units, -1)
    starts = ends - lengths[order]
    for group in range(partition.num_groups):
        offset, stop = partition.group_starts[group], partition.group_starts[group + 1]
        size = stop - offset
        slots = slice(int(np.searchsorted(ends, offset, side="right")), int(np.searchsorted(starts, stop)))
        low = np.maximum(starts[slots] - offset, 0)
        num = np.minimum(ends[slots] - offset, size) - low
        units = order[slots][num > 0]
        low, num = low[num > 0], num[num > 0]
        if window < size:
            position = _expected_position(low + window / (num + 1), size, window)
            bound = np.minimum(low + num - 1 + window - 1, size - 1)
        else:  # a uniform permutation
            position, bound = size / (num + 1), np.full(len(units), size - 1)
        first[units] = np.minimum(first[units], position / partition.per_group)
        last[units] = np.maximum(last[units], bound // partition.per_group)
        group_start = group * partition.per_group
        lowest_rank[units] = np.minimum(lowest_rank[units], group_start * world_size // partition.global_batch_size)
        highest = ((group_start + partition.per_group) * world_size - 1) // partition.global_batch_size
        highest_rank[units] = np.maximum(highest_rank[units], highest)
    return UnitUsage(first, last, highest_rank > lowest_rank)


def _expected_position(key: Steps, size: int, window: int) -> Steps:
    """Returns the average number of a group's items before a sort key."""
    opening = key**2 / (2 * window)
    closing = size - np.maximum(size + window - key, 0) ** 2 / (2 * window)
    return np.where(key < window, opening, np.where(key > size, closing, key - window / 2))
