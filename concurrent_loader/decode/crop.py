"""From encoded bytes to a crop at its final size, inside the batch's memory: the fast way of decoding for training.

JPEGs take the native module (`jpeg_crop.c`) where it was built, which decodes only what the crop needs. Of lossless
pictures only the tiles that the crop touches are decoded. Everything else, and whatever that module does not like,
takes the library of `concurrent_loader.decode.registry`, is cropped and then resized: the same picture up to rounding.
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

from concurrent_loader.decode.faults import out_of_memory
from concurrent_loader.decode.header import Buffer, ImageHeader, parse_header
from concurrent_loader.decode.libraries import Backend, load_decode
from concurrent_loader.decode.lossless_images import decode_box
from concurrent_loader.decode.registry import check_header, formats_of
from concurrent_loader.errors import DecodeError
from storage.errors import ConfigurationError
from storage.images import DEFAULT_MAX_PIXELS

__all__ = ["Box", "CropDecoder", "has_native_crop", "make_crop_decoder"]

_logger = logging.getLogger(__name__)

_native: ModuleType | None
try:
    _native = import_module("concurrent_loader.decode._jpeg_crop")
except ImportError as _error:
    _native = None
    _logger.info("JPEGs are decoded whole and then cropped: %s", _error)


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a picture, in pixels of the upright one.

    Attributes:
        top: First row.
        left: First column.
        height: Rows.
        width: Columns.
        flip: Whether it is mirrored, left to right.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


Draw = Callable[[int, int], Box]
CropDecoder = Callable[[Buffer, Draw, npt.NDArray[np.uint8]], Box]


def has_native_crop() -> bool:
    """Whether the native module was built and can be loaded."""
    return _native is not None


def make_crop_decoder(
    column_type: str,
    *,
    native: bool | Literal["auto"] = "auto",
    backend: Backend = "auto",
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> CropDecoder:
    """Makes the function that decodes a part of a picture to a given size.

    Args:
        column_type: As for `make_decoder`.
        native: Whether JPEGs take the native module; ``"auto"``: where there is one.
        backend: For everything else; as for `make_decoder`.
        max_pixels: A larger picture is refused before memory is allocated for it.

    Returns:
        A function of (encoded bytes, draw, out). ``draw`` gets the upright picture's height and width and returns the
        `Box`; ``out`` is (3, H, W) uint8, C-contiguous, and gets the box as RGB at that size, by an antialiased
        bilinear filter. It returns the box, raises `DecodeError`, and releases the GIL while it decodes.

    Raises:
        ConfigurationError: An argument that cannot work, or ``native=True`` and there is none.

    Thread-safety: The function may be called from any number of threads.
    """
    formats = formats_of(column_type)
    decode = load_decode(formats, backend)
    if native is True and _native is None:
        raise ConfigurationError("the native module for JPEG crops was not built")
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
        picture = decode(data, header, "RGB")
        box = _checked(draw(*picture.shape[1:]), *picture.shape[1:])
        _resize(picture, box, out)
        return box

    return crop


def _is_native(header: ImageHeader) -> bool:
    return header.format == "jpeg" and header.bits == 8 and header.num_channels in (1, 3)


def _crop_natively(
    module: Any, data: Buffer, header: ImageHeader, box: Box, out: npt.NDArray[np.uint8], max_pixels: int
) -> bool:
    place = (box.top, box.left, box.height, box.width)
    try:
        module.crop(data, out, place, header.orientation, box.flip, max_pixels, True, True)
    except (ValueError, module.Unsupported) as error:
        # Whether it is damaged is for the library to say: what one of them can read is a picture everywhere.
        _logger.debug("a JPEG goes to the library: %s", error)
        return False
    return True


def _resize(picture: torch.Tensor, box: Box, out: npt.NDArray[np.uint8]) -> None:
    part = picture[:, box.top : box.top + box.height, box.left : box.left + box.width]
    if box.flip:
        part = part.flip(2)
    try:
        resized = interpolate(part.unsqueeze(0), size=out.shape[1:], mode="bilinear", antialias=True)
    except RuntimeError as error:  # torch has no MemoryError
        raise out_of_memory(error) from error
    out[:] = resized[0].numpy()


def _checked(box: Box, height: int, width: int) -> Box:
    fits = box.top >= 0 and box.left >= 0 and box.top + box.height <= height and box.left + box.width <= width
    if not fits or box.height < 1 or box.width < 1:
        raise DecodeError("the crop does not lie within the picture", expected=(height, width), got=box)
    return box
