"""Reads the first bytes of a JPEG, PNG or WebP: how large the picture is, before anything is allocated for its pixels.

The same facts decide which decoder may have it: an accelerator's JPEG engine, for one, takes baseline 8-bit images of
one or three components only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from concurrent_loader.errors import DecodeError

__all__ = ["Buffer", "ImageHeader", "parse_header"]

Buffer = bytes | bytearray | memoryview

_MAX_SEGMENTS = 4096  # before a JPEG's frame header; real files have a few dozen at most
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # JPEG markers that stand alone
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_APP1 = 0xE1
_ORIENTATION = 0x0112
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the first bytes of an image say.

    Attributes:
        format: ``"jpeg"``, ``"png"`` or ``"webp"``.
        width: As stored, before any EXIF rotation.
        height: As stored.
        num_channels: As stored: 1 gray or palette, 2 gray and alpha, 3 colour, 4 colour and alpha, or CMYK in a JPEG.
        bits: Per channel.
        sof: A JPEG's frame type: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, others rare; 0 elsewhere.
        palette: A PNG whose pixels are indices into a palette.
        animated: A WebP with frames.
        exif: A WebP that announces EXIF data.
        orientation: A JPEG's, by EXIF: 1 as it is, 2 mirrored, 3 turned by 180°, … 8.
    """

    format: str
    width: int
    height: int
    num_channels: int
    bits: int = 8
    sof: int = 0
    palette: bool = False
    animated: bool = False
    exif: bool = False
    orientation: int = 1

    @property
    def num_pixels(self) -> int:
        """Of the decoded picture."""
        return self.width * self.height

    @property
    def upright(self) -> tuple[int, int]:
        """A JPEG's height and width when it has been turned upright."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def parse_header(data: Buffer) -> ImageHeader:
    """Reads the header of an image whose format shows in its first bytes.

    Raises:
        DecodeError: It is none of the three formats, it ends too early, or its header makes no sense.
    """
    view = memoryview(data).cast("B")
    start = bytes(view[:12])
    try:
        if start[:3] == b"\xff\xd8\xff":
            header = _parse_jpeg(view)
        elif start[:8] == b"\x89PNG\r\n\x1a\n":
            header = _parse_png(view)
        elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
            header = _parse_webp(view)
        else:
            raise DecodeError("the bytes are no JPEG, PNG or WebP", got=start)
    except (struct.error, IndexError) as error:
        raise DecodeError("the image ends within its header", got=f"{len(view)} bytes") from error
    if header.width == 0 or header.height == 0:
        raise DecodeError("the image has no pixels", got=(header.width, header.height))
    return header


def _parse_jpeg(view: memoryview) -> ImageHeader:
    position, orientation = 2, 1
    for _ in range(_MAX_SEGMENTS):
        if view[position] != 0xFF:
            raise DecodeError("a JPEG marker is missing", expected=0xFF, got=view[position])
        while view[position] == 0xFF:  # any number of fill bytes
            position += 1
        marker = view[position]
        position += 1
        if marker in _NO_LENGTH:
            continue
        if marker in _SOF:
            _, bits, height, width, num_components = struct.unpack_from(">HBHHB", view, position)
            return ImageHeader("jpeg", width, height, num_components, bits, sof=marker, orientation=orientation)
        if marker in (0x00, 0xD8, 0xD9, 0xDA):
            raise DecodeError("the JPEG has no frame header before its data", got=f"marker 0x{marker:02X}")
        (length,) = struct.unpack_from(">H", view, position)
        if length < 2:
            raise DecodeError("a JPEG segment has an impossible length", got=length)
        if marker == _APP1 and bytes(view[position + 2 : position + 8]) == b"Exif\0\0":
            orientation = _parse_orientation(view[position + 8 : position + length])
        position += length
    raise DecodeError("the JPEG has too many segments before its frame header", expected=f"at most {_MAX_SEGMENTS}")


def _parse_orientation(tiff: memoryview) -> int:
    """Finds the orientation among the first directory's entries; 1 where the data makes no sense."""
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


def _parse_png(view: memoryview) -> ImageHeader:
    length, kind, width, height, bits, colour = struct.unpack_from(">I4sIIBB", view, 8)
    if length != 13 or kind != b"IHDR" or colour not in _PNG_CHANNELS:
        raise DecodeError("the PNG does not start with a header chunk", got=(length, kind, colour))
    return ImageHeader("png", width, height, _PNG_CHANNELS[colour], bits, palette=colour == 3)


def _parse_webp(view: memoryview) -> ImageHeader:
    kind = bytes(view[12:16])
    if kind == b"VP8 ":
        tag, start_code, width, height = struct.unpack_from("<3s3sHH", view, 20)
        if tag[0] & 1 or start_code != b"\x9d\x01\x2a":
            raise DecodeError("the WebP does not start with a key frame", got=start_code)
        return ImageHeader("webp", width & 0x3FFF, height & 0x3FFF, 3)
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", view, 20)
        if signature != 0x2F:
            raise DecodeError("the lossless WebP has no signature", expected=0x2F, got=signature)
        num_channels = 4 if bits >> 28 & 1 else 3
        return ImageHeader("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, num_channels)
    if kind == b"VP8X":
        flags, low_width, high_width, low_height, high_height = struct.unpack_from("<B3xHBHB", view, 20)
        width, height = (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
        return ImageHeader(
            "webp", width, height, 4 if flags & 0x10 else 3, animated=bool(flags & 0x02), exif=bool(flags & 0x08)
        )
    raise DecodeError("the WebP starts with an unknown chunk", got=kind)
