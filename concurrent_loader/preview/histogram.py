"""Counts numbers in ranges with round bounds, for bar charts. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Bar", "histogram"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: Text beside the bar.
        count: Number of values.
        share: Length of the bar relative to the longest one, 0 … 1.
    """

    label: str
    count: int
    share: float


def histogram(
    values: npt.ArrayLike, label: Callable[[float], str], *, num_bars: int = 10, logarithmic: bool = False
) -> list[Bar]:
    """Counts values in ranges of equal width, or of equal ratio.

    Args:
        values: Numbers; positive ones if ``logarithmic``.
        label: Function that formats the lower bound of a range.
        num_bars: Largest number of ranges.
        logarithmic: Whether the bounds of a range have a constant ratio, False by default.

    Returns:
        Bars in ascending order; one bar if all values are equal, none without values.

    Example:
        >>> from concurrent_loader.preview.histogram import histogram
        >>> [(bar.label, bar.count) for bar in histogram([1, 2, 2, 4], "{:.0f}".format, num_bars=3)]
        [('1', 1), ('2', 2), ('3', 1)]
    """
    numbers = np.asarray(values, np.float64)
    if not numbers.size:
        return []
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return [Bar(label(low), int(numbers.size), 1.0)]
    logarithmic = logarithmic and low > 0
    bounds = (np.geomspace if logarithmic else np.linspace)(low, high, num_bars + 1)
    bounds[0], bounds[-1] = low, high  # geomspace rounds
    counts, _ = np.histogram(numbers, bounds)
    most = int(counts.max())
    return [
        Bar(label(float(bound)), count, count / most) for bound, count in zip(bounds[:-1], counts.tolist(), strict=True)
    ]
