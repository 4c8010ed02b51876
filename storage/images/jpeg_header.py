"""Reads a JPEG's segments up to its frame header."""

from __future__ import annotations

import struct

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.exif import parse_orientation
from concurrent_loader.storage.images.header import ImageHeader
from concurrent_loader.storage.images.jpeg_scans import check_scans

__all__ = ["min_jpeg_bytes", "parse_jpeg"]

_MAX_SEGMENTS = 4096  # before the frame header; real files have a few dozen at most
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a segment
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_APP1, _APP14 = 0xE1, 0xEE
_MAX_PIXELS_PER_BYTE = 512  # the shortest Huffman code is one bit, for a block of 8 × 8 pixels


def parse_jpeg(view: memoryview) -> ImageHeader:
    """Reads the segments up to the frame header, and checks the number of scans behind it.

    Raises:
        FormatError: The segments are invalid, or the JPEG has too many scans.
        struct.error, IndexError: The file ends too early.
    """
    position, transform = 2, None
    orientation: int | None = None  # of the first EXIF segment; others may continue it
    for _ in range(_MAX_SEGMENTS):
        if view[position] != 0xFF:
            raise FormatError("a JPEG marker is missing", expected=0xFF, got=view[position])
        while view[position] == 0xFF:  # any number of fill bytes
            position += 1
        marker = view[position]
        position += 1
        if marker in _NO_LENGTH:
            continue
        if marker in _SOF:
            length, bits, height, width, num_components = struct.unpack_from(">HBHHB", view, position)
            if length != 8 + 3 * num_components:
                raise FormatError("the frame header of the JPEG has an invalid length", got=length)
            factors = view[position + 9 : position + length : 3]
            if position + length > len(view):
                raise IndexError
            several = check_scans(view[position + length :], marker, num_components, width * height)
            return ImageHeader(
                "jpeg", width, height, num_components, bits, sof=marker, orientation=orientation or 1,
                sampling=tuple((factor >> 4, factor & 15) for factor in factors), transform=transform,
                several_scans=several,
            )  # fmt: skip
        if marker in (0x00, 0xD8, 0xD9, 0xDA):
            raise FormatError("the JPEG has no frame header before its data", got=f"marker 0x{marker:02X}")
        (length,) = struct.unpack_from(">H", view, position)
        if length < 2:
            raise FormatError("a JPEG segment has an invalid length", got=length)
        if marker == _APP1 and orientation is None and bytes(view[position + 2 : position + 8]) == b"Exif\0\0":
            orientation = parse_orientation(view[position + 8 : position + length])
        elif marker == _APP14 and length >= 14 and bytes(view[position + 2 : position + 7]) == b"Adobe":
            transform = view[position + 13]
        position += length
    raise FormatError("the JPEG has too many segments before its frame header", expected=f"at most {_MAX_SEGMENTS}")


def min_jpeg_bytes(header: ImageHeader) -> int:
    """Returns a lower bound of the length of a complete file in bytes; 0 for arithmetic coding."""
    return header.width * header.height // _MAX_PIXELS_PER_BYTE if header.sof in _HUFFMAN_FRAMES else 0
