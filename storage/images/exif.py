"""Reads the orientation in EXIF data, which JPEG, PNG and WebP hold in a segment or chunk of their own."""

from __future__ import annotations

import struct

__all__ = ["parse_orientation"]

_ORIENTATION = 0x0112


def parse_orientation(tiff: memoryview) -> int:
    """Returns the orientation in the first EXIF directory; 1 if the directory is invalid or has none."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(num_entries):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * entry)
            if tag == _ORIENTATION and kind == 3 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        return 1
    return 1
