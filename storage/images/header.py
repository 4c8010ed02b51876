"""Reads the header of an encoded image: how large the picture is, before anything is allocated for its pixels.

The same facts decide which decoder may have it: an accelerator's JPEG engine, for one, takes baseline 8-bit images of
one or three components only (`ImageHeader.baseline`, ``num_channels``, ``sampling``, ``transform``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from storage.errors import FormatError
from storage.images.avif_header import parse_avif
from storage.images.jpeg_scans import check_scans
from storage.lossless import MAGIC
from storage.lossless import parse_header as parse_lossless_header

__all__ = ["Buffer", "ImageHeader", "parse_header"]

Buffer = bytes | bytearray | memoryview

_MAX_SEGMENTS = 4096  # before a JPEG's frame header, or a GIF's; real files have a few dozen at most
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # JPEG markers that stand alone
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_APP1, _APP14 = 0xE1, 0xEE
_ORIENTATION = 0x0112
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the first bytes of an image say.

    Attributes:
        format: ``"jpeg"``, ``"png"``, ``"webp"``, ``"avif"``, ``"gif"`` or ``"lossless"``.
        width: As stored, before it is turned upright.
        height: As stored.
        num_channels: As stored: 1 gray or palette, 2 gray and alpha, 3 colour, 4 colour and alpha, or CMYK in a JPEG.
        bits: Per channel.
        sof: A JPEG's frame type: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, others rare; 0 elsewhere.
        palette: A PNG or GIF whose pixels are indices into a palette.
        animated: A WebP, AVIF or GIF with several pictures.
        exif: A WebP that announces EXIF data.
        orientation: A JPEG's by EXIF, an AVIF's by its boxes: 1 as it is, 2 mirrored, 3 turned by 180°, … 8.
        sampling: A JPEG's components: how often each is sampled, across and down: ((2, 2), (1, 1), (1, 1)) is 4:2:0.
        transform: A JPEG's, by Adobe's marker: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; None without one.
        coded_pixels: The most that an AVIF announces anywhere, or the pixels of a GIF's first frame; 0 elsewhere.
        several_scans: A JPEG that goes over its pixels more than once, so that decoders keep all coefficients.
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
    sampling: tuple[tuple[int, int], ...] = ()
    transform: int | None = None
    coded_pixels: int = 0
    several_scans: bool = False

    @property
    def num_pixels(self) -> int:
        """That a decoder may allocate: of the picture, or of what it is made of."""
        return max(self.width * self.height, self.coded_pixels)

    @property
    def baseline(self) -> bool:
        """Whether it is a JPEG in the one mode that all decoders have: sequential, Huffman codes, 8 bits."""
        return self.sof == 0xC0 and self.bits == 8

    @property
    def upright(self) -> tuple[int, int]:
        """Height and width of a JPEG or AVIF when it has been turned upright."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def parse_header(data: Buffer) -> ImageHeader:
    """Reads the header of an image whose format shows in its first bytes.

    Raises:
        FormatError: It is of no format known, it ends too early, or its header makes no sense.
    """
    view = memoryview(data).cast("B")
    start = bytes(view[:12])
    parse = next((parse for shows, parse in _PARSERS if shows(start)), None)
    if parse is None:
        raise FormatError("the bytes are no JPEG, PNG, WebP, AVIF or GIF, and no lossless picture", got=start)
    try:
        header = parse(view)
    except (struct.error, IndexError) as error:
        raise FormatError("the image ends within its header", got=f"{len(view)} bytes") from error
    if header.width == 0 or header.height == 0:
        raise FormatError("the image has no pixels", got=(header.width, header.height))
    return header


def _parse_jpeg(view: memoryview) -> ImageHeader:
    position, orientation, transform = 2, 1, None
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
                raise FormatError("a JPEG's frame header has an impossible length", got=length)
            factors = view[position + 9 : position + length : 3]
            if position + length > len(view):
                raise IndexError
            several = check_scans(view[position + length :], marker, num_components, width * height)
            return ImageHeader(
                "jpeg", width, height, num_components, bits, sof=marker, orientation=orientation,
                sampling=tuple((factor >> 4, factor & 15) for factor in factors), transform=transform,
                several_scans=several,
            )  # fmt: skip
        if marker in (0x00, 0xD8, 0xD9, 0xDA):
            raise FormatError("the JPEG has no frame header before its data", got=f"marker 0x{marker:02X}")
        (length,) = struct.unpack_from(">H", view, position)
        if length < 2:
            raise FormatError("a JPEG segment has an impossible length", got=length)
        if marker == _APP1 and bytes(view[position + 2 : position + 8]) == b"Exif\0\0":
            orientation = _parse_orientation(view[position + 8 : position + length])
        elif marker == _APP14 and length >= 14 and bytes(view[position + 2 : position + 7]) == b"Adobe":
            transform = view[position + 13]
        position += length
    raise FormatError("the JPEG has too many segments before its frame header", expected=f"at most {_MAX_SEGMENTS}")


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
        raise FormatError("the PNG does not start with a header chunk", got=(length, kind, colour))
    return ImageHeader("png", width, height, _PNG_CHANNELS[colour], bits, palette=colour == 3)


def _parse_webp(view: memoryview) -> ImageHeader:
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
            "webp", width, height, 4 if flags & 0x10 else 3, animated=bool(flags & 0x02), exif=bool(flags & 0x08)
        )
    raise FormatError("the WebP starts with an unknown chunk", got=kind)


def _parse_avif(view: memoryview) -> ImageHeader:
    facts = parse_avif(view)
    return ImageHeader(
        "avif", facts.width, facts.height, facts.num_channels, facts.bits, animated=facts.animated,
        orientation=facts.orientation, coded_pixels=facts.coded_pixels,
    )  # fmt: skip


def _parse_gif(view: memoryview) -> ImageHeader:
    """Reads the screen's size and the first frame's, and looks whether there is a second one."""
    width, height, flags = struct.unpack_from("<HHB", view, 6)
    position = 13 + _palette_bytes(flags)
    has_alpha, num_frames, frame_pixels = False, 0, 0
    for _ in range(_MAX_SEGMENTS):
        kind = view[position] if position < len(view) else 0x3B  # a decoder complains of what is missing at the end
        if kind == 0x21:
            has_alpha |= not num_frames and view[position + 1] == 0xF9 and bool(view[position + 3] & 1)
            position = _after_blocks(view, position + 2)
        elif kind == 0x2C:
            left, top, frame_width, frame_height, frame_flags = struct.unpack_from("<HHHHB", view, position + 1)
            if left + frame_width > width or top + frame_height > height or not frame_width or not frame_height:
                raise FormatError(
                    "the GIF's frame does not lie within its screen",
                    expected=f"{width} x {height}", got=f"{frame_width} x {frame_height} at ({left}, {top})",
                )  # fmt: skip
            num_frames += 1
            if num_frames == 1:
                frame_pixels = frame_width * frame_height
            if num_frames == 2:
                break
            position = _after_blocks(view, position + 11 + _palette_bytes(frame_flags))
        elif num_frames:
            break  # the trailer, or rubbish behind a picture
        else:
            raise FormatError("the GIF has no picture", got=kind)
    if not num_frames:
        raise FormatError("the GIF has too many blocks before its picture", expected=f"at most {_MAX_SEGMENTS}")
    return ImageHeader(
        "gif", width, height, 4 if has_alpha else 1, palette=True, animated=num_frames > 1, coded_pixels=frame_pixels
    )


def _parse_lossless(view: memoryview) -> ImageHeader:
    facts = parse_lossless_header(view)
    return ImageHeader("lossless", facts.width, facts.height, facts.num_channels, facts.bits)


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(view: memoryview, position: int) -> int:
    """Goes over blocks that each say how long they are, up to an empty one or the end."""
    while position < len(view) and view[position]:
        position += 1 + view[position]
    return position + 1


_Parser = Callable[[memoryview], ImageHeader]
# How a format shows in the first 12 bytes, and who reads on.
_PARSERS: tuple[tuple[Callable[[bytes], bool], _Parser], ...] = (
    (lambda start: start[:3] == b"\xff\xd8\xff", _parse_jpeg),
    (lambda start: start[:8] == b"\x89PNG\r\n\x1a\n", _parse_png),
    (lambda start: start[:4] == b"RIFF" and start[8:12] == b"WEBP", _parse_webp),
    (lambda start: start[4:8] == b"ftyp" and start[8:12] in (b"avif", b"avis", b"mif1"), _parse_avif),
    (lambda start: start[:6] in (b"GIF87a", b"GIF89a"), _parse_gif),
    (lambda start: start[: len(MAGIC)] == MAGIC, _parse_lossless),
)
