"""Translates between the samples that users see and the rows of the shards that hold them. No I/O."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["LiveRows"]

Indices = npt.NDArray[np.int64]


class LiveRows:
    """The places of the samples of a snapshot.

    Args:
        manifest: Snapshot.

    Attributes:
        first_samples: (num_shards + 1,) int64: number of each shard's first sample, then the number of samples. A shard
            without live rows has no samples.
        first_rows: (num_shards + 1,) int64: the same among all stored rows, deleted ones included.

    Thread-safety: Immutable.

    Example:
        >>> from concurrent_loader import ShardDataset
        >>> from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
        >>> with ShardDataset("photos") as dataset:
        ...     LiveRows(dataset.manifest).rows(0, [3, 4]).tolist()
        [3, 4]
    """

    __slots__ = ("_deleted", "first_rows", "first_samples")

    def __init__(self, manifest: Manifest) -> None:
        self._deleted = manifest.deleted
        counts = np.cumsum(manifest.table.num_samples, dtype=np.int64)
        self.first_rows: Indices = np.concatenate([np.zeros(1, np.int64), counts])
        self.first_samples = (
            self.first_rows if self._deleted is None else self._deleted.num_live_before(self.first_rows)
        )

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    @property
    def all_live(self) -> bool:
        """Whether every row is live, so that sample numbers are row numbers."""
        return self._deleted is None

    def stored(self, samples: npt.ArrayLike) -> Indices:
        """Returns the stored rows, counted over all shards, of samples in an array of any shape."""
        return np.asarray(samples, np.int64) if self._deleted is None else self._deleted.stored(samples)

    def rows(self, shard: npt.ArrayLike, samples: npt.ArrayLike) -> Indices:
        """Returns the rows of samples in their shards. The two arrays must broadcast."""
        return np.asarray(self.stored(samples) - self.first_rows[np.asarray(shard)])

    def rows_of_shard(self, shard: int) -> Indices:
        """Returns the rows of a shard's samples: (n,) int64."""
        return self.rows(shard, np.arange(self.first_samples[shard], self.first_samples[shard + 1]))

    def sample(self, shard: int, row: int) -> int:
        """Returns the sample number of a live row of a shard."""
        stored = int(self.first_rows[shard]) + row
        return stored if self._deleted is None else int(self._deleted.num_live_before(stored))
