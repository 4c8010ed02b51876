"""Defines what every header parser returns: the facts about an encoded image that are known before it is decoded.

Decoders are chosen by the same facts. A GPU's JPEG engine, for example, decodes only baseline 8-bit images with one or
three components (`ImageHeader.baseline`, ``num_channels``, ``sampling``, ``transform``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Buffer", "ImageHeader"]

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Describes an encoded image by its header.

    Attributes:
        format: Name of the format, from `concurrent_loader.storage.images.FORMATS`.
        width: Width as stored, before the image is turned upright, in pixels.
        height: Height as stored, in pixels.
        num_channels: Channels as stored: 1 gray or palette, 2 gray and alpha, 3 color, 4 color and alpha or CMYK.
        bits: Bits per channel.
        sof: JPEG frame type: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, others rare; 0 for other formats.
        palette: Whether the pixels of a PNG or GIF are indices into a palette.
        animated: Whether a WebP, AVIF or GIF contains several images.
        exif: Whether a WebP announces EXIF data.
        orientation: EXIF orientation: 1 upright, 2 mirrored, 3 rotated by 180°, … 8.
        sampling: Sampling factors (horizontal, vertical) of each JPEG component; ((2, 2), (1, 1), (1, 1)) is 4:2:0.
        transform: Color transform in the Adobe marker of a JPEG: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; None without a marker.
        coded_pixels: Largest number of pixels that an AVIF announces, or pixels of a GIF's first frame; otherwise 0.
        several_scans: Whether a JPEG has more than one scan, so that decoders store all its coefficients.

    Example:
        >>> from pathlib import Path
        >>> from concurrent_loader.decode import parse_header
        >>> header = parse_header(Path("images/cat/0.jpg").read_bytes())
        >>> header.format, header.num_channels
        ('jpeg', 3)
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
        """Largest number of pixels that a decoder may allocate, for the image or for a part of it."""
        return max(self.width * self.height, self.coded_pixels)

    @property
    def baseline(self) -> bool:
        """Whether the image is a sequential 8-bit JPEG with Huffman codes, which every JPEG decoder supports."""
        return self.sof == 0xC0 and self.bits == 8

    @property
    def upright(self) -> tuple[int, int]:
        """Height and width after a JPEG or AVIF is turned upright, in pixels."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)
