"""Prepares images for decoding on the device, in the decode threads.

For each image a decode thread reads the header, chooses the decoder and draws the box. If the device decodes the image,
its bytes stay encoded or are prepared: for a lossless image the thread checks the groups of the box, decompresses zstd
and makes tables. Otherwise the thread decodes the image. No thread waits for the device, and the device does not wait
for any thread.
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
from concurrent_loader.device.codecs import CODECS, screen
from concurrent_loader.device.staged_images import StagedColumn, StagedImage

__all__ = ["DeferredDecoder"]

Row = tuple[float, ...]


class DeferredDecoder:
    """Prepares the images of a column for the device.

    Args:
        name: Name of the column.
        how: A crop, an `Augment`, ``"rgb"``, ``"gray"`` or ``"unchanged"``.
        column_type: Type of the column, as for `concurrent_loader.decode.make_decoder`.
        seed: Seed of the random numbers.
        codecs: Names of the codecs that the device decodes.
        backend: Image library for all other images.
        max_pixels: Maximum number of pixels of an image.

    Attributes:
        name: Name of the column.

    Thread-safety: All methods may be called from any number of threads.
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
        self.name = name
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
    ) -> list[Callable[[Buffer], StagedImage]]:
        """Returns a function for each sample that prepares its image.

        The random numbers of a sample depend only on the seed, the epoch and the sample number.
        """
        num_draws = 0 if self._crop is None else self._crop.num_draws
        rows = uniforms(self._seed, epoch, samples, num_draws).tolist() if num_draws else [()] * len(samples)
        return [
            partial(self._prepare, row=tuple(row), sample=sample, key=key)
            for row, sample, key in zip(rows, samples.tolist(), keys, strict=True)
        ]

    def column(self, images: Sequence[StagedImage | torch.Tensor]) -> StagedColumn:
        """Combines the images of a batch; a tensor is the replacement for a damaged image."""
        size = None if self._crop is None else self._crop.size
        staged = (each if isinstance(each, StagedImage) else self._made(each, -1, "") for each in images)
        return StagedColumn(
            self.name, self._column_type, self._mode, size, tuple(staged), self._augment,
            backend=self._backend, max_pixels=self._max_pixels,
        )  # fmt: skip

    def _prepare(self, data: Buffer, *, row: Row, sample: int, key: str) -> StagedImage:
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
        return StagedImage(
            sample, key, height, width, codec.name, data,
            orientation=header.orientation, box=box, draws=self._kept(row), plan=plan,
        )  # fmt: skip

    def _decode(self, data: Buffer, row: Row, sample: int, key: str) -> StagedImage:
        crop = self._crop
        if crop is None:
            return self._made(self._whole(data), sample, key)
        image = torch.empty((3, *crop.size), dtype=torch.uint8)
        self._part(data, lambda height, width: crop.box(height, width, row), image.numpy())
        return self._made(image, sample, key, row)

    def _made(self, image: torch.Tensor, sample: int, key: str, row: Row = ()) -> StagedImage:
        _, height, width = image.shape
        box = None if self._crop is None else Box(0, 0, height, width)
        return StagedImage(sample, key, height, width, pixels=image, box=box, draws=self._kept(row))

    def _kept(self, row: Row) -> Row:
        """Returns the random numbers that the device needs; zeros for a replacement image."""
        if self._augment is None:
            return ()
        return row or (0.0,) * self._augment.num_draws
