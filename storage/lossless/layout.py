"""The outside of a lossless picture: its header and its table of groups. Specification: docs/lossless.md. No I/O.

Everything that later stages rely on is checked here, on numbers, before any memory is taken for what they promise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from storage.errors import FormatError

__all__ = [
    "BLOCK_SIDE",
    "GROUP_TILES",
    "HEADER_BYTES",
    "MAGIC",
    "MAX_SIDE",
    "PACKED",
    "PLAIN",
    "TILE_SIDE",
    "Buffer",
    "Groups",
    "PictureHeader",
    "parse_groups",
    "parse_header",
]

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x8eCLL"
VERSION = 1
TILE_SIDE = 64
BLOCK_SIDE = 4
GROUP_TILES = 8
"""Tiles side by side that are compressed together; what our encoder writes. docs/lossless.md has the figures."""
MAX_SIDE = 1 << 24
PLAIN, PACKED = 0, 1

_HEADER = struct.Struct("<4sBBBBIIBBH")
HEADER_BYTES = _HEADER.size
_ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What the first 20 bytes say.

    Attributes:
        mode: `PLAIN` or `PACKED`.
        num_channels: 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA.
        bits: Per sample: 8 or 16.
        width: In pixels.
        height: In pixels.
        group_tiles: Tiles of a group, but for the last one of each row of tiles.
    """

    mode: int
    num_channels: int
    bits: int
    width: int
    height: int
    group_tiles: int = GROUP_TILES

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.num_channels, self.height, self.width

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Of the samples."""
        return np.dtype(np.uint8) if self.bits == 8 else np.dtype(np.uint16)

    @property
    def num_bytes(self) -> int:
        """Of the samples, decoded."""
        return self.num_channels * self.height * self.width * self.bits // 8

    @property
    def tiles_across(self) -> int:
        """Tiles in a row of them."""
        return -(-self.width // TILE_SIDE)

    @property
    def tiles_down(self) -> int:
        """Rows of tiles."""
        return -(-self.height // TILE_SIDE)

    @property
    def groups_across(self) -> int:
        """Groups in a row of tiles."""
        return -(-self.tiles_across // self.group_tiles)

    def to_bytes(self) -> bytes:
        """Returns the 20 bytes."""
        return _HEADER.pack(
            MAGIC, VERSION, self.mode, self.num_channels, self.bits, self.width, self.height, TILE_SIDE,
            self.group_tiles, 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of a packed picture, all of them or those that a box touches; arrays of one length, checked.

    Attributes:
        tile_row: Row of tiles, int64.
        tile_column: Column of the first tile.
        num_tiles: Of each group.
        start: Where in the file the coded section begins.
        stored_bytes: Of the coded section as it stands in the file.
        coded_bytes: Of the coded section when it is not compressed; where equal, it is not.
        rest_bytes: Of the rest, right behind.
    """

    tile_row: npt.NDArray[np.int64]
    tile_column: npt.NDArray[np.int64]
    num_tiles: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stored_bytes: npt.NDArray[np.int64]
    coded_bytes: npt.NDArray[np.int64]
    rest_bytes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def touching(self, top: int, left: int, height: int, width: int) -> Groups:
        """Those that have a tile in a box, in pixels."""
        rows, columns = self.tile_row * TILE_SIDE, self.tile_column * TILE_SIDE
        is_in = (rows < top + height) & (rows + TILE_SIDE > top)
        is_in &= (columns < left + width) & (columns + self.num_tiles * TILE_SIDE > left)
        return Groups(
            self.tile_row[is_in], self.tile_column[is_in], self.num_tiles[is_in], self.start[is_in],
            self.stored_bytes[is_in], self.coded_bytes[is_in], self.rest_bytes[is_in],
        )  # fmt: skip

    def places(self) -> npt.NDArray[np.int64]:
        """(n, 5): row of tiles, first column, number of tiles, where the rest begins, its length."""
        return np.stack(
            (self.tile_row, self.tile_column, self.num_tiles, self.start + self.stored_bytes, self.rest_bytes), axis=1
        )


def parse_header(data: Buffer) -> PictureHeader:
    """Reads the header.

    Raises:
        FormatError: These bytes begin no lossless picture of version 1.
    """
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise FormatError("a lossless picture ends within its header", expected=HEADER_BYTES, got=len(view))
    magic, version, mode, channels, bits, width, height, tile_side, group_tiles, zero = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FormatError("these are not the first bytes of a lossless picture", expected=MAGIC, got=magic)
    if version != VERSION:
        raise FormatError("a lossless picture of another version", expected=VERSION, got=version)
    if mode not in (PLAIN, PACKED) or not 1 <= channels <= 4 or bits not in (8, 16):
        raise FormatError("a lossless picture of an unknown kind", got=f"mode {mode}, {channels} channels, {bits} bits")
    if not 1 <= width <= MAX_SIDE or not 1 <= height <= MAX_SIDE:
        raise FormatError("an impossible size", expected=f"1 to {MAX_SIDE}", got=(width, height))
    if tile_side != TILE_SIDE or group_tiles < 1 or zero != 0:
        raise FormatError("an impossible header", got=(tile_side, group_tiles, zero))
    return PictureHeader(mode, channels, bits, width, height, group_tiles)


@lru_cache(maxsize=16)
def _grid(header: PictureHeader) -> tuple[npt.NDArray[np.int64], ...]:
    """Of each group: row and column of its first tile, number of tiles, and the most that its coded section can have.

    Kept for a few sizes, for many data sets have one: an eighth of the time of a small picture.
    """
    rows, in_row = np.divmod(np.arange(header.groups_across * header.tiles_down), header.groups_across)
    columns = in_row * header.group_tiles
    tiles = np.minimum(header.group_tiles, header.tiles_across - columns)
    # Width codes take half a byte a block, top and second planes two bytes each.
    blocks = (TILE_SIDE // BLOCK_SIDE) ** 2
    most = tiles * (2 + header.num_channels * (header.bits // 8 + blocks * 9 // 2))
    for each in (rows, columns, tiles, most):
        each.setflags(write=False)
    return rows, columns, tiles, most


def parse_groups(data: Buffer, header: PictureHeader) -> Groups:
    """Reads the table of groups of a packed picture, and checks it against the picture's size and the file's length.

    Raises:
        FormatError: The table is cut, or its lengths are impossible.
    """
    view = memoryview(data).cast("B")
    count = header.groups_across * header.tiles_down
    end = HEADER_BYTES + _ENTRY_BYTES * count
    if len(view) < end:
        raise FormatError("a lossless picture ends within its table", expected=f"at least {end} bytes", got=len(view))
    table = np.frombuffer(view[HEADER_BYTES:end], dtype="<u4").reshape(count, 3).astype(np.int64)
    stored, coded, rest = table[:, 0], table[:, 1], table[:, 2]
    lengths = stored + rest
    if end + int(lengths.sum()) != len(view):
        raise FormatError("the groups have not the file's length", expected=len(view), got=end + int(lengths.sum()))
    rows, columns, tiles, most = _grid(header)
    if np.any(stored > coded) or np.any(coded > most) or np.any(coded < 2 * tiles):
        raise FormatError("a group has an impossible length")
    start = end + np.cumsum(lengths) - lengths
    return Groups(rows, columns, tiles, start, stored, coded, rest)
