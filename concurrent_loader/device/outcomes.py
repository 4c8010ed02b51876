"""What has become of a batch's pictures, and the batch without those that nobody could decode: the device stage's end.

The rules are those of `concurrent_loader.broken`. Decode threads have applied them to what a header shows; here they
are applied to what only decoding shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from concurrent_loader.augment import Normalize
from concurrent_loader.augment.fused import boxes_and_flips, crop_resize
from concurrent_loader.batch import Batch, collate_columns
from concurrent_loader.broken import OnError, plain_error, rows_shown
from concurrent_loader.decode import Box
from concurrent_loader.device.backend import Ticket
from concurrent_loader.device.pictures import StagedColumn
from concurrent_loader.errors import DecodeError

__all__ = ["Pictures", "Staged", "mended"]

Made = tuple[torch.Tensor, Box | None]


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch that is on its way.

    Attributes:
        batch: On the device.
        ticket: The point on the stage's stream from which on it is there.
        errors: Why samples are missing, or others stand in for them.
    """

    batch: Batch
    ticket: Ticket
    errors: tuple[DecodeError, ...] = ()


@dataclass(slots=True)
class Pictures:
    """Decoded pictures on the device.

    Attributes:
        num_samples: Of the batch.
        made: (column, position in the batch) → pixels, and the box that is wanted of them.
        broken: Position → why nobody could decode it.
    """

    num_samples: int = 0
    made: dict[tuple[str, int], Made] = field(default_factory=dict)
    broken: dict[int, DecodeError] = field(default_factory=dict)

    def rows(self, on_error: OnError) -> list[int] | None:
        """Which sample each row of the batch shows; None: each its own."""
        if not self.broken:
            return None
        shown = rows_shown(self.num_samples, self.broken, on_error)
        return shown or list(range(1 if on_error == "skip" else self.num_samples))

    def of(self, column: StagedColumn, rows: Sequence[int] | None, device: torch.device) -> list[Made]:
        """A column's pictures, row by row; black ones where there is none."""
        found = []
        for position in range(len(column)) if rows is None else rows:
            made = self.made.get((column.name, position))
            found.append(_blank(column, device) if made is None else made)
        return found

    def errors(self, batch: Batch) -> tuple[DecodeError, ...]:
        """Of all samples but those that only fill the batch up, which are counted where they are not padding."""
        num_real = self.num_samples - batch.num_padded
        return tuple(plain_error(self.broken[row]) for row in sorted(self.broken) if row < num_real)


def finished(column: StagedColumn, pictures: Pictures, rows: Sequence[int] | None, device: torch.device) -> Any:
    """Makes a column's tensor, (N, C, H, W): crops, augmented; or whole images, a list where sizes differ."""
    made = pictures.of(column, rows, device)
    pixels = [each for each, _ in made]
    if column.size is None:
        return collate_columns({column.name: pixels}, mixed=(column.name,))[column.name]
    boxes, flips = boxes_and_flips([box for _, box in made if box is not None])
    augment = column.augment
    if augment is None:
        return crop_resize(pixels, boxes, flips, column.size)
    shown = range(len(column)) if rows is None else rows
    finish = augment.finish if len(augment.operations) == 1 else None
    if finish is not None:  # the kernel does that as well
        mean, std = (finish.mean, finish.std) if isinstance(finish, Normalize) else (None, None)
        result = crop_resize(
            pixels, boxes, flips, column.size,
            mean=mean, std=std, dtype=finish.dtype, channels_last=finish.channels_last,
        )  # fmt: skip
    else:
        draws = np.array([column.pictures[row].draws for row in shown], np.float64).reshape(len(shown), -1)
        result = augment.apply(crop_resize(pixels, boxes, flips, column.size), draws)
    nobody = len(pictures.broken) == pictures.num_samples or all(column.pictures[row].sample < 0 for row in shown)
    return result.zero_() if nobody else result  # as on the CPU: what stands in is all zeros, whatever is done to it


def mended(
    batch: Batch, data: Mapping[str, Any], rows: Sequence[int] | None, pictures: Pictures, on_error: OnError
) -> Batch:
    """Puts a batch's columns together, with its place in the order row by row as it is delivered."""
    if rows is None:
        return batch.with_columns(data)
    if len(pictures.broken) == pictures.num_samples:
        num_padded = len(rows)
    elif on_error == "skip":
        num_padded = sum(row >= pictures.num_samples - batch.num_padded for row in rows)
    else:
        num_padded = batch.num_padded
    places = torch.tensor(rows, dtype=torch.int64)
    return type(batch)(
        data,
        epoch=batch.epoch,
        step=batch.step,
        sample_ids=batch.sample_ids[places] if len(batch.sample_ids) else batch.sample_ids,
        num_padded=num_padded,
        sources=batch.sources[places] if len(batch.sources) else batch.sources,
    )


def _blank(column: StagedColumn, device: torch.device) -> Made:
    channels = 1 if column.mode == "gray" else 3
    height, width = column.size or (1, 1)
    pixels = torch.zeros((channels, height, width), dtype=torch.uint8, device=device)
    return pixels, None if column.size is None else Box(0, 0, height, width)
