"""From a foreign image file to a lossless picture: which files have pixels to keep, and what those are. No I/O.

Pillow reads. What it would change silently (16 bits of colour cut to 8, a second page left out) is refused instead.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import BITSPERSAMPLE, EXTRASAMPLES, SAMPLEFORMAT, SAMPLESPERPIXEL, TiffImageFile

from storage.errors import ConfigurationError, FormatError, SchemaError
from storage.images import check_limits, check_size, parse_header
from storage.importers.image_check import IMAGE_FAULTS, fault_text
from storage.lossless import decode, encode

__all__ = ["LOSSLESS_ENCODINGS", "LOSSLESS_EXTENSIONS", "check_encoding", "to_lossless"]

LOSSLESS_ENCODINGS = ("lossless", "lossless-pack")
"""``lossless-pack`` leaves zstd out: larger, and nothing is left to the processor where an accelerator decodes."""

LOSSLESS_EXTENSIONS = frozenset({"png", "webp", "tif", "tiff", "bmp"})

_FORMATS = ("PNG", "WEBP", "TIFF", "BMP")
_LOSSY_TIFF = frozenset({"jpeg", "tiff_jpeg", "webp"})
_MODES = ("L", "LA", "RGB", "RGBA", "I;16")
_DEEP_COLOUR = "16 bits a channel are kept for gray only, not for colour"
_PREMULTIPLIED, _SIGNED = 1, 2  # values of TIFF's ExtraSamples and SampleFormat


def check_encoding(encoding: str | None) -> str | None:
    """Returns the option if it is one.

    Raises:
        ConfigurationError: It is none.
    """
    if encoding is not None and encoding not in LOSSLESS_ENCODINGS:
        raise ConfigurationError("encode is 'lossless' or 'lossless-pack'", got=encoding)
    return encoding


def to_lossless(data: bytes, *, encoding: str = "lossless", verify: bool = True) -> bytes | str:
    """Encodes an image file's pixels.

    They are upright (EXIF), gray, gray and alpha, RGB or RGBA of 8 bits, or gray of 16; palettes and single bits are
    spread out, a transparent colour becomes alpha. Colour profiles and other metadata are left behind.

    Args:
        data: A PNG, lossless WebP, TIFF or BMP.
        encoding: Of `LOSSLESS_ENCODINGS`.
        verify: Whether the result is decoded and compared.

    Returns:
        The lossless picture; or, in words, why there is none.
    """
    if not data:
        return "the file is empty"
    if data[:3] == b"\xff\xd8\xff":
        return "a JPEG: it is lossy, and its pixels are better kept as they are encoded"
    try:
        if data[:4] == b"RIFF":  # Pillow allocates for a WebP as it opens it
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
        return "the encoded picture does not decode to the same pixels"
    return encoded


def _refusal(image: Image.Image, data: bytes) -> str | None:
    if getattr(image, "n_frames", 1) > 1:
        return "it has more than one picture"
    if image.format == "PNG" and data[12:16] != b"IHDR":
        return "its header is not its first chunk"
    if image.format == "PNG" and data[24] == 16 and data[25] != 0:
        return _DEEP_COLOUR
    if image.format == "WEBP" and not _is_lossless_webp(data):
        return "a lossy WebP: its pixels are better kept as they are encoded"
    if image.format == "TIFF" and image.info.get("compression") in _LOSSY_TIFF:
        return "a lossy TIFF: its pixels are better kept as they are encoded"
    if isinstance(image, TiffImageFile) and image.mode in ("L", "LA", "RGB", "RGBA"):
        return _tiff_loss(image)
    return None


def _tiff_loss(image: TiffImageFile) -> str | None:
    """What Pillow would change of a TIFF's samples, or leave out, on their way to 8 bits; None where it is nothing."""
    tags = image.tag_v2
    if max(tags.get(BITSPERSAMPLE, (1,))) > 8:
        return _DEEP_COLOUR
    if tags.get(SAMPLESPERPIXEL, 1) > len(image.getbands()):
        return "it has channels that are neither colour nor alpha"
    if _PREMULTIPLIED in tags.get(EXTRASAMPLES, ()):
        return "its colours are multiplied by alpha"
    if _SIGNED in tags.get(SAMPLEFORMAT, ()):
        return "its samples have signs"
    return None


def _is_lossless_webp(data: bytes) -> bool:
    """Looks for the chunk that holds the pixels: VP8L, where lossy ones have VP8."""
    at = 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        if kind in (b"VP8L", b"VP8 "):
            return bool(kind == b"VP8L")
        at += 8 + size + size % 2
    return False


def _pixels(image: Image.Image, *, bits: int) -> npt.NDArray[Any] | str:
    """(C, H, W) uint8 or uint16; or why not. ``bits`` are a PNG's, of a channel."""
    key = image.info.get("transparency")  # before anything else: turning upright may lose it
    has_key = key is not None
    if has_key and image.mode.startswith("I"):
        return "16 bits of gray with a transparent one are not supported"
    if isinstance(key, int) and image.mode == "L":
        # Pillow has scaled the gray of a PNG to 8 bits, but not its key.
        image.info["transparency"] = (key & (1 << bits) - 1) * 255 // ((1 << bits) - 1)
    if image.mode in ("1", "L", "P", "PA", "RGB") and (has_key or image.mode == "PA"):
        image = image.convert("RGBA")
    elif image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    if image.mode == "I" and image.format == "PNG":
        image = image.convert("I;16")  # as Pillow before 11 has it
    ImageOps.exif_transpose(image, in_place=True)
    upright = image
    if upright.mode not in _MODES and upright.mode != "I;16B":
        return f"pixels of mode {upright.mode} are not supported: gray, RGB and alpha of 8 bits, or gray of 16"
    pixels = np.asarray(upright)
    return np.ascontiguousarray(pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
