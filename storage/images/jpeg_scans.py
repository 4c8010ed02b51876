"""Limits the scans of a JPEG: each scan makes a decoder pass over the whole image, and may take only a few bytes.

Source: ITU-T T.81, B.1 for markers and segments. The count reads the same markers as libjpeg, so it cannot miss a scan
that libjpeg would decode.
"""

from __future__ import annotations

import re
import struct

from concurrent_loader.storage.errors import FormatError

__all__ = ["check_scans", "max_scans"]

_SOS, _EOI = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")  # except stuffed bytes and restart markers
_SCAN = b"\xff\xda"
_MAX_SEGMENTS = 4096

_ALWAYS_ALLOWED, _MAX_SCANS = 32, 500  # encoders write about ten scans
_MAX_SCAN_PIXELS = 1 << 30  # scans × pixels beyond `_ALWAYS_ALLOWED`; libjpeg takes 0.5 s for 2**30 empty ones


def max_scans(sof: int, num_components: int, num_pixels: int) -> int:
    """Returns the maximum number of scans of a frame.

    A sequential frame has at most one scan for each component. A progressive frame may have 32 scans at any size, and
    up to 500 while scans × pixels stay below 2**30.
    """
    if not _is_progressive(sof):
        return num_components
    return min(_MAX_SCANS, max(_ALWAYS_ALLOWED, _MAX_SCAN_PIXELS // max(1, num_pixels)))


def check_scans(view: memoryview, sof: int, num_components: int, num_pixels: int) -> bool:
    """Checks the number of scans.

    Args:
        view: Bytes of the file after the frame header.
        sof: Marker of the frame, 0xC0 to 0xCF.
        num_components: Number of components of the frame.
        num_pixels: Width × height of the image.

    Returns:
        Whether decoders pass over the image more than once.

    Raises:
        FormatError: The file has more scans than `max_scans` allows.
        struct.error, IndexError: The file ends before its first scan.
    """
    start = _first_scan(view)
    if not _is_progressive(sof) and view[start + 4] >= num_components:
        return False  # this scan contains all components; libjpeg refuses a second one
    limit, data = max_scans(sof, num_components, num_pixels), bytes(view[start:])
    # `count` is fast but includes previews and videos after the image; only then the markers are read one by one.
    if data.count(_SCAN) > limit and _num_scans(data, limit) > limit:
        raise FormatError("the JPEG has too many scans", expected=f"at most {limit} at {num_pixels} pixels")
    return True


def _is_progressive(sof: int) -> bool:
    return sof & 3 == 2


def _first_scan(view: memoryview) -> int:
    """Returns the position of the first scan's marker."""
    position = 0
    for _ in range(_MAX_SEGMENTS):
        if view[position] != 0xFF:
            raise FormatError("a JPEG marker is missing", expected=0xFF, got=view[position])
        while view[position + 1] == 0xFF:
            position += 1
        marker = view[position + 1]
        if marker == _SOS:
            return position
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            position += 2
            continue
        if marker in (0x00, _EOI):
            raise FormatError("the JPEG has no scan", got=f"marker 0x{marker:02X}")
        (length,) = struct.unpack_from(">H", view, position + 2)
        if length < 2:
            raise FormatError("a JPEG segment has an invalid length", got=length)
        position += 2 + length
    raise FormatError("the JPEG has too many segments before its first scan", expected=f"at most {_MAX_SEGMENTS}")


def _num_scans(data: bytes, limit: int) -> int:
    """Counts the scans up to the end of the image, or up to one more than the limit."""
    position = num_scans = 0
    while num_scans <= limit and (found := _MARKER.search(data, position)) is not None:
        marker, position = found[1][0], found.end()
        if marker == _EOI or position + 2 > len(data):
            break
        num_scans += marker == _SOS
        position += int.from_bytes(data[position : position + 2], "big")
    return num_scans
