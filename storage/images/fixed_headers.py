"""Reads headers at a fixed place in the file, and EXIF data behind them: PNG, WebP and the lossless format."""

from __future__ import annotations

import struct

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.exif import parse_orientation
from concurrent_loader.storage.images.header import ImageHeader
from concurrent_loader.storage.lossless import parse_header as parse_lossless_header

__all__ = ["min_png_bytes", "parse_lossless", "parse_png", "parse_webp"]

_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEFLATE_RATIO = 1032
_MAX_CHUNKS = 4096  # before the pixels of a PNG, or in a WebP without animation; real files have a few


def parse_png(view: memoryview) -> ImageHeader:
    """Reads the IHDR chunk, and the eXIf chunk if it is in front of the pixels.

    Raises:
        FormatError: The file does not start with a valid IHDR chunk.
        struct.error: The file ends too early.
    """
    length, kind, width, height, bits, color = struct.unpack_from(">I4sIIBB", view, 8)
    if length != 13 or kind != b"IHDR" or color not in _PNG_CHANNELS:
        raise FormatError("the PNG does not start with a header chunk", got=(length, kind, color))
    return ImageHeader(
        "png", width, height, _PNG_CHANNELS[color], bits, palette=color == 3, orientation=_png_orientation(view)
    )


def _png_orientation(view: memoryview) -> int:
    position = 33  # behind IHDR
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(view):
            return 1
        length, kind = struct.unpack_from(">I4s", view, position)
        if kind == b"eXIf":
            return parse_orientation(view[position + 8 : position + 8 + length])
        if kind == b"IDAT":
            return 1
        position += 12 + length
    return 1


def min_png_bytes(header: ImageHeader) -> int:
    """Returns a lower bound of the length of a complete PNG in bytes."""
    return header.height * (1 + header.width * header.num_channels * header.bits // 8) // _DEFLATE_RATIO


def parse_webp(view: memoryview) -> ImageHeader:
    """Reads the first chunk: VP8 (lossy), VP8L (lossless) or VP8X (extended); of the latter, also the EXIF chunk.

    Raises:
        FormatError: The first chunk is unknown or invalid.
        struct.error, IndexError: The file ends too early.
    """
    kind = bytes(view[12:16])
    if kind == b"VP8 ":
        tag, start_code, width, height = struct.unpack_from("<3s3sHH", view, 20)
        if tag[0] & 1 or start_code != b"\x9d\x01\x2a":
            raise FormatError("the WebP does not start with a key frame", got=start_code)
        return ImageHeader("webp", width & 0x3FFF, height & 0x3FFF, 3)
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", view, 20)
        if signature != 0x2F:
            raise FormatError("the lossless WebP has no signature", expected=0x2F, got=signature)
        num_channels = 4 if bits >> 28 & 1 else 3
        return ImageHeader("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, num_channels)
    if kind == b"VP8X":
        flags, low_width, high_width, low_height, high_height = struct.unpack_from("<B3xHBHB", view, 20)
        width, height = (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
        return ImageHeader(
            "webp", width, height, 4 if flags & 0x10 else 3, animated=bool(flags & 0x02), exif=bool(flags & 0x08),
            orientation=_webp_orientation(view) if flags & 0x08 else 1,
        )  # fmt: skip
    raise FormatError("the WebP starts with an unknown chunk", got=kind)


def _webp_orientation(view: memoryview) -> int:
    position = 12
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(view):
            return 1
        kind, length = struct.unpack_from("<4sI", view, position)
        if kind == b"EXIF":
            data = view[position + 8 : position + 8 + length]
            return parse_orientation(data[6:] if bytes(data[:6]) == b"Exif\0\0" else data)
        position += 8 + length + length % 2
    return 1


def parse_lossless(view: memoryview) -> ImageHeader:
    """Reads the header of a lossless image.

    Raises:
        FormatError: The header is invalid.
    """
    header = parse_lossless_header(view)
    return ImageHeader("lossless", header.width, header.height, header.num_channels, header.bits)
