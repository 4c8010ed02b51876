"""Decodes of each picture the part that its sample's numbers draw: between augmentation and the decode threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.augmentation import Augment
from concurrent_loader.augment.crops import Crop
from concurrent_loader.augment.draws import uniforms
from concurrent_loader.augment.operation import Draws
from concurrent_loader.decode import Decoder, make_crop_decoder
from concurrent_loader.decode.crop import Box
from concurrent_loader.decode.header import Buffer

__all__ = ["CroppingDecoder"]


class CroppingDecoder:
    """Decodes a column's pictures to one size, and augments them one by one, while they are in the processor's cache.

    Args:
        crop: Says which part of a picture; an `Augment` says what is done to it, too.
        column_type: As for `concurrent_loader.decode.make_decoder`.
        seed: Of the draws.
        **options: As for `concurrent_loader.decode.make_crop_decoder`.

    Thread-safety: All methods.
    """

    def __init__(self, crop: Crop, column_type: str, *, seed: int, **options: Any) -> None:
        self._crop = crop
        self._augment = crop if isinstance(crop, Augment) and crop.operations else None
        self._finish = None if self._augment is None else self._augment.finish
        self._decode = make_crop_decoder(column_type, **options)
        self._seed = seed

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a picture: (3, H, W)."""
        return (3, *self._crop.size)

    @property
    def dtype(self) -> torch.dtype:
        """Of a picture."""
        return torch.uint8 if self._finish is None else self._finish.dtype

    @property
    def channels_last(self) -> bool:
        """Whether in a batch's memory the channels of a pixel are to lie together."""
        return self._finish is not None and self._finish.channels_last

    def decoders(
        self, epoch: int, samples: npt.NDArray[np.int64], into: Sequence[torch.Tensor] | None = None
    ) -> list[Decoder]:
        """Makes each sample's decoder: encoded bytes → (3, H, W); what it draws depends on nothing else.

        Args:
            epoch: Of the draws.
            samples: (n,) int64, the samples' numbers in the data set.
            into: For each of them the memory of its picture, contiguous unless `channels_last`; by default it gets
                memory of its own.
        """
        places: Sequence[torch.Tensor | None] = [None] * len(samples) if into is None else into
        num_draws = self._crop.num_draws
        rows: Draws = np.empty((len(samples), 0))
        if num_draws:
            rows = uniforms(self._seed, epoch, samples, num_draws)
        return [self._decoder(row, place) for row, place in zip(rows, places, strict=True)]

    def _decoder(self, draws: Draws, place: torch.Tensor | None) -> Decoder:
        numbers = draws.tolist()

        def draw(height: int, width: int) -> Box:
            return self._crop.box(height, width, numbers)

        def decode(data: Buffer) -> torch.Tensor:
            augment = self._augment
            picture = torch.empty(self.shape, dtype=torch.uint8) if place is None or augment is not None else place
            self._decode(data, draw, picture.numpy())
            if augment is None:
                return picture
            made = augment.apply(picture.unsqueeze(0), draws.reshape(1, -1))[0]
            return made if place is None else place.copy_(made)

        return decode
