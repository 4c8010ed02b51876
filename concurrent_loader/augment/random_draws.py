"""Draws random numbers for samples: a hash of (seed, epoch, sample, draw number).

The numbers do not depend on the order of calls or on the rank. No state has to be saved to resume, and the image of a
sample does not depend on other samples. Hash: the finalizer of splitmix64 (Steele, Lea, Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014) over a counter, started from a 64-bit key.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.shuffle import derive_key, hash_counters

__all__ = ["MAX_DRAWS", "beta_quantile", "uniforms"]

MAX_DRAWS = 64  # per sample


def uniforms(
    seed: int, epoch: int, samples: npt.NDArray[np.int64], num_draws: int, *, use: str = "augment"
) -> npt.NDArray[np.float64]:
    """Draws uniform random numbers for samples.

    Args:
        seed: Seed of the loader.
        epoch: Epoch number, from 0.
        samples: Sample numbers in the dataset, (n,) int64, below 2**57.
        num_draws: Random numbers per sample, from 1 to 64. A larger number leaves the first ones unchanged.
        use: Purpose of the numbers, at most 8 ASCII letters. Each purpose has different numbers. Default ``"augment"``.

    Returns:
        (n, num_draws) float64, uniform in [0, 1).

    Raises:
        ValueError: ``num_draws`` is out of range.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.augment import uniforms
        >>> uniforms(seed=0, epoch=0, samples=np.array([5, 7]), num_draws=3).shape
        (2, 3)
    """
    if not 1 <= num_draws <= MAX_DRAWS:
        raise ValueError(f"num_draws must be from 1 to {MAX_DRAWS}, got {num_draws}")
    counters: npt.NDArray[np.uint64] = np.arange(num_draws, dtype=np.uint64) + (
        samples.astype(np.uint64) * np.uint64(MAX_DRAWS)
    ).reshape(-1, 1)
    hashes = hash_counters(derive_key(use, seed, epoch), counters)
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


_POINTS = 8193


def beta_quantile(shares: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """Returns quantiles of Beta(alpha, alpha).

    One uniform number makes one result, so that the random numbers of other draws do not shift. The distribution
    function is a table, integrated once by Simpson's rule over the lower half; the upper half mirrors it. Below alpha =
    1 the density has a pole at 0, so the integral is over u**alpha instead of u, which has none.

    Args:
        shares: Uniform numbers in [0, 1).
        alpha: Parameter of the distribution, positive.

    Returns:
        Numbers in [0, 1], in the shape of ``shares``.
    """
    area, places, power = _table(alpha)
    lower = np.minimum(shares, 1 - shares)
    found = np.interp(lower, area, places) ** (1 / power)
    return np.where(shares < 0.5, found, 1 - found)


@lru_cache(maxsize=16)
def _table(alpha: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    power = min(alpha, 1.0)
    # Twice as fine as the table, to include the midpoint of each interval.
    fine = np.linspace(0, 0.5**power, 2 * _POINTS - 1)
    at = fine ** (1 / power)
    # For alpha > 1 both factors are combined and scaled to 1 at the center, because each of them alone underflows.
    density = (1 - at) ** (alpha - 1) if alpha <= 1 else (4 * at * (1 - at)) ** (alpha - 1)
    pieces = density[:-2:2] + 4 * density[1::2] + density[2::2]
    area = np.concatenate([[0.0], np.cumsum(pieces)])
    return area / area[-1] / 2, fine[::2], power
