"""The side that a comparison is about: shards in a bucket through `ConcurrentDataLoader`, at the loader's defaults.

It has the same images, decoder, augmentation and batch size as the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Request
from benchmarks.side import Minibatch
from benchmarks.training import augmentation
from concurrent_loader import ConcurrentDataLoader, ShardDataset


class ShardBatches:
    """One epoch of shards through the loader."""

    def __init__(self, request: Request) -> None:
        decoded = request.step != "raw"
        augment = augmentation()

        def transform(sample: dict[str, Any]) -> dict[str, Any]:
            return {**sample, "image": augment(sample["image"])}

        self._dataset = ShardDataset(
            request.location,
            columns=("image", "label"),
            storage_options=request.storage_options,
            cache_dir=request.cache_dir,
            client=request.client,
        )
        self._loader = ConcurrentDataLoader(
            self._dataset,
            batch_size=request.batch_size,
            shuffle=True,
            seed=request.seed,
            decode={"image": "rgb"} if decoded else None,
            transform=transform if decoded else None,
        )
        self.client: str | None = type(self._dataset.reader.engine.store).__name__
        self.dataset_bytes = self._dataset.manifest.num_bytes

    def __iter__(self) -> Iterator[Minibatch]:
        for batch in self._loader:
            yield Minibatch(batch["image"], batch["label"])

    def fetched(self) -> tuple[int, int]:
        """Returns requests and body bytes so far, those for opening included."""
        stats = self._dataset.fetch_stats
        return stats.num_gets, stats.num_bytes

    def close(self) -> None:
        """Ends the loader's threads and connections."""
        self._dataset.close()
