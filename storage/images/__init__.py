"""What an encoded image says about itself, read without decoding it, and what decoding it may cost."""

from storage.images.header import Buffer, ImageHeader, parse_header
from storage.images.limits import DEFAULT_MAX_PIXELS, check_limits, check_size, decoding_bytes

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "Buffer",
    "ImageHeader",
    "check_limits",
    "check_size",
    "decoding_bytes",
    "parse_header",
]
