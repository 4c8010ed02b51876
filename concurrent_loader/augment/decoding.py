"""Decodes of each picture the part that its sample's numbers draw: between augmentation and the decode threads."""

from __future__ import annotations

from collections.abc import Callable

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

    Thread-safety: All methods.
    """

    def __init__(self, crop: Crop, column_type: str, *, seed: int) -> None:
        self._crop = crop
        self._decode = make_crop_decoder(column_type)
        self._seed = seed

    def decoders(self, epoch: int, samples: npt.NDArray[np.int64]) -> list[Decoder]:
        """Makes each sample's decoder: encoded bytes → (3, H, W) uint8; what it draws depends on nothing else."""
        num_draws = self._crop.num_draws
        if not num_draws:
            return [self._decoder(lambda height, width: self._crop.box(height, width, ()))] * len(samples)
        rows = uniforms(self._seed, epoch, samples, num_draws).tolist()
        return [self._decoder(lambda height, width, row=row: self._crop.box(height, width, row)) for row in rows]  # type: ignore[misc]

    def _decoder(self, draw: Callable[[int, int], Box]) -> Decoder:
        def decode(data: Buffer) -> torch.Tensor:
            picture = torch.empty((3, *self._crop.size), dtype=torch.uint8)
            self._decode(data, draw, picture.numpy())
            return picture

        return decode
