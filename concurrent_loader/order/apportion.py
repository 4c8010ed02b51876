"""Divides a number of samples in given proportions, for splits and mixtures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["apportion", "check_weights", "largest_remainder"]


def check_weights(weights: Sequence[float], *, name: str = "weights", with_zero: bool = False) -> tuple[float, ...]:
    """Returns weights as shares that add up to 1.

    Args:
        weights: Positive numbers, at least one.
        name: Name of the argument for the error, ``"weights"`` by default.
        with_zero: Whether a weight may be 0 if not all are, False by default.

    Raises:
        ConfigurationError: ``weights`` is empty, or a weight is not a positive number.
    """
    given = tuple(float(weight) for weight in weights)
    total = math.fsum(given)
    if not all(math.isfinite(weight) and (weight >= 0 if with_zero else weight > 0) for weight in given) or not total:
        raise ConfigurationError(f"{name} must be positive numbers", got=list(weights))
    return tuple(weight / total for weight in given)


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Divides ``total`` by shares that add up to 1, with Hamilton's method.

    Each share gets the whole part of its product. The shares with the largest fractions get one more; among equal
    fractions, the first ones.
    """
    exact = [share * total for share in shares]
    # Rounding may put a product such as 0.1 * 30 slightly below its exact value.
    counts = [math.floor(value + 1e-9) for value in exact]
    order = sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def apportion(parts: Sequence[float], total: int) -> list[int]:
    """Returns the number of samples in each part of a split.

    Args:
        parts: Numbers of samples, ``total`` at most in sum; or fractions, 1 at most in sum.
        total: Number of samples to divide.

    Raises:
        ConfigurationError: ``parts`` are neither, or their sum is too large.
    """
    if not parts or any(isinstance(part, bool) or not isinstance(part, int | float) for part in parts):
        raise ConfigurationError("a split needs fractions or numbers of samples", got=list(parts))
    # A sum of exactly 1 means the whole dataset, as in torch's random_split.
    if all(isinstance(part, int) for part in parts) and sum(parts) != 1:
        if min(parts) < 0 or sum(parts) > total:
            raise ConfigurationError("a split has more samples than the dataset", expected=total, got=parts)
        return [int(part) for part in parts]
    whole = math.fsum(parts)
    if not all(math.isfinite(part) and part >= 0 for part in parts) or not 0 < whole <= 1 + 1e-6:
        raise ConfigurationError("fractions of a split and their sum must lie in 0 … 1", got=list(parts))
    return largest_remainder([part / whole for part in parts], round(min(whole, 1.0) * total))
