"""Decodes a random crop of each image and augments it: connects augmentation with the decode threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.augment import Augment
from concurrent_loader.augment.crop_protocol import Crop
from concurrent_loader.augment.operation import Draws
from concurrent_loader.augment.random_draws import uniforms
from concurrent_loader.decode import Decoder, make_crop_decoder
from concurrent_loader.decode.crop import Box
from concurrent_loader.decode.header import Buffer

__all__ = ["CroppingDecoder"]


class CroppingDecoder:
    """Decodes the images of a column to one size and augments them one by one, while they are in the processor's cache.

    Args:
        crop: Crop that selects a part of each image; an `Augment` also applies its operations.
        column_type: Type of the column, as for `concurrent_loader.decode.make_decoder`.
        seed: Seed of the random numbers.
        **options: Options of `concurrent_loader.decode.make_crop_decoder`.

    Thread-safety: All methods may be called from any number of threads.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from concurrent_loader.augment import CroppingDecoder, RandomResizedCrop
        >>> decoder = CroppingDecoder(RandomResizedCrop(32), "jpeg", seed=0)
        >>> (decode,) = decoder.decoders(epoch=0, samples=np.array([5]))
        >>> decode(Path("images/cat/0.jpg").read_bytes()).shape
        torch.Size([3, 32, 32])
    """

    def __init__(self, crop: Crop, column_type: str, *, seed: int, **options: Any) -> None:
        self._crop = crop
        self._augment = crop if isinstance(crop, Augment) and crop.operations else None
        self._finish = None if self._augment is None else self._augment.finish
        self._decode = make_crop_decoder(column_type, **options)
        self._seed = seed

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: (3, H, W)."""
        return (3, *self._crop.size)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of an image."""
        return torch.uint8 if self._finish is None else self._finish.dtype

    @property
    def channels_last(self) -> bool:
        """Whether a batch stores the channels of a pixel next to each other."""
        return self._finish is not None and self._finish.channels_last

    def decoders(
        self, epoch: int, samples: npt.NDArray[np.int64], into: Sequence[torch.Tensor] | None = None
    ) -> list[Decoder]:
        """Returns a decoder for each sample: encoded bytes → (3, H, W).

        The random numbers of a sample depend only on the seed, the epoch and the sample number.

        Args:
            epoch: Epoch number, from 0.
            samples: Sample numbers in the dataset, (n,) int64.
            into: Output tensor for each sample, contiguous unless `channels_last`. By default each image gets new
                memory.
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
            image = torch.empty(self.shape, dtype=torch.uint8) if place is None or augment is not None else place
            self._decode(data, draw, image.numpy())
            if augment is None:
                return image
            made = augment.apply(image.unsqueeze(0), draws.reshape(1, -1))[0]
            return made if place is None else place.copy_(made)

        return decode
