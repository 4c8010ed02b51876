"""Pillow behind the registry: the reference for what a decoded image is, and the last resort."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import torch
from PIL import ImageOps, features
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
            upright = ImageOps.exif_transpose(image)
            if sixteen:
                pixels = np.array(upright).astype(np.uint16)
            else:
                pixels = np.array(_converted(_in_eight_bits(upright), mode))
    except DecompressionBombError as error:
        raise DecodeError("Pillow decodes no more pixels than PIL.Image.MAX_IMAGE_PIXELS", got=str(error)) from error
    except _DAMAGE as error:
        raise DecodeError(f"damaged {header.format} data", got=str(error)[:200]) from error
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    return torch.from_numpy(pixels).permute(2, 0, 1)


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
    if mode == "UNCHANGED":
        return image
    return image.convert("RGB" if mode == "RGB" else "L")
