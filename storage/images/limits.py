"""Limits what an image may cost to decode: pixels, memory, and a minimum length of the file. Checked before decoding.

The memory is an upper bound over all libraries and modes, including the library's own buffers. Every machine therefore
accepts or refuses the same files. `tests/storage/images/test_limits.py` measures the libraries.
"""

from __future__ import annotations

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.formats import FORMATS
from concurrent_loader.storage.images.header import ImageHeader

__all__ = ["DEFAULT_MAX_PIXELS", "check_limits", "check_size", "decoding_bytes"]

DEFAULT_MAX_PIXELS = 178_956_970  # Pillow's default: 512 MiB of RGB

_MAX_MEMORY_BYTES = 2 << 30  # for one image; a larger max_pixels raises the limit
_BYTES_PER_PIXEL = 12  # memory allowed for each pixel of max_pixels
_MAX_SIDE = 1_000_000  # libpng's limit: libraries also allocate by the row

_SEVERAL_SCANS_BYTES = 7  # per pixel of a JPEG with several scans, plus
_COEFFICIENT_BYTES = 2  # for each component


def decoding_bytes(header: ImageHeader) -> int:
    """Returns an upper bound of the memory that decoding the whole image takes, in bytes, up to a few megabytes."""
    if header.several_scans:
        return (_SEVERAL_SCANS_BYTES + _COEFFICIENT_BYTES * header.num_channels) * header.num_pixels
    return FORMATS[header.format].bytes_per_pixel * header.num_pixels


def check_limits(header: ImageHeader, num_bytes: int, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Refuses an image that would take too much memory, or whose file is too short for its size.

    Args:
        header: Header of the image, from `parse_header`.
        num_bytes: Length of the file in bytes.
        max_pixels: Maximum number of pixels. Decoding may take 2 GiB of memory, or 12 bytes for each of these pixels.

    Raises:
        FormatError: The image exceeds a limit, which the message names.
    """
    check_size(header.width, header.height, header.num_pixels, max_pixels=max_pixels)
    size = f"{header.width} x {header.height}"
    if (min_bytes := FORMATS[header.format].min_file_bytes(header)) > num_bytes:
        raise FormatError(
            f"the {header.format} image ends too early for its size of {size}",
            expected=f"at least {min_bytes} bytes",
            got=f"{num_bytes} bytes",
        )
    max_bytes = max(_MAX_MEMORY_BYTES, max_pixels * _BYTES_PER_PIXEL)
    if (needed := decoding_bytes(header)) > max_bytes:
        raise FormatError(
            f"the image is too large: decoding it as {header.format} may take {needed} bytes of memory",
            expected=f"at most {max_bytes}; a larger max_pixels= allows {_BYTES_PER_PIXEL} bytes for each pixel",
            got=size,
        )


def check_size(width: int, height: int, num_pixels: int = 0, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Refuses an image by its size alone.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        num_pixels: Pixels of the largest part of the file, where they may exceed width × height.
        max_pixels: Maximum number of pixels.

    Raises:
        FormatError: The image exceeds a limit, which the message names.
    """
    size = f"{width} x {height}"
    if max(width * height, num_pixels) > max_pixels:
        raise FormatError("the image is too large", expected=f"at most {max_pixels} pixels (max_pixels=)", got=size)
    if max(width, height) > _MAX_SIDE:
        raise FormatError("the image is too large", expected=f"sides of at most {_MAX_SIDE} pixels", got=size)
