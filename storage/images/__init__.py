"""Reads the header of an encoded image without decoding it, and limits what decoding may cost."""

from concurrent_loader.storage.images.formats import (
    COLUMN_FORMATS,
    FORMATS,
    IMAGE_SUFFIXES,
    ImageFormat,
    ImageType,
    find_format,
    parse_header,
)
from concurrent_loader.storage.images.header import Buffer, ImageHeader
from concurrent_loader.storage.images.limits import DEFAULT_MAX_PIXELS, check_limits, check_size, decoding_bytes

__all__ = [
    "COLUMN_FORMATS",
    "DEFAULT_MAX_PIXELS",
    "FORMATS",
    "IMAGE_SUFFIXES",
    "Buffer",
    "ImageFormat",
    "ImageHeader",
    "ImageType",
    "check_limits",
    "check_size",
    "decoding_bytes",
    "find_format",
    "parse_header",
]
