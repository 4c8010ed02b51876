"""Checks that an encoded image can be decoded, before it becomes a sample. No I/O."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Literal, get_args

from PIL import Image

from concurrent_loader.storage.errors import ConfigurationError, FormatError, SchemaError
from concurrent_loader.storage.images import FORMATS, check_limits, parse_header
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["IMAGE_FAULTS", "Verification", "check_verification", "fault_text", "image_fault"]

Verification = Literal["decode", "header", "none"]

# Pillow raises these for damaged files, depending on the format (AVIF: RuntimeError); its own classes are OSErrors.
# Warnings are raised if the caller's filters turn them into errors.
IMAGE_FAULTS = (OSError, RuntimeError, SyntaxError, ValueError, TypeError, EOFError, IndexError, KeyError,
           OverflowError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError, Warning)  # fmt: skip

_PILLOW_FORMATS = tuple(row.pillow_name.upper() for row in FORMATS.values() if row.pillow_name)
_SEGMENT = struct.Struct(">HH")  # marker and length of a JPEG segment
_SOS = 0xFFDA
# Manifests keep the reasons, so they must not contain addresses.
_BUFFER = re.compile(r"<_io\.BytesIO object at 0x[0-9a-f]+>")


def check_verification(verify: str) -> Verification:
    """Returns a valid option.

    Raises:
        ConfigurationError: The option is invalid.
    """
    for known in get_args(Verification):
        if verify == known:
            return known  # type: ignore[no-any-return]
    raise ConfigurationError("verify must be 'decode', 'header' or 'none'", got=verify)


def fault_text(error: BaseException) -> str:
    """Returns Pillow's message without memory addresses."""
    return _BUFFER.sub("the data", str(error)) or type(error).__name__


def image_fault(data: bytes, *, column: Column, verify: Verification) -> str | None:
    """Returns the fault of an encoded image, or None.

    Args:
        data: Bytes of the file.
        column: Column of the image, which determines the accepted formats.
        verify: ``"decode"`` decodes every pixel, ``"header"`` reads format and size, ``"none"`` only the first bytes.
    """
    if not data:
        return "the file is empty"
    try:
        column.encode(data)
    except SchemaError as error:
        return f"not a {column.type} ({error.got})" if error.got else str(error)
    if verify == "none":
        return None
    try:
        # Checked before Pillow, which allocates memory when it opens a WebP or AVIF. The loader has the same limits.
        header = parse_header(data)
        check_limits(header, len(data))
    except FormatError as error:
        return str(error)
    # A JPEG may be followed by a preview (MPO), which decoders ignore.
    if verify == "decode" and header.animated:
        return "an animation is not a single image"
    if header.format == "jpeg" and (_has_scan(data) if verify == "header" else _decodes_at_an_eighth(data)):
        return None
    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            if verify == "decode":
                image.load()
    except IMAGE_FAULTS as error:
        return f"it does not decode: {fault_text(error)}"
    return None


def _has_scan(data: bytes) -> bool:
    """Returns whether the segments of a JPEG lead to compressed data. Pillow gives the reason if they do not."""
    at, last = 2, len(data) - 4
    while at <= last:
        marker, length = _SEGMENT.unpack_from(data, at)
        if marker == _SOS:
            return at + 2 + int(length) < len(data)
        if not 0xFF00 < marker < 0xFFFF:
            return False
        at += 2 + length if length > 2 else 4
    return False


def _decodes_at_an_eighth(data: bytes) -> bool:
    """Returns whether a JPEG decodes to gray at an eighth of its size.

    libjpeg reads every bit of the compressed data for that, and so finds the faults of a whole decode in a third of the
    time. It leaves out the transform of the coefficients, which cannot fail.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            image.draft("L", (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
    except IMAGE_FAULTS:
        return False  # a whole decode gives the reason
    return True
