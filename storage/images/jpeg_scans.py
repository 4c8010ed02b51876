"""Counts the scans of a JPEG, because each scan makes a decoder go over the whole image and may take only a few bytes.

Source: ITU-T T.81, B.1 for markers and segments. The walk reads the same markers as libjpeg, so it cannot miss a scan
that libjpeg would decode.
"""

from __future__ import annotations

import re
import struct

from storage.errors import FormatError

__all__ = ["check_scans", "most_scans"]

_SOS, _EOI = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")  # not of a stuffed byte or a restart
_SCAN = b"\xff\xda"
_MAX_SEGMENTS = 4096

_LEAST_CAP, _MOST_CAP = 32, 500  # encoders write about ten scans
_SCAN_PIXELS = 1 << 30  # scans × pixels that are allowed beyond `_LEAST_CAP`; libjpeg takes 0.5 s for an empty 2**30


def most_scans(sof: int, num_components: int, num_pixels: int) -> int:
    """Returns how many scans a frame may have.

    A sequential frame codes each component in one scan. A progressive frame may have 32 scans at any size, and up to
    500 while scans × pixels stay below 2**30.
    """
    if not _is_progressive(sof):
        return num_components
    return min(_MOST_CAP, max(_LEAST_CAP, _SCAN_PIXELS // max(1, num_pixels)))


def check_scans(view: memoryview, sof: int, num_components: int, num_pixels: int) -> bool:
    """Checks the number of scans.

    Args:
        view: The file behind its frame header.
        sof: Marker of the frame, 0xC0 to 0xCF.
        num_components: Components of the frame.
        num_pixels: Width × height.

    Returns:
        Whether decoders go over the image more than once.

    Raises:
        FormatError: The file has more scans than `most_scans`.
        struct.error, IndexError: The file ends before its first scan.
    """
    start = _first_scan(view)
    if not _is_progressive(sof) and view[start + 4] >= num_components:
        return False  # this scan holds all components: libjpeg refuses another one
    most, data = most_scans(sof, num_components, num_pixels), bytes(view[start:])
    # The count is fast and includes what is no scan (previews and videos behind the image): the walk settles it.
    if data.count(_SCAN) > most and _num_scans(data, most) > most:
        raise FormatError("the JPEG has too many scans", expected=f"at most {most} at {num_pixels} pixels")
    return True


def _is_progressive(sof: int) -> bool:
    return sof & 3 == 2


def _first_scan(view: memoryview) -> int:
    """Returns where the marker of the first scan stands."""
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
            raise FormatError("a JPEG segment has an impossible length", got=length)
        position += 2 + length
    raise FormatError("the JPEG has too many segments before its first scan", expected=f"at most {_MAX_SEGMENTS}")


def _num_scans(data: bytes, most: int) -> int:
    """Walks the markers up to the end of the image, or until there is one scan too many."""
    position = num_scans = 0
    while num_scans <= most and (found := _MARKER.search(data, position)) is not None:
        marker, position = found[1][0], found.end()
        if marker == _EOI or position + 2 > len(data):
            break
        num_scans += marker == _SOS
        position += int.from_bytes(data[position : position + 2], "big")
    return num_scans
