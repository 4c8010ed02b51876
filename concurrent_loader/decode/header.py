"""Reads the header of an encoded image (`storage.images`) for decoders, and reports damage as `DecodeError`."""

from __future__ import annotations

from concurrent_loader.errors import DecodeError
from storage.errors import FormatError
from storage.images import Buffer, ImageHeader, check_limits
from storage.images import parse_header as read_header

__all__ = ["Buffer", "ImageHeader", "check_size", "parse_header"]


def parse_header(data: Buffer) -> ImageHeader:
    """Reads the header of an image whose format shows in its first bytes.

    Raises:
        DecodeError: The format is unknown, the file ends too early, or its header makes no sense.
    """
    try:
        return read_header(data)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error


def check_size(header: ImageHeader, num_bytes: int, max_pixels: int) -> None:
    """Refuses an image before memory is allocated for it; see `storage.images.check_limits`.

    Raises:
        DecodeError: Names the limit and what the image has.
    """
    try:
        check_limits(header, num_bytes, max_pixels)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error
