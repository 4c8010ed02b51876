"""Which part of an epoch belongs to which group, batch and rank: integers only, below `plan`.

An epoch is one row of samples. The row is cut into groups, each a contiguous run; every full global batch takes the
same number of samples from each group and lists them *group-major*; ranks take equal contiguous slices of that list. So
the global batch is the same for any number of ranks, and a rank meets few of the groups, hence few of the shards.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Piece", "Split"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The places ``start`` to ``stop - 1`` of one group's own order."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class Split:
    """How an epoch of ``num_samples`` is divided.

    Attributes:
        num_samples: Of the epoch.
        global_batch_size: Samples of a full batch, all ranks together.
        num_groups: Divides ``global_batch_size``.
        per_group: Samples that each group gives to a full batch.
        num_full: Number of full batches.
        remainder: Samples after the last full batch.
        group_starts: num_groups + 1 places in the epoch's row; group g owns [group_starts[g], group_starts[g + 1]).
    """

    num_samples: int
    global_batch_size: int
    num_groups: int
    per_group: int = field(init=False)
    num_full: int = field(init=False)
    remainder: int = field(init=False)
    group_starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        num_full, remainder = divmod(self.num_samples, self.global_batch_size)
        per_group = self.global_batch_size // self.num_groups
        derived = {
            "per_group": per_group,
            "num_full": num_full,
            "remainder": remainder,
            "group_starts": tuple(
                g * num_full * per_group + g * remainder // self.num_groups for g in range(self.num_groups + 1)
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def group_size(self, group: int) -> int:
        """Samples in a group; two groups differ by one at most."""
        return self.group_starts[group + 1] - self.group_starts[group]

    def groups_over(self, start: int, stop: int) -> range:
        """Groups that own any of the places ``start`` to ``stop - 1`` of the row."""
        if start >= stop:
            return range(0)
        return range(bisect_right(self.group_starts, start) - 1, bisect_right(self.group_starts, stop - 1))

    def groups_of(self, rank: int, world_size: int) -> range:
        """Groups that a rank takes samples from; in the last batch it meets no others."""
        start, stop = self._slice(self.global_batch_size, rank, world_size)
        return range(start // self.per_group, math.ceil(stop / self.per_group))

    def full(self, rank: int, world_size: int) -> list[Piece]:
        """A rank's part of the first full batch; of batch ``b`` it is the same, ``b * per_group`` places further on."""
        bounds = [g * self.per_group for g in range(self.num_groups + 1)]
        return list(_cut(bounds, *self._slice(self.global_batch_size, rank, world_size)))

    def last(self, rank: int, world_size: int) -> list[Piece]:
        """A rank's part of what is left after the last full batch; possibly nothing."""
        bounds = [g * self.remainder // self.num_groups for g in range(self.num_groups + 1)]
        done = self.num_full * self.per_group
        return [
            Piece(piece.group, done + piece.start, done + piece.stop)
            for piece in _cut(bounds, *self._slice(self.remainder, rank, world_size))
        ]

    def padding(self, rank: int, world_size: int) -> list[Piece]:
        """Places that fill a rank's part of the last batch up; modulo the group's size, so a small group goes round."""
        bounds = [g * self.per_group - g * self.remainder // self.num_groups for g in range(self.num_groups + 1)]
        full_start, full_stop = self._slice(self.global_batch_size, rank, world_size)
        last_start, last_stop = self._slice(self.remainder, rank, world_size)
        return list(_cut(bounds, full_start - last_start, full_stop - last_stop))

    def num_last(self, rank: int, world_size: int) -> int:
        """Samples of the last, partial batch that a rank gets."""
        start, stop = self._slice(self.remainder, rank, world_size)
        return stop - start

    @staticmethod
    def _slice(length: int, rank: int, world_size: int) -> tuple[int, int]:
        return rank * length // world_size, (rank + 1) * length // world_size


def _cut(bounds: Sequence[int], start: int, stop: int) -> Iterator[Piece]:
    """Cuts [start, stop) of a group-major list, in which group g has [bounds[g], bounds[g + 1]), into groups."""
    for group, (lower, upper) in enumerate(pairwise(bounds)):
        if max(lower, start) < min(upper, stop):
            yield Piece(group, max(lower, start) - lower, min(upper, stop) - lower)
