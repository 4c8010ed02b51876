"""From a uniform number to one of a symmetrical beta distribution: how far MixUp and CutMix mix."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["beta_quantile"]

_POINTS = 8193


def beta_quantile(shares: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """The quantiles of Beta(alpha, alpha): one number drawn makes one number, so what others draw does not move.

    The distribution function is a table, integrated once by Simpson's rule over the lower half (the upper one mirrors
    it). Below alpha = 1 the density has a pole at 0; the integral over u**alpha in place of u has none.

    Args:
        shares: In [0, 1).
        alpha: Of both sides, positive.

    Returns:
        Of the same shape, in [0, 1].
    """
    area, places, power = _table(alpha)
    lower = np.minimum(shares, 1 - shares)
    found = np.interp(lower, area, places) ** (1 / power)
    return np.where(shares < 0.5, found, 1 - found)


@lru_cache(maxsize=16)
def _table(alpha: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    power = min(alpha, 1.0)
    # Twice as fine as the table, for the middle of each of its intervals.
    fine = np.linspace(0, 0.5**power, 2 * _POINTS - 1)
    at = fine ** (1 / power)
    # Above 1 the powers of both sides together, times what makes them 1 in the middle: each alone comes to nothing.
    density = (1 - at) ** (alpha - 1) if alpha <= 1 else (4 * at * (1 - at)) ** (alpha - 1)
    pieces = density[:-2:2] + 4 * density[1::2] + density[2::2]
    area = np.concatenate([[0.0], np.cumsum(pieces)])
    return area / area[-1] / 2, fine[::2], power
