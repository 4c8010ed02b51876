"""Puts decoding off until the bytes are at the device: between augmentation and the decode threads.

For each picture a decode thread reads the header, screens it and draws its box. What the device takes stays as it is,
or is prepared for it: of a lossless picture the box's groups are checked, zstd is undone, and tables are made. The rest
is decoded here, so that no thread waits for the device and the device for no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Augment, Crop, uniforms
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Box, make_crop_decoder, make_decoder, parse_header
from concurrent_loader.decode.header import Buffer
from concurrent_loader.decode.registry import check_header, formats_of
from concurrent_loader.device.pictures import StagedColumn, StagedPicture
from concurrent_loader.device.screening import CODECS, screen

__all__ = ["DeferredDecoder"]

Row = tuple[float, ...]


class DeferredDecoder:
    """Prepares a column's pictures for the device.

    Args:
        name: Of the column.
        how: A crop, an `Augment`, or ``"rgb"``, ``"gray"``, ``"unchanged"``.
        column_type: As for `concurrent_loader.decode.make_decoder`.
        seed: Of the draws.
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
        self._augment = how if isinstance(how, Augment) and how.operations else None
        self._mode = how if isinstance(how, str) else "rgb"
        self._column_type = column_type
        self._formats = formats_of(column_type)
        self._whole = make_decoder(self._mode, column_type, backend=backend, max_pixels=max_pixels)
        self._part = make_crop_decoder(column_type, backend=backend, max_pixels=max_pixels)
        self._backend = backend
        self._max_pixels = max_pixels
        self._seed = seed
        self._codecs = tuple(CODECS[each] for each in codecs)

    def decoders(
        self, epoch: int, samples: npt.NDArray[np.int64], keys: Sequence[str]
    ) -> list[Callable[[Buffer], StagedPicture]]:
        """Makes for each sample what prepares its picture; what it draws depends on nothing else."""
        num_draws = 0 if self._crop is None else self._crop.num_draws
        rows = uniforms(self._seed, epoch, samples, num_draws).tolist() if num_draws else [()] * len(samples)
        return [
            partial(self._prepare, row=tuple(row), sample=sample, key=key)
            for row, sample, key in zip(rows, samples.tolist(), keys, strict=True)
        ]

    def column(self, pictures: Sequence[StagedPicture | torch.Tensor]) -> StagedColumn:
        """Puts a batch's pictures together; one that is pixels already stands in for broken ones."""
        size = None if self._crop is None else self._crop.size
        staged = (each if isinstance(each, StagedPicture) else self._made(each, -1, "") for each in pictures)
        return StagedColumn(
            self._name, self._column_type, self._mode, size, tuple(staged), self._augment,
            backend=self._backend, max_pixels=self._max_pixels,
        )  # fmt: skip

    def _prepare(self, data: Buffer, *, row: Row, sample: int, key: str) -> StagedPicture:
        header = parse_header(data)
        check_header(header, self._formats, self._max_pixels, memoryview(data).nbytes)
        codec = screen(data, header, self._mode, self._codecs)
        if codec is None:
            return self._decode(data, row, sample, key)
        height, width = header.upright
        box = None if self._crop is None else self._crop.box(height, width, row)
        plan = None
        if codec.prepare is not None:
            data, plan = codec.prepare(data, box, self._mode)
            _, height, width = plan.shape
            box = None if box is None else Box(0, 0, height, width, box.flip)
        return StagedPicture(
            sample, key, height, width, codec.name, data,
            orientation=header.orientation, box=box, draws=self._kept(row), plan=plan,
        )  # fmt: skip

    def _decode(self, data: Buffer, row: Row, sample: int, key: str) -> StagedPicture:
        crop = self._crop
        if crop is None:
            return self._made(self._whole(data), sample, key)
        picture = torch.empty((3, *crop.size), dtype=torch.uint8)
        self._part(data, lambda height, width: crop.box(height, width, row), picture.numpy())
        return self._made(picture, sample, key, row)

    def _made(self, picture: torch.Tensor, sample: int, key: str, row: Row = ()) -> StagedPicture:
        _, height, width = picture.shape
        box = None if self._crop is None else Box(0, 0, height, width)
        return StagedPicture(sample, key, height, width, picture=picture, box=box, draws=self._kept(row))

    def _kept(self, row: Row) -> Row:
        """Of a sample's numbers what the device needs to know; zeros for what stands in for a picture."""
        if self._augment is None:
            return ()
        return row or (0.0,) * self._augment.num_draws
