"""Whether an encoded image can be trusted to decode: asked of every file before it becomes a sample. No I/O."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Literal, get_args

from PIL import Image

from storage.errors import ConfigurationError, FormatError, SchemaError
from storage.images import check_limits, parse_header
from storage.shards.columns import Column

__all__ = ["IMAGE_FAULTS", "Verification", "check_verification", "fault_text", "image_fault"]

Verification = Literal["decode", "header", "none"]

# What Pillow raises for damaged files, format by format (AVIF: RuntimeError); its own classes are OSErrors. A Warning
# is raised where the caller's filters make errors of them.
IMAGE_FAULTS = (OSError, RuntimeError, SyntaxError, ValueError, TypeError, EOFError, IndexError, KeyError,
           OverflowError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError, Warning)  # fmt: skip


_BUFFER = re.compile(r"<_io\.BytesIO object at 0x[0-9a-f]+>")  # reasons are kept in manifests: no addresses in them


def check_verification(verify: str) -> Verification:
    """Returns the option if it is one.

    Raises:
        ConfigurationError: It is none.
    """
    for known in get_args(Verification):
        if verify == known:
            return known  # type: ignore[no-any-return]
    raise ConfigurationError("verify is 'decode', 'header' or 'none'", got=verify)


def fault_text(error: BaseException) -> str:
    """What Pillow said, in words that can be kept."""
    return _BUFFER.sub("the data", str(error)) or type(error).__name__


_ANIMATED = frozenset({"WEBP", "GIF", "AVIF"})


def image_fault(data: bytes, *, column: Column, verify: Verification) -> str | None:
    """Says what is wrong with an encoded image, or None.

    Args:
        data: The whole file.
        column: That it is meant for; decides which formats are welcome.
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
        # Before Pillow, which allocates for a WebP or AVIF as it opens it. The loader has the same limits.
        check_limits(parse_header(data), len(data))
    except FormatError as error:
        return str(error)
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "AVIF", "GIF")) as image:
            if verify == "decode":
                # A JPEG may have a preview behind it (MPO): no decoder minds.
                if image.format in _ANIMATED and getattr(image, "is_animated", False):
                    return "an animation is not one picture"
                image.load()
    except IMAGE_FAULTS as error:
        return f"it does not decode: {fault_text(error)}"
    return None
