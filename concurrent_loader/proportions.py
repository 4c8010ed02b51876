"""How a whole number of samples is divided in given proportions: integers only, below views and mixtures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from storage.errors import ConfigurationError

__all__ = ["check_weights", "divide", "largest_remainder"]


def check_weights(weights: Sequence[float], *, name: str = "weights") -> tuple[float, ...]:
    """Returns the weights as shares that add up to 1.

    Raises:
        ConfigurationError: There is none, or one that is no positive number.
    """
    given = tuple(float(weight) for weight in weights)
    if not given or not all(math.isfinite(weight) and weight > 0 for weight in given):
        raise ConfigurationError(f"{name} must be positive numbers", got=list(weights))
    total = math.fsum(given)
    return tuple(weight / total for weight in given)


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Divides ``total`` by shares that add up to 1: each gets the whole part, the largest fractions one more.

    Equal fractions go to the first. (Hamilton's method.)
    """
    exact = [share * total for share in shares]
    # A product such as 0.1 * 30 may lie a hair below the whole number that it means.
    counts = [math.floor(value + 1e-9) for value in exact]
    order = sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def divide(parts: Sequence[float], total: int) -> list[int]:
    """Says how many of ``total`` samples each part gets.

    Args:
        parts: Whole numbers of samples, together at most ``total``; or fractions, together at most 1.
        total: Samples to divide.

    Raises:
        ConfigurationError: They are neither.
    """
    if not parts or any(isinstance(part, bool) or not isinstance(part, int | float) for part in parts):
        raise ConfigurationError("a split needs fractions or numbers of samples", got=list(parts))
    if (
        all(isinstance(part, int) for part in parts) and sum(parts) != 1
    ):  # a whole 1 is all, as for torch's random_split
        if min(parts) < 0 or sum(parts) > total:
            raise ConfigurationError("the parts of a split have more samples than there are", expected=total, got=parts)
        return [int(part) for part in parts]
    whole = math.fsum(parts)
    if not all(math.isfinite(part) and part >= 0 for part in parts) or not 0 < whole <= 1 + 1e-6:
        raise ConfigurationError("fractions of a split lie in 0 … 1, and together too", got=list(parts))
    return largest_remainder([part / whole for part in parts], round(min(whole, 1.0) * total))
