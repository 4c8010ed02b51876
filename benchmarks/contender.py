"""The side that the comparison is about: unified shards in a bucket through `ConcurrentDataLoader`.

The same images, decoder, augmentation and batch size as the baselines; everything else is the loader's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.minibatch import Minibatch
from benchmarks.training import augmentation
from concurrent_loader import ConcurrentDataLoader, ShardDataset


class ShardBatches:
    """One epoch of shards through the loader."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str],
        *,
        decoded: bool,
        batch_size: int,
        seed: int,
        cache_dir: str | None,
        client: str,
    ) -> None:
        self._dataset = ShardDataset(
            url, columns=("image", "label"), storage_options=options, cache_dir=cache_dir, client=client
        )
        self._augment = augmentation()
        self._loader = ConcurrentDataLoader(
            self._dataset,
            batch_size=batch_size,
            shuffle=True,
            seed=seed,
            decode={"image": "rgb"} if decoded else None,
            transform=self._transform if decoded else None,
        )

    def __iter__(self) -> Iterator[Minibatch]:
        for batch in self._loader:
            yield Minibatch(batch["image"], batch["label"])

    @property
    def client(self) -> str:
        """The store class that the URL was opened with."""
        return type(self._dataset.reader.engine.store).__name__

    @property
    def dataset_bytes(self) -> int:
        """Size of all shards."""
        return self._dataset.manifest.num_bytes

    def fetched(self) -> tuple[int, int]:
        """Requests and body bytes so far, those for opening included."""
        stats = self._dataset.fetch_stats
        return stats.num_gets, stats.num_bytes

    def close(self) -> None:
        """Ends the loader's threads and connections."""
        self._dataset.close()

    def _transform(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": self._augment(sample["image"])}
