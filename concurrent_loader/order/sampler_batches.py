"""Makes the batches of an epoch from the numbers that a sampler of the user's own lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.batching import Batches
from concurrent_loader.order.last_batch import LastBatch
from concurrent_loader.order.remembering import Remembering
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["SamplerBatches"]

Indices = npt.NDArray[np.int64]


class SamplerBatches(Remembering):
    """Batches of a sampler, or of a batch sampler, in the order in which it lists them.

    Args:
        read: Function of seed and epoch that lists the sampler: sample numbers, or lists of them.
    """

    def __init__(self, read: Callable[[int, int], Sequence[Any]]) -> None:
        super().__init__()
        self._read = read

    def batches(
        self, num_samples: int, *, seed: int, epoch: int, global_batch_size: int, last_batch: LastBatch
    ) -> Batches:
        """Returns the batches of an epoch. Lists of a batch sampler are global batches, whatever their sizes.

        Args:
            num_samples: Number of samples in the dataset.
            seed: Seed of the loader.
            epoch: Number of the epoch.
            global_batch_size: Number of samples that are a batch, for a sampler of single numbers.
            last_batch: Treatment of its last, partial batch.

        Raises:
            ConfigurationError: The sampler lists something else than numbers or lists of numbers.
            IndexError: A sample does not exist.
        """
        listed = self._read(seed, epoch)
        if listed and isinstance(listed[0], Sequence | np.ndarray):
            rows = [_numbers(each) for each in listed if len(each)]
            samples = np.concatenate(rows) if rows else _numbers([])
            sizes = np.array([len(row) for row in rows], np.int64)
            real = sizes
        else:
            samples = _numbers(listed)
            num_full, rest = divmod(len(samples), global_batch_size)
            samples = samples[: num_full * global_batch_size] if last_batch == "drop" else samples
            rest = 0 if last_batch == "drop" else rest
            real = np.array([global_batch_size] * num_full + [rest] * bool(rest), np.int64)
            sizes = np.full(len(real), global_batch_size, np.int64) if last_batch == "pad" else real
        if len(samples) and not (samples.min() >= 0 and samples.max() < num_samples):
            strange = int(samples.min() if samples.min() < 0 else samples.max())
            raise IndexError(f"sample {strange} of the sampler does not exist in a dataset of {num_samples} samples")
        return Batches(samples, np.cumsum(real), sizes)

    def fingerprint(self, found: Batches) -> int:
        """63-bit hash of the batches of an epoch."""
        hashed = xxhash.xxh3_64(np.ascontiguousarray(found.samples, "<i8").tobytes())
        hashed.update(np.ascontiguousarray(found.ends, "<i8").tobytes())
        return hashed.intdigest() >> 1


def _numbers(listed: Sequence[Any]) -> Indices:
    array = np.asarray(listed if len(listed) else np.empty(0, np.int64))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigurationError(
            "a sampler must list sample numbers, or lists of sample numbers", got=f"{array.dtype} {array.shape}"
        )
    numbers: Indices = array.astype(np.int64)
    return numbers
