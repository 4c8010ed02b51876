"""How a figure grows with the work: the exponent of a power law, by least squares over logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Fits ``value = c · size ** exponent``."""
    points = [(math.log(x), math.log(y)) for x, y in zip(sizes, values, strict=True) if y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def slopes(sizes: Sequence[float], columns: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """Fits several figures, each over all points and over the last two.

    A fixed cost hides growth at small sizes: where the two differ, the second is what further growth will look like.
    """
    return {
        name: {"all": _rounded(exponent(sizes, values)), "last": _rounded(exponent(sizes[-2:], values[-2:]))}
        for name, values in columns.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
