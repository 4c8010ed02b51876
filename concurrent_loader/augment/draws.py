"""Random numbers that belong to a sample: the same whoever asks, in whatever order, on whatever rank.

A number is a hash of (seed, epoch, sample, which draw), so nothing has to be saved to go on where one was, and a
sample's picture does not depend on what was drawn for others. Hash: the finaliser of splitmix64 (Steele, Lea, Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014) over a counter, started from a 64-bit key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from concurrent_loader.shuffle import derive_key, hash_counters

__all__ = ["MAX_DRAWS", "uniforms"]

MAX_DRAWS = 64  # of one sample


def uniforms(
    seed: int, epoch: int, samples: npt.NDArray[np.int64], num_draws: int, *, use: str = "augment"
) -> npt.NDArray[np.float64]:
    """Draws numbers for some samples.

    Args:
        seed: Of the loader.
        epoch: From 0.
        samples: (n,) int64, numbers of samples in the data set, below 2**57.
        num_draws: Numbers for each, at most 64; more of them leave the first ones as they are.
        use: What they are for, in at most 8 ASCII letters; different uses have different numbers.

    Returns:
        (n, num_draws) float64, uniform in [0, 1).
    """
    if not 1 <= num_draws <= MAX_DRAWS:
        raise ValueError(f"num_draws must lie in 1 … {MAX_DRAWS}, got {num_draws}")
    counters: npt.NDArray[np.uint64] = np.arange(num_draws, dtype=np.uint64) + (
        samples.astype(np.uint64) * np.uint64(MAX_DRAWS)
    ).reshape(-1, 1)
    hashes = hash_counters(derive_key(use, seed, epoch), counters)
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
