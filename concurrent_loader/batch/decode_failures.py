"""Skips or replaces samples whose images failed to decode, or are null.

``on_error`` chooses what happens to such a sample:

- ``"raise"`` ends the iteration with the `DecodeError`.
- ``"skip"`` leaves the sample out, so its batch is shorter.
- ``"replace"`` uses another sample of the same batch, with all of its columns: the nearest one, the earlier of two.

The result depends on the batch's samples alone: not on threads, on workers, or on where an iteration began.

A batch is never left out, because all ranks rely on the same number of steps. A batch in which every image failed
contains blank images, one with ``"skip"`` and all with ``"replace"``. They count as padding (`Batch.num_padded`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.errors import DecodeError
from concurrent_loader.order.protocol import BatchIndex

__all__ = [
    "FailedImage",
    "FailedSample",
    "OnError",
    "RepairedBatch",
    "blank_image",
    "missing_image",
    "picklable_error",
    "repaired_index",
    "source_rows",
]

OnError = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class FailedImage:
    """Stands in a column for an image that failed to decode.

    Attributes:
        error: Reason of the failure.
        blank: Shape of the blank image to use if no image of the batch can be decoded; None if unknown.
    """

    error: DecodeError
    blank: tuple[int, ...] | None


class FailedSample(dict[str, Any]):
    """A sample with a `FailedImage` among its values. No transform has been called with it."""

    @property
    def failure(self) -> FailedImage:
        """The first failed image."""
        return next(value for value in self.values() if isinstance(value, FailedImage))


@dataclass(frozen=True, slots=True)
class RepairedBatch:
    """A batch in which samples were skipped or replaced.

    Attributes:
        batch: The batch that the loader delivers.
        errors: One error for each skipped or replaced sample.
    """

    batch: Any
    errors: tuple[DecodeError, ...]


def source_rows(num_samples: int, failed: Collection[int], on_error: OnError) -> list[int]:
    """Returns, for each row of the delivered batch, the planned row that it shows.

    Args:
        num_samples: Number of samples in the batch as planned.
        failed: Rows of the failed samples, 0 … ``num_samples - 1``.
        on_error: ``"skip"`` or ``"replace"``.

    Returns:
        Rows of samples that did not fail; an empty list if every sample failed.
    """
    sound = [row for row in range(num_samples) if row not in failed]
    if on_error == "skip" or not sound:
        return sound
    rows, kept = np.arange(num_samples), np.array(sound)
    right = np.searchsorted(kept, rows).clip(max=len(kept) - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(np.abs(rows - kept[left]) <= np.abs(kept[right] - rows), kept[left], kept[right])
    return nearest.tolist()  # type: ignore[no-any-return]


def repaired_index(index: BatchIndex, shown: Sequence[int], on_error: OnError) -> BatchIndex:
    """Returns the index of the delivered batch, row by row.

    Args:
        index: Index of the batch as planned.
        shown: Result of `source_rows`; empty if the batch is blank.
        on_error: ``"skip"`` or ``"replace"``.
    """
    num_real = len(index) - index.num_padded
    rows: npt.NDArray[np.int64] = np.array(shown, np.int64)
    if shown:
        num_padded = int((rows >= num_real).sum()) if on_error == "skip" else index.num_padded
    else:
        rows = np.arange(1 if on_error == "skip" else len(index))
        num_padded = len(rows)
    return replace(
        index,
        shard=index.shard[rows],
        row=index.row[rows],
        sample=index.sample[rows],
        source=None if index.source is None else index.source[rows],
        num_padded=num_padded,
    )


def blank_image(failed: FailedImage) -> torch.Tensor:
    """Returns a black image, uint8.

    Raises:
        DecodeError: The shape is unknown. The error is the one that decoding raised.
    """
    if failed.blank is None:
        raise failed.error
    return torch.zeros(failed.blank, dtype=torch.uint8)


def missing_image() -> DecodeError:
    """Returns the error for a null in a column that is decoded."""
    return DecodeError(
        "the sample has no value to decode: leave it out, fill the column, or pass on_error='skip' or 'replace'",
        got="None",
    )


def picklable_error(error: DecodeError) -> DecodeError:
    """Returns a copy of an error whose values are text, so that it can be sent to another process."""
    got, expected = (None if fact is None else str(fact)[:200] for fact in (error.got, error.expected))
    return DecodeError(error.what, sample=error.sample, column=error.column, key=error.key, expected=expected, got=got)
