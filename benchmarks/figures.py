"""What repeated measurements amount to: medians with their extremes, few digits, and a check of what was delivered."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol


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


def with_spread(values: Mapping[str, Sequence[float]], digits: Callable[[float], float] = rounded) -> dict[str, Any]:
    """Returns each figure's median under its name, and the extremes of all of them under ``spread``."""
    return {
        **{key: digits(statistics.median(found)) for key, found in values.items()},
        "spread": {key: [digits(min(found)), digits(max(found))] for key, found in values.items()},
    }


class Delivered(Protocol):
    """What an epoch reports about the samples that it delivered."""

    @property
    def num_samples(self) -> int: ...

    @property
    def class_counts(self) -> list[int]: ...

    @property
    def digest(self) -> str | None: ...


def check_same_samples(epochs: Mapping[str, Sequence[Delivered]]) -> None:
    """Raises ValueError unless all sides delivered the same samples: number, classes and, for files, their bytes."""
    seen = {
        (epoch.num_samples, tuple(epoch.class_counts), epoch.digest): side
        for side, side_epochs in epochs.items()
        for epoch in side_epochs
    }
    if len(seen) > 1:
        told = "; ".join(f"{side}: {number}, {counts}, {digest}" for (number, counts, digest), side in seen.items())
        raise ValueError(f"the sides did not deliver the same images ({told})")
