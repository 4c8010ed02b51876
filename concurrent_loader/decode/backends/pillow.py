"""Decodes images with Pillow: the reference for all other libraries, and the fallback."""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import DecompressionBombError, Image, fromarray
from PIL.ImageFile import ImageFile

from concurrent_loader.errors import DecodeError
from concurrent_loader.storage import images
from concurrent_loader.storage.images import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

_logger = logging.getLogger(__name__)


def _load_plugins() -> dict[str, Callable[[io.BytesIO], ImageFile]]:
    """Returns Pillow's class for each format that this build of Pillow supports.

    The class is called instead of ``Image.open``, so that no other parser sees the bytes, and the caller's limit on
    pixels holds instead of Pillow's process-wide one. (WebP and GIF check twice the process-wide limit all the same.)
    """
    found = {}
    for row in images.FORMATS.values():
        if row.pillow_name is None:
            continue
        try:
            plugin = import_module(f"PIL.{row.pillow_name}ImagePlugin")
        except ImportError as error:  # AVIF before Pillow 11.3
            _logger.info("Pillow does not decode %s: %s", row.name, error)
            continue
        if getattr(plugin, "SUPPORTED", True):
            found[row.name] = getattr(plugin, f"{row.pillow_name}ImageFile")
    return found


_FILES = _load_plugins()
FORMATS = frozenset(_FILES)

_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
_TURNED_BY_HEADER = frozenset({"jpeg", "png", "webp"})  # as boxes and crops are; Pillow also looks into XMP
_STRIP_PIXELS = 1 << 18

# `Warning`: Pillow warns about damaged EXIF data; the user's filters may turn the warning into an exception.
_DAMAGE = (
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    struct.error,
    zlib.error,
    Warning,
)


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image to (C, H, W) uint8, or uint16 for 16-bit gray. ``mode`` is "RGB", "GRAY", "UNCHANGED"
    or, for a palette, "INDICES".

    Raises:
        DecodeError: The data is damaged, or the library does not support it.
    """
    if header.format not in _FILES:
        raise DecodeError(
            "the installed Pillow does not decode this format", expected="pip install 'pillow>=11.3'", got=header.format
        )
    sixteen = header.format == "png" and header.bits == 16 and mode == "UNCHANGED"
    if sixteen and header.num_channels != 1:
        raise DecodeError("Pillow does not decode 16-bit color or alpha", expected="pip install 'torchcodec>=0.16'")
    try:
        with _FILES[header.format](io.BytesIO(data)) as image:
            image.load()
            orientation = (
                header.orientation if header.format in _TURNED_BY_HEADER else image.getexif().get(_ORIENTATION, 1)
            )
            if mode == "INDICES":
                pixels = _in_strips(image, orientation, np.asarray)
            elif sixteen:
                pixels = _in_strips(image, orientation, lambda strip: np.asarray(strip).astype(np.uint16))
            else:
                pixels = _in_strips(
                    image, orientation, lambda strip: np.asarray(_converted(_in_eight_bits(strip), mode))
                )
    except DecompressionBombError as error:
        raise DecodeError("Pillow refuses more pixels than PIL.Image.MAX_IMAGE_PIXELS", got=str(error)) from error
    except _DAMAGE as error:
        raise DecodeError(f"damaged {header.format} data", got=str(error)[:200]) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _in_strips(image: Image, orientation: int, convert: Callable[[Image], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Converts a loaded image to upright (H, W, C), a few rows at a time.

    Pillow's copies of a whole image (turned, converted, as bytes) would take three to four times its memory.
    """
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    stored: npt.NDArray[Any] | None = None
    for top in range(0, height, rows):
        strip = image if rows >= height else image.crop((0, top, width, min(height, top + rows)))
        pixels = convert(strip)
        if pixels.ndim == 2:
            pixels = pixels[:, :, np.newaxis]
        if stored is None:
            turned = (width, height) if orientation in _TURNED else (height, width)
            upright = np.empty((*turned, pixels.shape[2]), pixels.dtype)
            stored = _as_stored(upright, orientation)
        stored[top : top + rows] = pixels
    return upright


def _as_stored(upright: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Returns a view of an upright image in the row and column order of the file. ``orientation`` is EXIF's."""
    if orientation in _TURNED:
        upright = upright.transpose(1, 0, 2)
    if orientation in (3, 4, 6, 7):
        upright = upright[::-1]
    return upright[:, ::-1] if orientation in (2, 3, 7, 8) else upright


def _in_eight_bits(image: Image) -> Image:
    """Scales 16-bit gray, which Pillow would clip, and expands bits and palettes."""
    if image.mode.startswith("I"):
        sixteen = np.asarray(image).astype(np.float32)
        return fromarray(np.rint(sixteen / 257).clip(0, 255).astype(np.uint8))
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    return image


def _converted(image: Image, mode: str) -> Image:
    wanted = {"RGB": "RGB", "GRAY": "L"}.get(mode, image.mode)
    return image if image.mode == wanted else image.convert(wanted)
