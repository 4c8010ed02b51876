"""Assembles a batch from decoded images, and leaves out or replaces damaged ones: the last step of the device stage.

The rules are those of `concurrent_loader.batch.decode_failures`. Decode threads apply them to damage that a header
shows. This module applies them to damage that only decoding shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from concurrent_loader.augment import Normalize
from concurrent_loader.augment.gpu_crop import boxes_and_flips, crop_resize
from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.collate import collate_columns
from concurrent_loader.batch.decode_failures import OnError, picklable_error, source_rows
from concurrent_loader.decode import Box
from concurrent_loader.device.backend import Ticket
from concurrent_loader.device.staged_images import StagedColumn
from concurrent_loader.errors import DecodeError

__all__ = ["DecodedImages", "StagedBatch", "assemble_batch"]

Made = tuple[torch.Tensor, Box | None]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Stores a batch in transfer.

    Attributes:
        batch: Batch on the device.
        ticket: Point on the stage's stream from which the batch is complete.
        errors: Reasons why samples are missing or replaced.
        repaired: Whether the CPU left samples out, or replaced them.
    """

    batch: Batch
    ticket: Ticket
    errors: tuple[DecodeError, ...] = ()
    repaired: bool = False


@dataclass(slots=True)
class DecodedImages:
    """Stores the decoded images of a batch on the device.

    Attributes:
        num_samples: Number of samples of the batch.
        made: (column, position in the batch) → pixels, and the box to crop from them.
        broken: Position → reason why the image cannot be decoded.
    """

    num_samples: int = 0
    made: dict[tuple[str, int], Made] = field(default_factory=dict)
    broken: dict[int, DecodeError] = field(default_factory=dict)

    def rows(self, on_error: OnError) -> list[int] | None:
        """Returns the sample that each row of the batch shows; None if each row shows its own."""
        if not self.broken:
            return None
        shown = source_rows(self.num_samples, self.broken, on_error)
        return shown or list(range(1 if on_error == "skip" else self.num_samples))

    def of(self, column: StagedColumn, rows: Sequence[int] | None, device: torch.device) -> list[Made]:
        """Returns the images of a column, row by row; black images if there is none."""
        found = []
        for position in range(len(column)) if rows is None else rows:
            made = self.made.get((column.name, position))
            found.append(_blank(column, device) if made is None else made)
        return found

    def errors(self, batch: Batch) -> tuple[DecodeError, ...]:
        """Returns the errors of all samples except padding, which is counted where it is not padding."""
        num_real = self.num_samples - batch.num_padded
        return tuple(picklable_error(self.broken[row]) for row in sorted(self.broken) if row < num_real)


def assemble_column(
    column: StagedColumn, images: DecodedImages, rows: Sequence[int] | None, device: torch.device
) -> dict[str, Any]:
    """Makes a column, (N, C, H, W): augmented crops, or whole images, which are arranged if their sizes differ.

    Returns:
        The column, with its companions if it is ragged.
    """
    made = images.of(column, rows, device)
    pixels = [each for each, _ in made]
    if column.size is None:
        ragged = {} if column.ragged is None else {column.name: column.ragged}
        return collate_columns({column.name: pixels}, ragged=ragged, images=(column.name,))
    boxes, flips = boxes_and_flips([box for _, box in made if box is not None])
    augment = column.augment
    if augment is None:
        return {column.name: crop_resize(pixels, boxes, flips, column.size)}
    shown = range(len(column)) if rows is None else rows
    finish = augment.finish if len(augment.operations) == 1 else None
    if finish is not None:  # the kernel also normalizes
        mean, std = (finish.mean, finish.std) if isinstance(finish, Normalize) else (None, None)
        result = crop_resize(
            pixels, boxes, flips, column.size,
            mean=mean, std=std, dtype=finish.dtype, channels_last=finish.channels_last,
        )  # fmt: skip
    else:
        draws = np.array([column.images[row].draws for row in shown], np.float64).reshape(len(shown), -1)
        result = augment.apply(crop_resize(pixels, boxes, flips, column.size), draws)
    all_blank = len(images.broken) == images.num_samples or all(column.images[row].sample < 0 for row in shown)
    # As on the CPU, a replacement image is all zeros after augmentation.
    return {column.name: result.zero_() if all_blank else result}


def assemble_batch(
    batch: Batch, data: Mapping[str, Any], rows: Sequence[int] | None, images: DecodedImages, on_error: OnError
) -> Batch:
    """Combines the columns of a batch, and maps sample ids and sources to the rows that are delivered."""
    if rows is None:
        return batch.with_columns(data)
    if len(images.broken) == images.num_samples:
        num_padded = len(rows)
    elif on_error == "skip":
        num_padded = sum(row >= images.num_samples - batch.num_padded for row in rows)
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
