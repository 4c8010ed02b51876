"""A batch's samples, dealt out to decode threads: who reads which rows of which shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.batch_memory import BatchMemory
from concurrent_loader.plan import BatchIndex
from concurrent_loader.source import OpenUnit

__all__ = ["Slice", "cut"]

_MIN_SLICE = 8  # samples: below this a thread hop costs more than it gains


@dataclass(frozen=True)
class Slice:
    """A thread's share of a batch.

    Attributes:
        positions: (n,) int64, where the samples stand in the batch.
        shards: The open shards, one for each run of samples.
        units: Their numbers, as the plan counts them.
        rows: For each of them, (m,) int64 rows in the shard; together n.
        samples: (n,) int64, the samples' numbers in the data set.
        step: Number of the batch in its epoch.
        epoch: The epoch.
        memory: Of the batch, where pictures of one size are written; None: each gets memory of its own.
    """

    positions: npt.NDArray[np.int64]
    shards: tuple[OpenUnit, ...]
    units: tuple[int, ...]
    rows: tuple[npt.NDArray[np.int64], ...]
    samples: npt.NDArray[np.int64]
    step: int = 0
    epoch: int = 0
    memory: BatchMemory | None = None

    def keys(self) -> list[str]:
        """Of the shard of each sample."""
        return [shard.key for shard, rows in zip(self.shards, self.rows, strict=True) for _ in range(len(rows))]

    def facts(self, place: int) -> dict[str, Any]:
        """Says, for an error, which sample stands at a place of this slice."""
        run = int(np.searchsorted(np.cumsum([len(rows) for rows in self.rows]), place, side="right"))
        return {"sample": int(self.samples[place]), "key": self.shards[run].key}


def cut(
    index: BatchIndex,
    shards: Mapping[int, OpenUnit],
    *,
    num_threads: int,
    epoch: int = 0,
    memory: BatchMemory | None = None,
) -> list[Slice]:
    """Deals a batch out to threads, so that each reads few shards, each shard in ascending order of rows."""
    order = np.lexsort((index.row, index.shard))
    num_slices = max(1, min(num_threads, len(order) // _MIN_SLICE))
    slices = []
    for positions in np.array_split(order, num_slices):
        shard_of = index.shard[positions]
        borders = np.flatnonzero(np.diff(shard_of)) + 1
        rows = tuple(np.split(index.row[positions], borders))
        firsts = [0, *borders.tolist()] if len(positions) else []
        units = tuple(int(shard_of[first]) for first in firsts)
        open_shards = tuple(shards[unit] for unit in units)
        samples = index.sample[positions]
        slices.append(Slice(positions, open_shards, units, rows[: len(units)], samples, index.step, epoch, memory))
    return slices
