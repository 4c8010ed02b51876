"""What becomes of samples whose pictures are broken: between decoding, which finds them, and the batch.

By ``on_error``: ``"raise"`` ends the iteration with the `DecodeError`. ``"skip"`` leaves the sample out, so its batch
is shorter. ``"replace"`` lets another sample of the same batch stand in, with all of its columns: the nearest one, the
earlier of two. Both depend on the batch's samples alone: not on threads, workers or where an iteration began.

A batch never vanishes, as all ranks count on the same number of steps. One without any sound sample is made of blank
pictures: one by ``"skip"``, all by ``"replace"``; they count as padding (`Batch.num_padded`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.errors import DecodeError
from concurrent_loader.plan import BatchIndex

__all__ = ["Broken", "BrokenSample", "Mended", "OnError", "blank_picture", "mended_index", "plain_error", "rows_shown"]

OnError = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class Broken:
    """Stands where a picture should be.

    Attributes:
        error: Why there is none.
        blank: Shape of the picture that may stand in where no other can; None if nobody knows one.
    """

    error: DecodeError
    blank: tuple[int, ...] | None


class BrokenSample(dict[str, Any]):
    """A sample with a `Broken` among its values, which no transform has seen."""

    @property
    def broken(self) -> Broken:
        """The first one."""
        return next(value for value in self.values() if isinstance(value, Broken))


@dataclass(frozen=True, slots=True)
class Mended:
    """A batch from which samples are left out, or in which others stand in for them.

    Attributes:
        batch: Whatever the loader delivers.
        errors: Why, sample by sample.
    """

    batch: Any
    errors: tuple[DecodeError, ...]


def rows_shown(num_samples: int, broken: Collection[int], on_error: OnError) -> list[int]:
    """Says which sample of a batch each row of what is delivered shows.

    Args:
        num_samples: Of the batch, as planned.
        broken: Places of the broken ones, 0 … ``num_samples - 1``.
        on_error: ``"skip"`` or ``"replace"``.

    Returns:
        For each row a sound sample's place; nothing where there is none.
    """
    sound = [row for row in range(num_samples) if row not in broken]
    if on_error == "skip" or not sound:
        return sound
    distance = np.abs(np.subtract.outer(np.arange(num_samples), sound))
    return [sound[at] for at in distance.argmin(axis=1).tolist()]


def mended_index(index: BatchIndex, shown: Sequence[int], on_error: OnError) -> BatchIndex:
    """The batch's place in the order, row by row as it is delivered.

    Args:
        index: As planned.
        shown: By `rows_shown`; empty where the batch becomes blank.
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


def blank_picture(broken: Broken) -> torch.Tensor:
    """A black picture.

    Raises:
        DecodeError: Nobody knows of what shape; what was wrong with the picture.
    """
    if broken.blank is None:
        raise broken.error
    return torch.zeros(broken.blank, dtype=torch.uint8)


def plain_error(error: DecodeError) -> DecodeError:
    """The same facts as text, which can go anywhere."""
    got, expected = (None if fact is None else str(fact)[:200] for fact in (error.got, error.expected))
    return DecodeError(error.what, sample=error.sample, column=error.column, key=error.key, expected=expected, got=got)
