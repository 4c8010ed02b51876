"""Plans an epoch whose batches are rows of packed documents.

Rows take the place that samples have in `EpochPlan`: the epoch's rows are divided into groups, each of which gives the
same number of rows to every batch. The rows of a group follow each other in the stream of documents, so a rank reads
few units, and all ranks have the same number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.last_batch import LastBatch
from concurrent_loader.order.listed_plan import ListedPlan
from concurrent_loader.order.packing import Rows
from concurrent_loader.order.partition import Partition
from concurrent_loader.order.protocol import BatchIndex, Pieces
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["PackedPlan"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedPlan(ListedPlan):
    """The order of one epoch as rows of packed documents. ``global_batch_size`` counts rows.

    A rank without a row in a small last batch gets a row of padding, with no token of a padding sample.

    Args:
        draw: Function from an epoch to its rows.
        last_batch: Treatment of the rows after the last full batch: ``"drop"``, ``"short"``, or ``"pad"`` with rows of
            padding.
    """

    draw: Callable[[int], Rows]
    last_batch: LastBatch

    @property
    def num_samples(self) -> int:
        """Number of documents, empty ones included."""
        return int(self.bounds[-1])

    @property
    def num_groups(self) -> int:
        """Number of groups in effect: gcd of ``groups`` and the global batch size; 1 if there are fewer rows."""
        return self._partition.num_groups

    @property
    def max_steps(self) -> int:
        part = self._partition
        return part.num_full_batches + (1 if part.remainder and self.last_batch != "drop" else 0)

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        if self.global_batch_size % world_size:
            raise ConfigurationError(
                "the number of ranks must divide the global batch size", expected=self.global_batch_size, got=world_size
            )
        return super().num_steps(rank, world_size)

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> BatchIndex:
        """Returns the pieces of documents in a rank's rows of one batch."""
        self._check_step(step, rank, world_size)
        part, per_rank = self._partition, self.global_batch_size // world_size
        is_last = step == part.num_full_batches
        slices = part.last_slices(rank, world_size) if is_last else part.full_slices(rank, world_size)
        shift = 0 if is_last else step * part.per_group
        rows = np.array(
            [
                part.group_starts[each.group] + shift + place
                for each in slices
                for place in range(each.start, each.stop)
            ],
            np.int64,
        )
        is_padding = not len(rows)
        documents, position, start, stop = self._rows.pieces(rows if len(rows) else np.zeros(1, np.int64))
        if is_padding:
            documents, position, start, stop = documents[:1], position[:1], start[:1], start[:1]
        units = self._units_of(documents)
        pieces = Pieces(position, start, stop, per_rank if self.last_batch == "pad" else max(1, len(rows)))
        return BatchIndex(step, units, documents - self.bounds[units], documents, int(is_padding), pieces=pieces)

    # -- the list --------------------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> Rows:
        return self.draw(self.epoch)

    @cached_property
    def _partition(self) -> Partition:
        num_groups = math.gcd(self.global_batch_size, self.groups)
        return Partition(len(self._rows), self.global_batch_size, num_groups if len(self._rows) >= num_groups else 1)

    @cached_property
    def _places(self) -> tuple[Indices, Indices, Indices]:
        """Rows of all steps, (r,) each: number, step, and place in the global batch."""
        part, row = self._partition, np.arange(len(self._rows))
        group = np.searchsorted(np.asarray(part.group_starts), row, side="right") - 1
        step, place = np.divmod(row - np.asarray(part.group_starts)[group], part.per_group)
        place += np.where(step < part.num_full_batches, group * part.per_group, self._last_starts[group])
        done = step < self.max_steps
        return row[done], step[done], place[done]

    @property
    def _last_starts(self) -> Indices:
        """(num_groups,): place of each group's first row in the last, partial batch."""
        part = self._partition
        return np.arange(part.num_groups) * part.remainder // part.num_groups

    @cached_property
    def _pieces(self) -> tuple[Indices, Indices]:
        """Pieces of documents in all steps, (n,) each: unit, and position of the row in `_places`."""
        documents, position, _, _ = self._rows.pieces(self._places[0])
        return self._units_of(documents), position

    @property
    def _all_units(self) -> Indices:
        return self._pieces[0]

    @property
    def _steps(self) -> Indices:
        return self._places[1][self._pieces[1]]

    def _ranks(self, world_size: int) -> Indices:
        _, step, place = self._places
        size = np.where(step < self._partition.num_full_batches, self.global_batch_size, self._partition.remainder)
        # The rank r with r * n // R <= i < (r + 1) * n // R.
        ranks: Indices = (((place + 1) * world_size - 1) // size)[self._pieces[1]]
        return ranks
