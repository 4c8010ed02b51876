"""What repeated measurements amount to: medians with their extremes, and few digits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def four_digits(value: float) -> float:
    """Rounds to four significant digits."""
    return float(f"{value:.4g}")


def rounded(value: float) -> float:
    """Rounds to four significant digits, or to one decimal from 1000 on."""
    return four_digits(value) if abs(value) < 1000 else round(value, 1)


def median(values: Iterable[float]) -> float:
    """Returns the rounded median."""
    return rounded(statistics.median(values))


def extremes(values: Sequence[float]) -> list[float]:
    """Returns the rounded lowest and highest value."""
    return [rounded(min(values)), rounded(max(values))]


def medians(rows: Sequence[Mapping[str, float]], digits: Callable[[float], float] = float) -> dict[str, float]:
    """Returns each figure's median over several measurements that have the same figures."""
    return {key: digits(statistics.median(row[key] for row in rows)) for key in rows[0]}


def with_spread(values: Mapping[str, Sequence[float]], digits: Callable[[float], float] = rounded) -> dict[str, Any]:
    """Returns each figure's median under its name, and the extremes of all of them under ``spread``."""
    return {
        **{key: digits(statistics.median(found)) for key, found in values.items()},
        "spread": {key: [digits(min(found)), digits(max(found))] for key, found in values.items()},
    }
