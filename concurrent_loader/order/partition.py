"""Partitions an epoch into groups, batches and ranks, with integers only.

An epoch is one row of samples, cut into groups of contiguous samples. Every full global batch takes the same number of
samples from each group, and lists them group by group. Ranks take equal contiguous slices of that list. So the global
batch is the same for any number of ranks, and a rank uses few groups and therefore few units.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["GroupSlice", "Partition"]


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """The positions ``start`` to ``stop - 1`` in the order of one group.

    Attributes:
        group: Number of the group.
        start: First position.
        stop: Position after the last one.
    """

    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class Partition:
    """The division of an epoch into groups and batches.

    Attributes:
        num_samples: Number of samples in the epoch.
        global_batch_size: Number of samples in a full batch, over all ranks.
        num_groups: Number of groups, a divisor of ``global_batch_size``.
        per_group: Number of samples that each group contributes to a full batch.
        num_full_batches: Number of full batches.
        remainder: Number of samples after the last full batch.
        group_starts: num_groups + 1 positions in the row; group g owns [group_starts[g], group_starts[g + 1]).
    """

    num_samples: int
    global_batch_size: int
    num_groups: int
    per_group: int = field(init=False)
    num_full_batches: int = field(init=False)
    remainder: int = field(init=False)
    group_starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        num_full_batches, remainder = divmod(self.num_samples, self.global_batch_size)
        per_group = self.global_batch_size // self.num_groups
        derived = {
            "per_group": per_group,
            "num_full_batches": num_full_batches,
            "remainder": remainder,
            "group_starts": tuple(
                g * num_full_batches * per_group + g * remainder // self.num_groups for g in range(self.num_groups + 1)
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def group_size(self, group: int) -> int:
        """Returns the number of samples in a group. Two groups differ by one at most."""
        return self.group_starts[group + 1] - self.group_starts[group]

    def groups_overlapping(self, start: int, stop: int) -> range:
        """Returns the groups that own any of the positions ``start`` to ``stop - 1`` of the row."""
        if start >= stop:
            return range(0)
        return range(bisect_right(self.group_starts, start) - 1, bisect_right(self.group_starts, stop - 1))

    def groups_of(self, rank: int, world_size: int) -> range:
        """Returns the groups that a rank takes samples from, in all batches including the last one."""
        start, stop = self._slice(self.global_batch_size, rank, world_size)
        return range(start // self.per_group, math.ceil(stop / self.per_group))

    def full_slices(self, rank: int, world_size: int) -> list[GroupSlice]:
        """Returns a rank's part of the first full batch. For batch ``b``, add ``b * per_group`` to all positions."""
        bounds = [g * self.per_group for g in range(self.num_groups + 1)]
        return list(_cut(bounds, *self._slice(self.global_batch_size, rank, world_size)))

    def last_slices(self, rank: int, world_size: int) -> list[GroupSlice]:
        """Returns a rank's part of the last, partial batch; possibly empty."""
        bounds = [g * self.remainder // self.num_groups for g in range(self.num_groups + 1)]
        done = self.num_full_batches * self.per_group
        return [
            GroupSlice(part.group, done + part.start, done + part.stop)
            for part in _cut(bounds, *self._slice(self.remainder, rank, world_size))
        ]

    def padding_slices(self, rank: int, world_size: int) -> list[GroupSlice]:
        """Returns the positions that pad a rank's part of the last batch, to be taken modulo the group's size."""
        bounds = [g * self.per_group - g * self.remainder // self.num_groups for g in range(self.num_groups + 1)]
        full_start, full_stop = self._slice(self.global_batch_size, rank, world_size)
        last_start, last_stop = self._slice(self.remainder, rank, world_size)
        return list(_cut(bounds, full_start - last_start, full_stop - last_stop))

    @staticmethod
    def _slice(length: int, rank: int, world_size: int) -> tuple[int, int]:
        return rank * length // world_size, (rank + 1) * length // world_size


def _cut(bounds: Sequence[int], start: int, stop: int) -> Iterator[GroupSlice]:
    """Cuts [start, stop) of a list into groups, where group g owns [bounds[g], bounds[g + 1])."""
    for group, (lower, upper) in enumerate(pairwise(bounds)):
        if max(lower, start) < min(upper, stop):
            yield GroupSlice(group, max(lower, start) - lower, min(upper, stop) - lower)
