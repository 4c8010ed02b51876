"""Decodes a crop of an image at its final size into the memory of the batch: the fast path for training.

The native module (`jpeg_crop.c`), if it was built, decodes only the part of a JPEG that the crop needs. For lossless
images, only the tiles that the crop touches are decoded. All other images are decoded whole by a library, then cropped
and resized; the result is the same up to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from concurrent_loader.decode.backends.libraries import Backend, load_decode
from concurrent_loader.decode.backends.library_errors import out_of_memory_error
from concurrent_loader.decode.backends.lossless import decode_box
from concurrent_loader.decode.header import Buffer, ImageHeader, parse_header
from concurrent_loader.decode.registry import check_header, formats_of
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images import DEFAULT_MAX_PIXELS

__all__ = ["Box", "CropDecoder", "has_native_crop", "make_crop_decoder"]

_logger = logging.getLogger(__name__)

_native: ModuleType | None
try:
    _native = import_module("concurrent_loader.decode._jpeg_crop")
except ImportError as _error:
    _native = None
    _logger.info("JPEGs are decoded whole and then cropped, because the native module cannot be loaded: %s", _error)


@dataclass(frozen=True, slots=True)
class Box:
    """Describes a part of an upright image.

    Attributes:
        top: First row, in pixels.
        left: First column, in pixels.
        height: Number of rows.
        width: Number of columns.
        flip: Whether the part is mirrored left to right. Default False.

    Example:
        >>> from concurrent_loader.decode import Box
        >>> Box(top=8, left=0, height=32, width=64)
        Box(top=8, left=0, height=32, width=64, flip=False)
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


Draw = Callable[[int, int], Box]
CropDecoder = Callable[[Buffer, Draw, npt.NDArray[np.uint8]], Box]


def has_native_crop() -> bool:
    """Returns whether the native module for JPEG crops was built and can be loaded.

    Example:
        >>> from concurrent_loader.decode import has_native_crop
        >>> isinstance(has_native_crop(), bool)
        True
    """
    return _native is not None


def make_crop_decoder(
    column_type: str,
    *,
    native: bool | Literal["auto"] = "auto",
    backend: Backend = "auto",
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> CropDecoder:
    """Makes a function that decodes a part of an image to a given size.

    Args:
        column_type: Type of the column, as for `make_decoder`.
        native: Whether the native module decodes JPEGs. The default ``"auto"`` uses the module if it was built.
        backend: Image library for all other images, as for `make_decoder`.
        max_pixels: Maximum number of pixels; a larger image is refused before memory is allocated for it.

    Returns:
        A function of (encoded bytes, draw, out). ``draw`` is called with the height and width of the upright image and
        returns a `Box`. The box is resized into ``out``, C-contiguous (3, H, W) uint8, as RGB with an antialiased
        bilinear filter. The function returns the box, raises `DecodeError`, and releases the GIL while it decodes.

    Raises:
        ConfigurationError: An argument is invalid, or ``native=True`` and the native module was not built.

    Thread-safety: The function may be called from any number of threads.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from concurrent_loader.decode import Box, make_crop_decoder
        >>> out = np.empty((3, 32, 32), np.uint8)
        >>> crop = make_crop_decoder("jpeg")
        >>> crop(Path("images/cat/0.jpg").read_bytes(), lambda height, width: Box(0, 0, height, width), out)
        Box(...)
    """
    formats = formats_of(column_type)
    decode = load_decode(formats, backend)
    if native is True and _native is None:
        raise ConfigurationError(
            "the native module for JPEG crops was not built", expected="libjpeg-turbo's headers and a C compiler"
        )
    module = _native if native else None

    def crop(data: Buffer, draw: Draw, out: npt.NDArray[np.uint8]) -> Box:
        header = parse_header(data)
        check_header(header, formats, max_pixels, memoryview(data).nbytes)
        if module is not None and _is_native(header):
            box = _checked(draw(*header.upright), *header.upright)
            if _crop_natively(module, data, header, box, out, max_pixels):
                return box
        if header.format == "lossless":
            box = _checked(draw(header.height, header.width), header.height, header.width)
            part = decode_box(data, (box.top, box.left, box.height, box.width), "RGB")
            _resize(part, Box(0, 0, box.height, box.width, box.flip), out)
            return box
        image = decode(data, header, "RGB")
        box = _checked(draw(*image.shape[1:]), *image.shape[1:])
        _resize(image, box, out)
        return box

    return crop


def _is_native(header: ImageHeader) -> bool:
    return header.format == "jpeg" and header.bits == 8 and header.num_channels in (1, 3)


def _crop_natively(
    module: Any, data: Buffer, header: ImageHeader, box: Box, out: npt.NDArray[np.uint8], max_pixels: int
) -> bool:
    part = (box.top, box.left, box.height, box.width)
    try:
        module.crop(data, out, part, header.orientation, box.flip, max_pixels, True)
    except (ValueError, module.Unsupported) as error:
        # The library decides whether the file is damaged, so that every machine accepts the same files.
        _logger.debug("a JPEG is left to the image library: %s", error)
        return False
    return True


def _resize(image: torch.Tensor, box: Box, out: npt.NDArray[np.uint8]) -> None:
    part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
    if box.flip:
        part = part.flip(2)
    try:
        resized = interpolate(part.unsqueeze(0), size=out.shape[1:], mode="bilinear", antialias=True)
    except RuntimeError as error:  # torch has no MemoryError
        raise out_of_memory_error(error) from error
    out[:] = resized[0].numpy()


def _checked(box: Box, height: int, width: int) -> Box:
    fits = box.top >= 0 and box.left >= 0 and box.top + box.height <= height and box.left + box.width <= width
    if not fits or box.height < 1 or box.width < 1:
        raise DecodeError("the crop does not lie within the image", expected=(height, width), got=box)
    return box
