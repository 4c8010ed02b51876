"""Lists the image formats: how each is recognized, who reads its header, and what decoding it costs.

Everything that depends on the format of an image reads this table: column types, header parsing, limits, importers and
decoders. CONTRIBUTING.md has the recipe for a new format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.avif_header import parse_avif
from concurrent_loader.storage.images.fixed_headers import min_png_bytes, parse_lossless, parse_png, parse_webp
from concurrent_loader.storage.images.gif_header import min_gif_bytes, parse_gif
from concurrent_loader.storage.images.header import Buffer, ImageHeader
from concurrent_loader.storage.images.jpeg_header import min_jpeg_bytes, parse_jpeg
from concurrent_loader.storage.lossless import MAGIC

__all__ = ["COLUMN_FORMATS", "FORMATS", "IMAGE_SUFFIXES", "ImageFormat", "ImageType", "find_format", "parse_header"]

ImageType = Literal["image", "jpeg", "png", "webp", "avif", "gif"]
"""Column types of image files; a row of `FORMATS` with suffixes has its name here, too."""

_MAGIC_BYTES = 12


def _no_minimum(header: ImageHeader) -> int:
    """Returns 0, for formats whose decoders accept a blank image without data."""
    return 0


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """Describes one image format.

    Attributes:
        name: Name of the format, and of the column type that holds only this format.
        suffixes: File name endings in lower case, with the dot; empty if the format has no files of its own.
        start: Bytes that ``matches`` recognizes.
        matches: Function of the first 12 bytes that recognizes the format.
        parse: Function of the whole file that returns its header. It may raise `FormatError`, `struct.error` or
            `IndexError`, the latter two where the file ends too early.
        bytes_per_pixel: Upper bound of the memory that decoding takes, over all libraries and modes.
            `tests/storage/images/test_limits.py` measures it.
        min_file_bytes: Function of the header that returns a lower bound of the length of a complete file.
        pillow_name: Pillow's name of its plugin, as in ``PIL.JpegImagePlugin.JpegImageFile``; None without a plugin.
    """

    name: str
    suffixes: tuple[str, ...]
    start: bytes
    matches: Callable[[bytes], bool]
    parse: Callable[[memoryview], ImageHeader]
    bytes_per_pixel: int
    min_file_bytes: Callable[[ImageHeader], int] = _no_minimum
    pillow_name: str | None = None


FORMATS: dict[str, ImageFormat] = {
    row.name: row
    for row in (
        ImageFormat(
            "jpeg", (".jpg", ".jpeg"), b"\xff\xd8\xff", lambda start: start[:3] == b"\xff\xd8\xff", parse_jpeg, 9,
            min_jpeg_bytes, "Jpeg",
        ),
        ImageFormat(
            "png", (".png",), b"\x89PNG\r\n\x1a\n", lambda start: start[:8] == b"\x89PNG\r\n\x1a\n", parse_png, 9,
            min_png_bytes, "Png",
        ),
        ImageFormat(
            "webp", (".webp",), b"RIFF\0\0\0\0WEBP", lambda start: start[:4] == b"RIFF" and start[8:12] == b"WEBP",
            parse_webp, 17, pillow_name="WebP",
        ),
        ImageFormat(
            "avif", (".avif",), b"\0\0\0\0ftypavif",
            lambda start: start[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1"), parse_avif, 20, pillow_name="Avif",
        ),
        ImageFormat(
            "gif", (".gif",), b"GIF89a", lambda start: start[:6] in (b"GIF87a", b"GIF89a"), parse_gif, 8, min_gif_bytes,
            "Gif",
        ),
        ImageFormat("lossless", (), MAGIC, lambda start: start[: len(MAGIC)] == MAGIC, parse_lossless, 14),
    )
}  # fmt: skip

_ROWS = tuple(FORMATS.values())

IMAGE_SUFFIXES = tuple(suffix for row in FORMATS.values() for suffix in row.suffixes)

_FILE_FORMATS = tuple(row.name for row in FORMATS.values() if row.suffixes)

COLUMN_FORMATS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _FILE_FORMATS},
    "image": _FILE_FORMATS,
    "image/lossless": ("lossless",),
}
"""Column type → names of the formats that its values may have."""


def find_format(data: Buffer) -> ImageFormat | None:
    """Recognizes the format of an image by its first 12 bytes; returns None for an unknown format."""
    start = data[:_MAGIC_BYTES] if isinstance(data, bytes) else bytes(memoryview(data).cast("B")[:_MAGIC_BYTES])
    for row in _ROWS:
        if row.matches(start):
            return row
    return None


def parse_header(data: Buffer) -> ImageHeader:
    """Reads the header of an encoded image in any format of `FORMATS`.

    Raises:
        FormatError: The format is unknown, the file ends within the header, or the header is invalid.
    """
    view = memoryview(data).cast("B")
    image_format = find_format(data)
    if image_format is None:
        raise FormatError(
            "the format of the image is unknown", expected="|".join(FORMATS), got=bytes(view[:_MAGIC_BYTES])
        )
    try:
        header = image_format.parse(view)
    except (struct.error, IndexError) as error:
        raise FormatError(f"the {image_format.name} image ends within its header", got=f"{len(view)} bytes") from error
    if header.width == 0 or header.height == 0:
        raise FormatError("the image has no pixels", got=f"{header.width} x {header.height}")
    return header
