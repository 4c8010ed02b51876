"""Decodes of each picture the part that its sample's numbers draw: between augmentation and the decode threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.augmentation import Augment
from concurrent_loader.augment.crops import Crop
from concurrent_loader.augment.draws import uniforms
from concurrent_loader.augment.operation import Draws
from concurrent_loader.decode import Decoder, make_crop_decoder
from concurrent_loader.decode.header import Buffer
from concurrent_loader.shared_memory import empty

__all__ = ["CroppingDecoder"]


class CroppingDecoder:
    """Decodes a column's pictures to one size, and augments them one by one, while they are in the processor's cache.

    Args:
        crop: Says which part of a picture; an `Augment` says what is done to it, too.
        column_type: As for `concurrent_loader.decode.make_decoder`.
        seed: Of the draws.

    Thread-safety: All methods.
    """

    def __init__(self, crop: Crop, column_type: str, *, seed: int) -> None:
        self._crop = crop
        self._augment = crop if isinstance(crop, Augment) and crop.operations else None
        self._decode = make_crop_decoder(column_type)
        self._seed = seed

    @property
    def channels_last(self) -> bool:
        """Whether a batch's pictures are to have the channels of a pixel together: see `stack`."""
        finish = None if self._augment is None else self._augment.finish
        return finish is not None and finish.channels_last

    def decoders(self, epoch: int, samples: npt.NDArray[np.int64]) -> list[Decoder]:
        """Makes each sample's decoder: encoded bytes → (3, H, W); what it draws depends on nothing else."""
        num_draws = self._crop.num_draws
        if not num_draws:
            return [self._decoder(np.empty(0))] * len(samples)
        return [self._decoder(row) for row in uniforms(self._seed, epoch, samples, num_draws)]

    def _decoder(self, draws: Draws) -> Decoder:
        numbers = draws.tolist()

        def decode(data: Buffer) -> torch.Tensor:
            picture = torch.empty((3, *self._crop.size), dtype=torch.uint8)
            self._decode(data, lambda height, width: self._crop.box(height, width, numbers), picture.numpy())
            if self._augment is None:
                return picture
            return self._augment.apply(picture.unsqueeze(0), draws.reshape(1, -1))[0]

        return decode

    @staticmethod
    def stack(pictures: Sequence[torch.Tensor]) -> torch.Tensor:
        """Puts pictures whose pixels' channels lie together into a batch that is so, too: (n, 3, H, W)."""
        channels, height, width = pictures[0].shape
        whole = empty((len(pictures), height, width, channels), pictures[0].dtype).permute(0, 3, 1, 2)
        for place, picture in zip(whole, pictures, strict=True):
            place.copy_(picture)
        return whole
