"""Encodes image files of lossless formats as lossless images. No I/O.

Pillow reads the files. Files that Pillow would change silently (16-bit colour cut to 8, a second page left out) are
rejected.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import BITSPERSAMPLE, EXTRASAMPLES, SAMPLEFORMAT, SAMPLESPERPIXEL, TiffImageFile

from concurrent_loader.storage.errors import ConfigurationError, FormatError, SchemaError
from concurrent_loader.storage.images import check_limits, check_size, parse_header
from concurrent_loader.storage.importers.image_check import IMAGE_FAULTS, fault_text
from concurrent_loader.storage.lossless import decode, encode

__all__ = ["LOSSLESS_ENCODINGS", "LOSSLESS_EXTENSIONS", "check_encoding", "to_lossless"]

LOSSLESS_ENCODINGS = ("lossless", "lossless-pack")
"""``lossless-pack`` omits zstd: the files are larger, but an accelerator decodes them without the processor."""

LOSSLESS_EXTENSIONS = frozenset({"png", "webp", "tif", "tiff", "bmp"})

_FORMATS = ("PNG", "WEBP", "TIFF", "BMP")
_LOSSY_TIFF = frozenset({"jpeg", "tiff_jpeg", "webp"})
_MODES = ("L", "LA", "RGB", "RGBA", "I;16")
_DEEP_COLOUR = "16 bits a channel are kept for gray only, not for colour"
_PREMULTIPLIED, _SIGNED = 1, 2  # values of ExtraSamples and SampleFormat in TIFF


def check_encoding(encoding: str | None) -> str | None:
    """Returns a valid option.

    Raises:
        ConfigurationError: The option is invalid.
    """
    if encoding is not None and encoding not in LOSSLESS_ENCODINGS:
        raise ConfigurationError("encode must be 'lossless' or 'lossless-pack'", got=encoding)
    return encoding


def to_lossless(data: bytes, *, encoding: str = "lossless", verify: bool = True) -> bytes | str:
    """Encodes the pixels of an image file.

    The result is upright (EXIF) and has 8-bit gray, gray with alpha, RGB or RGBA, or 16-bit gray. Palettes and single
    bits are expanded, and a transparent colour becomes alpha. Colour profiles and other metadata are dropped.

    Args:
        data: Bytes of a PNG, lossless WebP, TIFF or BMP.
        encoding: One of `LOSSLESS_ENCODINGS`.
        verify: Whether to decode the result and compare it.

    Returns:
        Lossless image; or, as text, the reason why the file was rejected.
    """
    if not data:
        return "the file is empty"
    if data[:3] == b"\xff\xd8\xff":
        return "a JPEG is lossy; keep it as it is encoded"
    try:
        if data[:4] == b"RIFF":  # Pillow allocates memory when it opens a WebP
            check_limits(parse_header(data), len(data))
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            check_size(*image.size)
            reason = _refusal(image, data)
            if reason is not None:
                return reason
            pixels = _pixels(image, bits=data[24] if image.format == "PNG" else 8)
    except FormatError as error:
        return str(error)
    except IMAGE_FAULTS as error:
        return f"it does not decode: {fault_text(error)}"
    if isinstance(pixels, str):
        return pixels
    try:
        encoded = encode(pixels, compress=encoding != "lossless-pack")
    except SchemaError as error:
        return str(error)
    if verify and not np.array_equal(decode(encoded, max_pixels=pixels.size), pixels):
        return "the encoded image does not decode to the same pixels"
    return encoded


def _refusal(image: Image.Image, data: bytes) -> str | None:
    if getattr(image, "n_frames", 1) > 1:
        return "it has more than one image"
    if image.format == "PNG" and data[12:16] != b"IHDR":
        return "its header is not its first chunk"
    if image.format == "PNG" and data[24] == 16 and data[25] != 0:
        return _DEEP_COLOUR
    if image.format == "WEBP" and not _is_lossless_webp(data):
        return "a lossy WebP; keep it as it is encoded"
    if image.format == "TIFF" and image.info.get("compression") in _LOSSY_TIFF:
        return "a lossy TIFF; keep it as it is encoded"
    if isinstance(image, TiffImageFile) and image.mode in ("L", "LA", "RGB", "RGBA"):
        return _tiff_loss(image)
    return None


def _tiff_loss(image: TiffImageFile) -> str | None:
    """Returns what Pillow would change or drop when it converts a TIFF to 8 bits; None if nothing."""
    tags = image.tag_v2
    if max(tags.get(BITSPERSAMPLE, (1,))) > 8:
        return _DEEP_COLOUR
    if tags.get(SAMPLESPERPIXEL, 1) > len(image.getbands()):
        return "it has channels that are neither colour nor alpha"
    if _PREMULTIPLIED in tags.get(EXTRASAMPLES, ()):
        return "its colours are multiplied by alpha"
    if _SIGNED in tags.get(SAMPLEFORMAT, ()):
        return "its samples are signed"
    return None


def _is_lossless_webp(data: bytes) -> bool:
    """Returns whether the pixels are in a VP8L chunk; lossy files have VP8."""
    at = 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        if kind in (b"VP8L", b"VP8 "):
            return bool(kind == b"VP8L")
        at += 8 + size + size % 2
    return False


def _pixels(image: Image.Image, *, bits: int) -> npt.NDArray[Any] | str:
    """Returns the pixels (C, H, W) as uint8 or uint16, or the reason why not; ``bits`` is a PNG's bits per channel."""
    key = image.info.get("transparency")  # read first, because turning the image upright may drop it
    has_key = key is not None
    if has_key and image.mode.startswith("I"):
        return "16-bit gray with a transparent value is not supported"
    if isinstance(key, int) and image.mode == "L":
        # Pillow scales the gray of a PNG to 8 bits, but not its transparency key.
        image.info["transparency"] = (key & (1 << bits) - 1) * 255 // ((1 << bits) - 1)
    if image.mode in ("1", "L", "P", "PA", "RGB") and (has_key or image.mode == "PA"):
        image = image.convert("RGBA")
    elif image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    if image.mode == "I" and image.format == "PNG":
        image = image.convert("I;16")  # needed by Pillow before 11
    ImageOps.exif_transpose(image, in_place=True)
    upright = image
    if upright.mode not in _MODES and upright.mode != "I;16B":
        return f"pixels of mode {upright.mode} are not supported: gray, RGB and alpha of 8 bits, or gray of 16"
    pixels = np.asarray(upright)
    return np.ascontiguousarray(pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
