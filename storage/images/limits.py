"""What an image may cost to decode: pixels, memory, and whether its file can be whole at all. Decided before decoding.

The memory is the most that any of the libraries needs for the whole image, its own buffers included, in any mode, so
that a file is accepted or refused alike on every machine. `tests/storage/images/test_limits.py` holds the libraries
to these figures.
"""

from __future__ import annotations

from storage.errors import FormatError
from storage.images.header import ImageHeader

__all__ = ["DEFAULT_MAX_PIXELS", "check_limits", "check_size", "decoding_bytes"]

DEFAULT_MAX_PIXELS = 178_956_970  # Pillow's: half a GiB of RGB

_MAX_MEMORY_BYTES = 2 << 30  # for one image; a larger max_pixels raises it to
_BYTES_PER_PIXEL = 12  # for each pixel of max_pixels
_MAX_SIDE = 1_000_000  # as libpng: libraries also allocate by the row

# Bytes of memory that decoding takes for each pixel, at most.
_MEMORY = {"jpeg": 9, "png": 9, "gif": 8, "webp": 17, "avif": 20, "lossless": 14}
_SCANS_MEMORY = 7  # of a JPEG of several scans, and 2 for each component's coefficients

# The most pixels that a byte of the file can stand for.
_JPEG_DENSITY = 512  # Huffman codes: a bit for each 8 × 8 block
_HUFFMAN_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_DEFLATE_RATIO = 1032
_LZW_DENSITY = 2731  # a code of 12 bits for a run of 4096 pixels


def decoding_bytes(header: ImageHeader) -> int:
    """Returns an upper bound of the memory in bytes that decoding the whole image takes, but for some megabytes."""
    per_pixel = _SCANS_MEMORY + 2 * header.num_channels if header.several_scans else _MEMORY[header.format]
    return per_pixel * header.num_pixels


def check_limits(header: ImageHeader, num_bytes: int, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Refuses an image that would take too much memory, or whose file is too short for its size.

    Args:
        header: What `parse_header` read.
        num_bytes: Length of the file.
        max_pixels: The most pixels. Decoding may take 2 GiB of memory, or 12 bytes for each of these pixels.

    Raises:
        FormatError: Names the limit and what the image has.
    """
    check_size(header.width, header.height, header.num_pixels, max_pixels=max_pixels)
    size = f"{header.width} x {header.height}"
    if (least := _least_file_bytes(header)) > num_bytes:
        raise FormatError(
            f"the {header.format} image ends too early for its size of {size}",
            expected=f"at least {least} bytes",
            got=f"{num_bytes} bytes",
        )
    most = max(_MAX_MEMORY_BYTES, max_pixels * _BYTES_PER_PIXEL)
    if (needed := decoding_bytes(header)) > most:
        raise FormatError(
            f"the image is too large: decoding it as {header.format} may take {needed} bytes of memory",
            expected=f"at most {most} (a larger max_pixels= allows {_BYTES_PER_PIXEL} for each pixel)",
            got=size,
        )


def check_size(width: int, height: int, num_pixels: int = 0, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Refuses an image by its size alone.

    Args:
        width: In pixels.
        height: In pixels.
        num_pixels: Pixels of the largest part of the file, where they may be more than width × height.
        max_pixels: The most pixels.

    Raises:
        FormatError: Names the limit and the size.
    """
    size = f"{width} x {height}"
    if max(width * height, num_pixels) > max_pixels:
        raise FormatError("the image is too large", expected=f"at most {max_pixels} pixels (max_pixels=)", got=size)
    if max(width, height) > _MAX_SIDE:
        raise FormatError("the image is too large", expected=f"sides of at most {_MAX_SIDE} pixels", got=size)


def _least_file_bytes(header: ImageHeader) -> int:
    """Returns a lower bound of the length of a whole file; 0 for formats that need no data for a blank image."""
    if header.format == "jpeg" and header.sof in _HUFFMAN_FRAMES:
        return header.width * header.height // _JPEG_DENSITY
    if header.format == "png":
        return header.height * (1 + header.width * header.num_channels * header.bits // 8) // _DEFLATE_RATIO
    if header.format == "gif":
        return header.coded_pixels // _LZW_DENSITY
    return 0
