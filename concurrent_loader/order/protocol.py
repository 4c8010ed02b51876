"""Defines the order of an epoch for the rest of the package: `Plan`, and `BatchIndex` for one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["BatchIndex", "Pieces", "Plan"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The parts of documents that are packed into rows of tokens, row by row.

    Attributes:
        row: (n,) int64, row of the batch that each part belongs to, ascending.
        start: (n,) int64, first token of each part in its document.
        stop: (n,) int64, token after the last one; a document ends with its end-of-text token, if there is one.
        num_rows: Number of rows; those without a token are padding.
    """

    row: Indices
    start: Indices
    stop: Indices
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class BatchIndex:
    """The samples of one rank's part of one batch, in order.

    Attributes:
        step: Number of the batch in its epoch, from 0.
        shard: (n,) int64, the samples' units: positions of shards in the manifest, or numbers of raw objects.
        row: (n,) int64, rows of the samples in their units.
        sample: (n,) int64, numbers of the samples in the dataset.
        num_padded: Number of padding samples at the end.
        source: (n,) int64, number of each sample's dataset in a mixture; None without a mixture.
        pieces: Parts of the samples that are packed into rows; None for whole samples.
    """

    step: int
    shard: Indices
    row: Indices
    sample: Indices
    num_padded: int = 0
    source: Indices | None = None
    pieces: Pieces | None = None

    def __len__(self) -> int:
        return len(self.sample)


class Plan(Protocol):
    """The order of one epoch. `concurrent_loader.order.epoch_plan.EpochPlan` documents the members."""

    @property
    def epoch(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def max_steps(self) -> int: ...

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int: ...
    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]: ...
    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]: ...
    def last_use_step(self, unit: int, rank: int = 0, world_size: int = 1) -> int: ...
    def max_samples_used(self, unit: int, rank: int = 0, world_size: int = 1) -> int: ...
