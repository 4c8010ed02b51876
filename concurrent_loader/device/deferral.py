"""Puts decoding off until the bytes are at the device: between augmentation and the decode threads.

For each picture a decode thread reads the header, screens it and draws its box. What the device takes stays as it is;
the rest is decoded here, so that no thread waits for the device and the device for no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Crop, uniforms
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Box, make_crop_decoder, make_decoder, parse_header
from concurrent_loader.decode.header import Buffer
from concurrent_loader.decode.registry import check_header, formats_of
from concurrent_loader.device.pictures import StagedColumn, StagedPicture
from concurrent_loader.device.screening import CODECS, screen

__all__ = ["DeferredDecoder"]

Draw = Callable[[int, int], Box]


class DeferredDecoder:
    """Prepares a column's pictures for the device.

    Args:
        name: Of the column.
        how: A crop, or ``"rgb"``, ``"gray"``, ``"unchanged"``.
        column_type: As for `concurrent_loader.decode.make_decoder`.
        seed: Of the crop's draws.
        codecs: Names of the encodings that the device decodes.
        backend: Of the decoders for all others.
        max_pixels: A larger picture is refused.

    Thread-safety: All methods.
    """

    def __init__(
        self,
        name: str,
        how: str | Crop,
        column_type: str,
        *,
        seed: int,
        codecs: Sequence[str],
        backend: Backend = "auto",
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self._name = name
        self._crop = None if isinstance(how, str) else how
        self._mode = how if isinstance(how, str) else "rgb"
        self._column_type = column_type
        self._formats = formats_of(column_type)
        self._whole = make_decoder(self._mode, column_type, backend=backend, max_pixels=max_pixels)
        self._part = make_crop_decoder(column_type, backend=backend, max_pixels=max_pixels)
        self._max_pixels = max_pixels
        self._seed = seed
        self._codecs = tuple(CODECS[each] for each in codecs)

    def decoders(
        self, epoch: int, samples: npt.NDArray[np.int64], keys: Sequence[str]
    ) -> list[Callable[[Buffer], StagedPicture]]:
        """Makes for each sample what prepares its picture; what it draws depends on nothing else."""
        draws: list[Draw | None] = [None] * len(samples)
        crop = self._crop
        if crop is not None:
            rows = (
                uniforms(self._seed, epoch, samples, crop.num_draws).tolist() if crop.num_draws else [()] * len(samples)
            )
            draws = [lambda height, width, row=row: crop.box(height, width, row) for row in rows]  # type: ignore[misc]
        return [
            lambda data, draw=draw, sample=sample, key=key: self._prepare(data, draw, sample, key)  # type: ignore[misc]
            for draw, sample, key in zip(draws, samples.tolist(), keys, strict=True)
        ]

    def column(self, pictures: Sequence[StagedPicture | torch.Tensor]) -> StagedColumn:
        """Puts a batch's pictures together; one that is pixels already stands in for broken ones."""
        size = None if self._crop is None else self._crop.size
        staged = (each if isinstance(each, StagedPicture) else self._made(each, -1, "") for each in pictures)
        return StagedColumn(self._name, self._column_type, self._mode, size, tuple(staged))

    def _prepare(self, data: Buffer, draw: Draw | None, sample: int, key: str) -> StagedPicture:
        header = parse_header(data)
        check_header(header, self._formats, self._max_pixels)
        codec = screen(data, header, self._mode, self._codecs)
        if codec is None:
            return self._decode(data, draw, sample, key)
        height, width = header.upright
        box = None if draw is None else draw(height, width)
        return StagedPicture(sample, key, height, width, codec.name, data, orientation=header.orientation, box=box)

    def _decode(self, data: Buffer, draw: Draw | None, sample: int, key: str) -> StagedPicture:
        if draw is None or self._crop is None:
            return self._made(self._whole(data), sample, key)
        picture = torch.empty((3, *self._crop.size), dtype=torch.uint8)
        self._part(data, draw, picture.numpy())
        return self._made(picture, sample, key)

    def _made(self, picture: torch.Tensor, sample: int, key: str) -> StagedPicture:
        _, height, width = picture.shape
        box = None if self._crop is None else Box(0, 0, height, width)
        return StagedPicture(sample, key, height, width, picture=picture, box=box)
