"""torch's own DataLoader around what a peer gives: the settings that serve it best here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.peers.images import collate
from benchmarks.peers.messages import Job


class TorchLoader:
    """One epoch of a torch dataset."""

    def __init__(
        self,
        dataset: Dataset[Any],
        job: Job,
        *,
        collate_fn: Any = collate,
    ) -> None:
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=job.batch_size,
            shuffle=None if isinstance(dataset, IterableDataset) else True,
            generator=torch.Generator().manual_seed(job.seed),
            num_workers=job.num_workers,
            prefetch_factor=4 if job.num_workers else None,
            collate_fn=collate_fn,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> None:
        """Has none: an interrupted epoch is begun again."""

    def close(self) -> None:
        """Workers end with the iterator."""
        del self._loader
