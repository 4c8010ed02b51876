"""Draws the samples of an epoch by weight or by class, as a pure function of seed, epoch and weights. No I/O.

An epoch with sampling is a list of sample numbers in ascending order, in which a number may occur several times. The
plan then shuffles this list as it shuffles a dataset. So groups, windows, ranks and resume work as without sampling.

The draw is systematic sampling over a random permutation: a sample that is expected ``e`` times comes ⌊e⌋ or ⌈e⌉ times.
Its numbers vary less than those of independent draws. Only additions, multiplications and divisions of float64 are
used, and sums from left to right, so that every machine draws the same samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.remembering import Remembering
from concurrent_loader.order.shuffle import derive_key, hash_items
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Balanced", "ReadColumn", "Sampling", "Weighted", "draw_counts", "expected_counts"]

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ReadColumn = Callable[[str], Any]
"""Function that returns the values of a column for all samples: an array or a list."""

_FRACTION_BITS = 40


class Sampling(Remembering, ABC):
    """Decides how often each sample of a dataset comes in an epoch.

    Args:
        num_samples: Number of samples in an epoch; None for the default of the subclass.
        replacement: Whether a sample may come several times in an epoch.
    """

    def __init__(self, num_samples: int | None, replacement: bool) -> None:
        super().__init__()
        if num_samples is not None and (
            isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1
        ):
            raise ConfigurationError("num_samples must be a positive integer", got=num_samples)
        self.num_samples = num_samples
        self.replacement = bool(replacement)

    @abstractmethod
    def draw(self, read: ReadColumn, num_samples: int, *, seed: int, epoch: int) -> Indices:
        """Returns the samples of an epoch.

        Args:
            read: Function that reads a column of the dataset.
            num_samples: Number of samples in the dataset.
            seed: Seed of the loader.
            epoch: Number of the epoch.

        Returns:
            (n,) int64, sample numbers in ascending order; a sample occurs once for each time that it comes.

        Raises:
            ConfigurationError: The weights or classes cannot be used; the message says why.
        """


class Weighted(Sampling):
    """Draws samples in proportion to their weights.

    Args:
        weights: Column of non-negative numbers, one per sample; or an array (num_samples,); or a function of the epoch
            that returns either, for a curriculum. A sample of weight 0 never comes. Workers need a function that can be
            pickled.
        num_samples: Number of samples in an epoch. Default: with replacement, the number of samples in the dataset;
            without, the number of samples with a positive weight.
        replacement: Whether a sample may come several times in an epoch, True by default.

    Raises:
        ConfigurationError: An argument has the wrong type.

    Example:
        >>> from concurrent_loader import NativeDataLoader, ShardDataset, Weighted
        >>> with ShardDataset("photos") as dataset:
        ...     loader = NativeDataLoader(dataset, 4, shuffle=True, sampling=Weighted([0] * 16 + [1] * 4))
        ...     sorted({number for batch in loader for number in batch.sample_ids.tolist()})
        [16, 17, 18, 19]
    """

    def __init__(
        self,
        weights: str | npt.ArrayLike | Callable[[int], str | npt.ArrayLike],
        *,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        super().__init__(num_samples, replacement)
        self.weights = weights if isinstance(weights, str) or callable(weights) else _numbers(weights)

    def draw(self, read: ReadColumn, num_samples: int, *, seed: int, epoch: int) -> Indices:
        given = self.weights(epoch) if callable(self.weights) else self.weights
        weights = _numbers(read(given) if isinstance(given, str) else given)
        if weights.shape != (num_samples,):
            raise ConfigurationError("sampling needs one weight per sample", expected=(num_samples,), got=weights.shape)
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigurationError("weights must be finite and not negative")
        num_positive = int(np.count_nonzero(weights))
        num = self.num_samples or (num_samples if self.replacement else num_positive)
        if not num_positive or (not self.replacement and num > num_positive):
            raise ConfigurationError(
                "too few samples have a positive weight", expected="1" if self.replacement else num, got=num_positive
            )
        expected = expected_counts(weights, num, at_most_once=not self.replacement)
        keys = hash_items(derive_key("sampling", seed, epoch), 0, num_samples)
        counts = draw_counts(expected, np.argsort(keys, kind="stable"), num, derive_key("offset", seed, epoch))
        return np.repeat(np.arange(num_samples, dtype=np.int64), counts)


class Balanced(Sampling):
    """Draws the same number of samples from each class, and within a class each sample equally often.

    Args:
        column: Column with the classes: integers, bools or strings.
        num_samples: Number of samples in an epoch. Default: with replacement, the number of samples in the dataset;
            without, the number of classes times the size of the smallest class.
        replacement: Whether samples of small classes come several times in an epoch, True by default. With False, an
            epoch has a different part of each large class.

    Raises:
        ConfigurationError: An argument has the wrong type.

    Example:
        >>> from concurrent_loader import Balanced, NativeDataLoader, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     loader = NativeDataLoader(dataset, 20, shuffle=True, sampling=Balanced("label"))
        ...     next(iter(loader))["label"].unique(return_counts=True)[1].max().item() <= 10
        True
    """

    def __init__(self, column: str, *, num_samples: int | None = None, replacement: bool = True) -> None:
        super().__init__(num_samples, replacement)
        if not isinstance(column, str):
            raise ConfigurationError("Balanced needs the name of a column with classes", got=type(column).__name__)
        self.column = column

    def draw(self, read: ReadColumn, num_samples: int, *, seed: int, epoch: int) -> Indices:
        values = _without_nulls(read(self.column))
        if values.ndim != 1 or values.dtype.kind not in "iubU":
            raise ConfigurationError(
                "Balanced needs a column of integers, bools or strings, one per sample", got=self.column
            )
        _, classes, sizes = np.unique(values, return_inverse=True, return_counts=True)
        smallest = int(sizes.min(initial=num_samples))
        num = self.num_samples or (num_samples if self.replacement else len(sizes) * smallest)
        if not self.replacement and num > len(sizes) * smallest:
            raise ConfigurationError(
                "without replacement, the smallest class limits the samples of an epoch",
                expected=f"at most {len(sizes)} classes x {smallest}", got=num,
            )  # fmt: skip
        if not len(sizes):
            return np.empty(0, np.int64)
        keys = hash_items(derive_key("sampling", seed, epoch), 0, num_samples)
        # Class by class, so that the cumulated expectation cuts each class at most once.
        order = np.lexsort((keys, classes))
        expected = num / (len(sizes) * sizes[classes].astype(np.float64))
        counts = draw_counts(expected, order, num, derive_key("offset", seed, epoch))
        return np.repeat(np.arange(num_samples, dtype=np.int64), counts)


def expected_counts(weights: Floats, num: int, *, at_most_once: bool) -> Floats:
    """Returns how often each sample is expected, in proportion to its weight: (n,) float64 with the sum ``num``.

    Args:
        weights: (n,) non-negative numbers, of which one is positive.
        num: Number of samples to draw.
        at_most_once: Whether the result is limited to 1. Then the rest is divided among the other samples.

    Example:
        >>> from concurrent_loader.order.sampling import expected_counts
        >>> expected_counts(np.array([8.0, 1.0, 1.0]), 2, at_most_once=True).tolist()
        [1.0, 0.5, 0.5]
    """
    scaled = weights / weights.max()
    if not at_most_once:
        whole: Floats = scaled * (num / _total(scaled))
        return whole
    expected = np.zeros(len(weights))
    is_open = scaled > 0
    while True:
        left = num - int(np.count_nonzero(expected >= 1))
        total = _total(np.where(is_open, scaled, 0.0))
        if left <= 0 or total <= 0:
            return expected
        share = np.where(is_open, scaled * (left / total), expected)
        full = is_open & (share >= 1)
        if not full.any():
            return share
        expected[full] = 1.0
        is_open &= ~full


def draw_counts(expected: Floats, order: Indices, num: int, key: int) -> Indices:
    """Returns how often each sample comes, ⌊e⌋ or ⌈e⌉ times for an expectation e: (n,) int64 with the sum ``num``.

    Args:
        expected: (n,) expectations with the sum ``num``, up to rounding.
        order: (n,) the order in which the expectations are added up, each sample once.
        num: Number of samples to draw.
        key: Random 64-bit number.
    """
    # Integers in fixed point: their sums are exact, and an expectation of 1 is a count of 1 wherever it begins.
    bits = min(_FRACTION_BITS, 62 - num.bit_length())
    fixed = np.rint(expected[order] * float(1 << bits)).astype(np.int64)
    missing = (num << bits) - int(fixed.sum())
    spread = np.flatnonzero(fixed & ((1 << bits) - 1))
    spread = spread if len(spread) else np.flatnonzero(fixed)
    fixed[spread] += missing // len(spread)
    fixed[spread[: missing % len(spread)]] += 1
    bounds = (np.cumsum(fixed) + (key >> (64 - bits))) >> bits
    counts = np.empty(len(expected), np.int64)
    counts[order] = np.diff(bounds, prepend=0)
    return counts


def _without_nulls(values: Any) -> Any:
    """Returns the values of a column as an array.

    Raises:
        ConfigurationError: A value is null.
    """
    if isinstance(values, list):
        num_nulls = sum(each is None for each in values)
    else:
        num_nulls = int(np.count_nonzero(np.ma.getmaskarray(values)))
    if num_nulls:
        raise ConfigurationError(
            "samples without a value in the column cannot be drawn by it; leave them out, such as by "
            "dataset.filter('label is not None')", got=f"{num_nulls} nulls",
        )  # fmt: skip
    return np.asarray(values)


def _numbers(values: Any) -> Floats:
    array = _without_nulls(values)
    if array.ndim != 1 or array.dtype.kind not in "iufb":
        raise ConfigurationError(
            "weights must be a row of numbers, one per sample, or the name of a column of numbers",
            got=f"{array.dtype} {array.shape}",
        )
    numbers: Floats = array.astype(np.float64)
    return numbers


def _total(values: Floats) -> float:
    return float(np.cumsum(values)[-1])  # from left to right; np.sum depends on the processor's vectors
