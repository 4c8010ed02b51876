"""Pillow behind the registry: the reference for what a decoded image is, and the last resort."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import features
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import DecompressionBombError, Image, fromarray
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from concurrent_loader.decode.header import Buffer, ImageHeader
from concurrent_loader.errors import DecodeError

__all__ = ["FORMATS", "decode"]

# The class of the known format, not Image.open: no other parser sees the bytes, and the cap on pixels is the caller's,
# not Pillow's process-wide one (but that of WebP and GIF looks at twice that one all the same).
_FILES: dict[str, Callable[[io.BytesIO], ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
}
if features.check("avif"):  # from 11.3 on
    from PIL.AvifImagePlugin import AvifImageFile

    _FILES["avif"] = AvifImageFile
FORMATS = frozenset(_FILES)

_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
_STRIP_PIXELS = 1 << 18

# `Warning`: of damaged EXIF data Pillow only warns, which is an exception where the user's filters say so.
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
    """Decodes an image: (C, H, W) uint8; uint16 of 16-bit gray. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged or of a kind that the library does not know.
    """
    if header.format not in _FILES:
        raise DecodeError("Pillow decodes no such image here", expected="pip install 'pillow>=11.3'", got=header.format)
    sixteen = header.format == "png" and header.bits == 16 and mode == "UNCHANGED"
    if sixteen and header.num_channels != 1:
        raise DecodeError("Pillow has no 16-bit colour or alpha", expected="pip install 'torchcodec>=0.16'")
    try:
        with _FILES[header.format](io.BytesIO(data)) as image:
            image.load()
            orientation = image.getexif().get(_ORIENTATION, 1)
            if sixteen:
                pixels = _in_strips(image, orientation, lambda strip: np.asarray(strip).astype(np.uint16))
            else:
                pixels = _in_strips(
                    image, orientation, lambda strip: np.asarray(_converted(_in_eight_bits(strip), mode))
                )
    except DecompressionBombError as error:
        raise DecodeError("Pillow decodes no more pixels than PIL.Image.MAX_IMAGE_PIXELS", got=str(error)) from error
    except _DAMAGE as error:
        raise DecodeError(f"damaged {header.format} data", got=str(error)[:200]) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _in_strips(image: Image, orientation: int, convert: Callable[[Image], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Converts a loaded image a few rows at a time: (H, W, C), upright.

    Whole, Pillow's copies (turned, converted, as bytes) take three to four times the memory of the image.
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
    """Returns a view of an upright image whose rows and columns are those of the file; orientations are EXIF's."""
    if orientation in _TURNED:
        upright = upright.transpose(1, 0, 2)
    if orientation in (3, 4, 6, 7):
        upright = upright[::-1]
    return upright[:, ::-1] if orientation in (2, 3, 7, 8) else upright


def _in_eight_bits(image: Image) -> Image:
    """Scales 16-bit gray, which Pillow would clip, and spreads bits and palettes out."""
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
