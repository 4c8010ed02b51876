"""Decodes of each picture the part that its sample's numbers draw: between augmentation and the decode threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.crops import Crop
from concurrent_loader.augment.draws import uniforms
from concurrent_loader.decode import Decoder, make_crop_decoder
from concurrent_loader.decode.crop import Box
from concurrent_loader.decode.header import Buffer

__all__ = ["CroppingDecoder"]


class CroppingDecoder:
    """Decodes a column's pictures to one size.

    Args:
        crop: Says which part of a picture.
        column_type: As for `concurrent_loader.decode.make_decoder`.
        seed: Of the draws.
        **options: As for `concurrent_loader.decode.make_crop_decoder`.

    Thread-safety: All methods.
    """

    def __init__(self, crop: Crop, column_type: str, *, seed: int, **options: Any) -> None:
        self._crop = crop
        self._decode = make_crop_decoder(column_type, **options)
        self._seed = seed

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a picture: (3, H, W)."""
        return (3, *self._crop.size)

    def decoders(
        self, epoch: int, samples: npt.NDArray[np.int64], into: Sequence[torch.Tensor] | None = None
    ) -> list[Decoder]:
        """Makes each sample's decoder: encoded bytes → (3, H, W) uint8; what it draws depends on nothing else.

        Args:
            epoch: Of the draws.
            samples: (n,) int64, the samples' numbers in the data set.
            into: For each of them the memory of its picture, contiguous; by default it gets memory of its own.
        """
        places: Sequence[torch.Tensor | None] = [None] * len(samples) if into is None else into
        num_draws = self._crop.num_draws
        rows: list[Sequence[float]] = [()] * len(samples)
        if num_draws:
            rows = uniforms(self._seed, epoch, samples, num_draws).tolist()
        return [self._decoder(row, place) for row, place in zip(rows, places, strict=True)]

    def _decoder(self, row: Sequence[float], place: torch.Tensor | None) -> Decoder:
        def draw(height: int, width: int) -> Box:
            return self._crop.box(height, width, row)

        def decode(data: Buffer) -> torch.Tensor:
            picture = torch.empty(self.shape, dtype=torch.uint8) if place is None else place
            self._decode(data, draw, picture.numpy())
            return picture

        return decode
