"""Reads and writes the header and the table of groups of a lossless image. No I/O.

Specification: docs/reference/lossless_format.md.

Everything that later steps rely on is checked here, before any memory is allocated for it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError

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
    "LosslessHeader",
    "parse_groups",
    "parse_header",
]

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x8eCLL"
VERSION = 1
TILE_SIDE = 64
BLOCK_SIDE = 4
GROUP_TILES = 8
"""Number of adjacent tiles that the encoder compresses together. docs/how-to/lossless.md has the measurements."""
MAX_SIDE = 1 << 24
PLAIN, PACKED = 0, 1

_HEADER = struct.Struct("<4sBBBBIIBBH")
HEADER_BYTES = _HEADER.size
_ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class LosslessHeader:
    """Describes a lossless image by its first 20 bytes.

    Attributes:
        mode: `PLAIN` or `PACKED`.
        num_channels: 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA.
        bits: Bits per sample: 8 or 16.
        width: Width in pixels.
        height: Height in pixels.
        group_tiles: Number of tiles of a group, except the last one of each tile row.
    """

    mode: int
    num_channels: int
    bits: int
    width: int
    height: int
    group_tiles: int = GROUP_TILES

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the image: (channels, height, width)."""
        return self.num_channels, self.height, self.width

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Dtype of the samples."""
        return np.dtype(np.uint8) if self.bits == 8 else np.dtype(np.uint16)

    @property
    def num_bytes(self) -> int:
        """Length of the decoded samples in bytes."""
        return self.num_channels * self.height * self.width * self.bits // 8

    @property
    def tiles_across(self) -> int:
        """Number of tiles in a tile row."""
        return -(-self.width // TILE_SIDE)

    @property
    def tiles_down(self) -> int:
        """Number of tile rows."""
        return -(-self.height // TILE_SIDE)

    @property
    def groups_across(self) -> int:
        """Number of groups in a tile row."""
        return -(-self.tiles_across // self.group_tiles)

    def to_bytes(self) -> bytes:
        """Encodes the header as 20 bytes."""
        return _HEADER.pack(
            MAGIC, VERSION, self.mode, self.num_channels, self.bits, self.width, self.height, TILE_SIDE,
            self.group_tiles, 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Groups:
    """Stores checked groups of a packed image, as arrays of equal length.

    Attributes:
        tile_row: Tile row of each group, int64.
        tile_column: Column of the first tile.
        num_tiles: Number of tiles.
        start: Offset of the coded section in the file.
        stored_bytes: Length of the coded section in the file.
        coded_bytes: Length of the coded section after decompression; equal to ``stored_bytes`` if it is not compressed.
        rest_bytes: Length of the remaining planes, which follow the coded section.
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
        """Returns the groups that have a tile in a box, given in pixels."""
        rows, columns = self.tile_row * TILE_SIDE, self.tile_column * TILE_SIDE
        is_in = (rows < top + height) & (rows + TILE_SIDE > top)
        is_in &= (columns < left + width) & (columns + self.num_tiles * TILE_SIDE > left)
        return Groups(
            self.tile_row[is_in], self.tile_column[is_in], self.num_tiles[is_in], self.start[is_in],
            self.stored_bytes[is_in], self.coded_bytes[is_in], self.rest_bytes[is_in],
        )  # fmt: skip

    def places(self) -> npt.NDArray[np.int64]:
        """Returns (n, 5): tile row, first tile column, number of tiles, offset and length of the rest."""
        return np.stack(
            (self.tile_row, self.tile_column, self.num_tiles, self.start + self.stored_bytes, self.rest_bytes), axis=1
        )


def parse_header(data: Buffer) -> LosslessHeader:
    """Reads the header.

    Raises:
        FormatError: The data does not begin a lossless image of version 1.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.storage.lossless import encode, parse_header
        >>> parse_header(encode(np.zeros((1, 48, 64), np.uint16))).bits
        16
    """
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise FormatError("the lossless image ends within its header", expected=HEADER_BYTES, got=len(view))
    magic, version, mode, channels, bits, width, height, tile_side, group_tiles, zero = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FormatError("the data does not begin with the magic bytes of a lossless image", expected=MAGIC, got=magic)
    if version != VERSION:
        raise FormatError("the version of the lossless image is not supported", expected=VERSION, got=version)
    if mode not in (PLAIN, PACKED) or not 1 <= channels <= 4 or bits not in (8, 16):
        raise FormatError(
            "the kind of the lossless image is not supported", got=f"mode {mode}, {channels} channels, {bits} bits"
        )
    if not 1 <= width <= MAX_SIDE or not 1 <= height <= MAX_SIDE:
        raise FormatError("the lossless image has an invalid size", expected=f"1 to {MAX_SIDE}", got=(width, height))
    if tile_side != TILE_SIDE or group_tiles < 1 or zero != 0:
        raise FormatError("the lossless image has an invalid header", got=(tile_side, group_tiles, zero))
    return LosslessHeader(mode, channels, bits, width, height, group_tiles)


@lru_cache(maxsize=16)
def _grid(header: LosslessHeader) -> tuple[npt.NDArray[np.int64], ...]:
    """Returns row and column of the first tile, number of tiles, and maximum coded length of each group.

    Cached for a few sizes, because many datasets have one size: saves an eighth of the time of a small image.
    """
    rows, in_row = np.divmod(np.arange(header.groups_across * header.tiles_down), header.groups_across)
    columns = in_row * header.group_tiles
    tiles = np.minimum(header.group_tiles, header.tiles_across - columns)
    # A block takes half a byte for its width code, and two bytes each for its top and second plane.
    blocks = (TILE_SIDE // BLOCK_SIDE) ** 2
    max_bytes = tiles * (2 + header.num_channels * (header.bits // 8 + blocks * 9 // 2))
    for each in (rows, columns, tiles, max_bytes):
        each.setflags(write=False)
    return rows, columns, tiles, max_bytes


def parse_groups(data: Buffer, header: LosslessHeader) -> Groups:
    """Reads and checks the table of groups of a packed image.

    Raises:
        FormatError: The table is truncated, its lengths are invalid, or they do not add up to the file.
    """
    view = memoryview(data).cast("B")
    count = header.groups_across * header.tiles_down
    end = HEADER_BYTES + _ENTRY_BYTES * count
    if len(view) < end:
        raise FormatError("the lossless image ends within its table", expected=f"at least {end} bytes", got=len(view))
    table = np.frombuffer(view[HEADER_BYTES:end], dtype="<u4").reshape(count, 3).astype(np.int64)
    stored, coded, rest = table[:, 0], table[:, 1], table[:, 2]
    lengths = stored + rest
    if end + int(lengths.sum()) != len(view):
        raise FormatError(
            "the lengths of the groups do not add up to the file", expected=len(view), got=end + int(lengths.sum())
        )
    rows, columns, tiles, max_bytes = _grid(header)
    if np.any(stored > coded) or np.any(coded > max_bytes) or np.any(coded < 2 * tiles):
        raise FormatError("a group has an invalid length")
    start = end + np.cumsum(lengths) - lengths
    return Groups(rows, columns, tiles, start, stored, coded, rest)
