"""Reads a GIF's screen size and its first frame, and detects a second frame."""

from __future__ import annotations

import struct

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.header import ImageHeader

__all__ = ["min_gif_bytes", "parse_gif"]

_MAX_BLOCKS = 4096
_MAX_PIXELS_PER_BYTE = 2731  # an LZW code of 12 bits for a run of 4096 pixels


def parse_gif(view: memoryview) -> ImageHeader:
    """Reads the blocks of a GIF up to its second frame.

    Raises:
        FormatError: The GIF has no frame, or the frame does not lie within the screen.
        struct.error, IndexError: The file ends too early.
    """
    width, height, flags = struct.unpack_from("<HHB", view, 6)
    position = 13 + _palette_bytes(flags)
    has_alpha, num_frames, frame_pixels = False, 0, 0
    for _ in range(_MAX_BLOCKS):
        kind = view[position] if position < len(view) else 0x3B  # a missing trailer is left to the decoder
        if kind == 0x21:
            has_alpha |= not num_frames and view[position + 1] == 0xF9 and bool(view[position + 3] & 1)
            position = _after_blocks(view, position + 2)
        elif kind == 0x2C:
            left, top, frame_width, frame_height, frame_flags = struct.unpack_from("<HHHHB", view, position + 1)
            if left + frame_width > width or top + frame_height > height or not frame_width or not frame_height:
                raise FormatError(
                    "a frame of the GIF does not lie within its screen",
                    expected=f"{width} x {height}", got=f"{frame_width} x {frame_height} at ({left}, {top})",
                )  # fmt: skip
            num_frames += 1
            if num_frames == 1:
                frame_pixels = frame_width * frame_height
            if num_frames == 2:
                break
            position = _after_blocks(view, position + 11 + _palette_bytes(frame_flags))
        elif num_frames:
            break  # the trailer, or other data after the frame
        else:
            raise FormatError("the GIF has no frame", got=kind)
    if not num_frames:
        raise FormatError("the GIF has too many blocks before its first frame", expected=f"at most {_MAX_BLOCKS}")
    return ImageHeader(
        "gif", width, height, 4 if has_alpha else 1, palette=True, animated=num_frames > 1, coded_pixels=frame_pixels
    )


def min_gif_bytes(header: ImageHeader) -> int:
    """Returns a lower bound of the length of a complete file in bytes."""
    return header.coded_pixels // _MAX_PIXELS_PER_BYTE


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(view: memoryview, position: int) -> int:
    """Returns the position after a chain of length-prefixed blocks, which ends with an empty block or the file."""
    while position < len(view) and view[position]:
        position += 1 + view[position]
    return position + 1
