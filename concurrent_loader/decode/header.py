"""Reads image headers with `concurrent_loader.storage.images`, and raises `DecodeError` for damaged ones."""

from __future__ import annotations

from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import Buffer, ImageHeader, check_limits
from concurrent_loader.storage.images import parse_header as read_header

__all__ = ["Buffer", "ImageHeader", "check_size", "parse_header"]


def parse_header(data: Buffer) -> ImageHeader:
    """Reads the header of an encoded image, without decoding it.

    Args:
        data: Encoded image, as a bytes-like object.

    Raises:
        DecodeError: The format is unknown, the file ends too early, or its header is invalid.

    Example:
        >>> from pathlib import Path
        >>> from concurrent_loader.decode import parse_header
        >>> header = parse_header(Path("images/cat/0.jpg").read_bytes())
        >>> header.format, header.bits
        ('jpeg', 8)
    """
    try:
        return read_header(data)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error


def check_size(header: ImageHeader, num_bytes: int, max_pixels: int) -> None:
    """Refuses a too large image before memory is allocated for it, by `concurrent_loader.storage.images.check_limits`.

    Raises:
        DecodeError: The image exceeds a limit, which the message names.
    """
    try:
        check_limits(header, num_bytes, max_pixels)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error
