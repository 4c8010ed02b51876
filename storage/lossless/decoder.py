"""Decodes a lossless image, or a box of it. Specification: docs/reference/lossless_format.md.

A box decodes only the groups of tiles that it touches, including zstd. Everything is checked before it is used: first
the header and the table, then the widths and modes of each group against the lengths of its sections.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless.layout import (
    HEADER_BYTES,
    PACKED,
    TILE_SIDE,
    Buffer,
    Groups,
    LosslessHeader,
    parse_groups,
    parse_header,
)
from concurrent_loader.storage.lossless.native import Native, native_module
from concurrent_loader.storage.lossless.tiles import GroupPlace, count_units, unpack_group

__all__ = ["DEFAULT_MAX_PIXELS", "decode", "index_units", "plain_sections"]

DEFAULT_MAX_PIXELS = 1 << 28

_contexts = threading.local()


def decode(
    data: Buffer,
    *,
    box: tuple[int, int, int, int] | None = None,
    alpha: bool = True,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    native: Native = "auto",
) -> npt.NDArray[Any]:
    """Decodes an image, or a part of it.

    Args:
        data: Encoded image, the whole file.
        box: Part to decode: (top, left, height, width) in pixels. Default: the whole image.
        alpha: Whether to return an alpha channel. Default True.
        max_pixels: Maximum number of pixels (default 2**28); a larger image is refused before memory is allocated.
        native: Whether to use the native module. The default ``"auto"`` uses it if it was built.

    Returns:
        New array (C, height, width), uint8 or uint16.

    Raises:
        FormatError: The data is not a complete lossless image, or the image is too large.
        ConfigurationError: ``native=True`` and the native module was not built.
        ValueError: The box does not lie within the image.

    Thread-safety: May be called from any number of threads; the native module and zstd release the GIL.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.storage.lossless import decode, encode
        >>> pixels = np.arange(3 * 48 * 64, dtype=np.uint8).reshape(3, 48, 64)
        >>> decode(encode(pixels), box=(8, 0, 16, 32)).shape
        (3, 16, 32)
    """
    module = native_module(native)
    header = parse_header(data)
    if header.width * header.height > max_pixels:
        raise FormatError("the image is too large", expected=max_pixels, got=(header.width, header.height))
    top, left, height, width = _checked(box, header)
    channels = header.num_channels if alpha else header.num_channels - (header.num_channels + 1) % 2
    if header.mode != PACKED:
        return np.ascontiguousarray(_plain(data, header)[:channels, top : top + height, left : left + width])
    groups = parse_groups(data, header)
    if (height, width) != (header.height, header.width):
        groups = groups.touching(top, left, height, width)
    coded = plain_sections(data, groups)
    out = np.empty((channels, height, width), header.dtype)
    if module is None:
        _unpack(data, header, groups, coded, out, (top, left))
        return out
    shape = (header.num_channels, header.bits, header.height, header.width)
    try:
        module.unpack(data, groups.places(), coded, out, shape, (top, left, height, width), channels)
    except ValueError as error:
        raise FormatError(f"the lossless image is damaged: {error}") from error
    return out


def plain_sections(data: Buffer, groups: Groups) -> list[Buffer]:
    """Returns the coded sections of groups, decompressed if necessary; otherwise views of ``data``.

    Raises:
        FormatError: A zstd frame is damaged, or its length differs from the table.
    """
    view = memoryview(data).cast("B")
    context = _context()
    sections: list[Buffer] = []
    starts, stored, coded = groups.start.tolist(), groups.stored_bytes.tolist(), groups.coded_bytes.tolist()
    for start, stored_bytes, coded_bytes in zip(starts, stored, coded, strict=True):
        section = view[start : start + stored_bytes]
        sections.append(section if stored_bytes == coded_bytes else _decompressed(context, section, coded_bytes))
    return sections


def index_units(
    data: Buffer, header: LosslessHeader, groups: Groups, coded: list[Buffer], *, native: Native = "auto"
) -> npt.NDArray[np.int32]:
    """Checks groups as `decode` does, and returns the position of each unit (one channel of a tile).

    Returns:
        (units, 3) int32, in file order: offsets of the unit's top planes and second planes in the coded section of its
        group, and of its remaining planes in the group's rest.

    Raises:
        FormatError: The data is damaged, as for `decode`.
    """
    module = native_module(native)
    if module is None:
        parts = [
            count_units(*_group_bytes(data, groups, coded, at), _place(header, groups, at)) for at in range(len(groups))
        ]
        return np.concatenate(parts) if parts else np.empty((0, 3), np.int32)
    out = np.empty((int(groups.num_tiles.sum()) * header.num_channels, 3), np.int32)
    shape = (header.num_channels, header.bits, header.height, header.width)
    try:
        module.index(data, groups.places(), coded, out, shape)
    except ValueError as error:
        raise FormatError(f"the lossless image is damaged: {error}") from error
    return out


def _checked(box: tuple[int, int, int, int] | None, header: LosslessHeader) -> tuple[int, int, int, int]:
    if box is None:
        return 0, 0, header.height, header.width
    top, left, height, width = box
    if min(top, left) < 0 or min(height, width) < 1 or top + height > header.height or left + width > header.width:
        raise ValueError(f"the box {box} does not lie within {header.height} x {header.width} pixels")
    return box


def _plain(data: Buffer, header: LosslessHeader) -> npt.NDArray[Any]:
    view = memoryview(data).cast("B")
    if len(view) - HEADER_BYTES != header.num_bytes:
        raise FormatError(
            "the length of the plain samples does not match the size of the image",
            expected=header.num_bytes,
            got=len(view),
        )
    samples = np.frombuffer(view, dtype=header.dtype.newbyteorder("<"), offset=HEADER_BYTES)
    return samples.astype(header.dtype).reshape(header.shape)


def _context() -> zstandard.ZstdDecompressor:
    """Returns this thread's decompressor.

    A decompressor serves one thread at a time, and making one costs as much as decoding a small group.
    """
    if not hasattr(_contexts, "zstd"):
        _contexts.zstd = zstandard.ZstdDecompressor()
    return _contexts.zstd  # type: ignore[no-any-return]


def _decompressed(context: zstandard.ZstdDecompressor, frame: memoryview, num_bytes: int) -> bytes:
    try:
        # `decompress` would allocate any size that the frame declares.
        if zstandard.get_frame_parameters(frame).content_size != num_bytes:
            raise FormatError("the length of a group's zstd frame does not match the table", expected=num_bytes)
        return context.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"a group cannot be decompressed: {error}") from error


def _place(header: LosslessHeader, groups: Groups, at: int) -> GroupPlace:
    return GroupPlace(header, int(groups.tile_row[at]), int(groups.tile_column[at]), int(groups.num_tiles[at]))


def _group_bytes(
    data: Buffer, groups: Groups, coded: list[Buffer], at: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    start = int(groups.start[at] + groups.stored_bytes[at])
    rest = np.frombuffer(memoryview(data).cast("B")[start : start + int(groups.rest_bytes[at])], np.uint8)
    return np.frombuffer(coded[at], np.uint8), rest


def _unpack(
    data: Buffer,
    header: LosslessHeader,
    groups: Groups,
    coded: list[Buffer],
    out: npt.NDArray[Any],
    corner: tuple[int, int],
) -> None:
    """Decodes groups in numpy into ``out``, whose first pixel is at ``corner`` in the image."""
    for at in range(len(groups)):
        place = _place(header, groups, at)
        part = unpack_group(*_group_bytes(data, groups, coded, at), place)
        above, beside = place.tile_row * TILE_SIDE - corner[0], place.tile_column * TILE_SIDE - corner[1]
        first_row, first_column = max(0, above), max(0, beside)
        rows = slice(first_row, min(out.shape[1], above + place.height))
        columns = slice(first_column, min(out.shape[2], beside + sum(place.widths)))
        out[:, rows, columns] = part[
            : len(out), rows.start - above : rows.stop - above, columns.start - beside : columns.stop - beside
        ]
