"""Packs and unpacks a group of tiles in numpy: the reference for docs/reference/lossless_format.md.

Runs where the native module was not built. The functions do with arrays what `lossless_tiles.c` does with loops: same
bytes, and errors in the same cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless.layout import BLOCK_SIDE, TILE_SIDE, LosslessHeader

__all__ = ["GroupPlace", "count_units", "pack_group", "unpack_group"]

Samples = npt.NDArray[Any]

LEFT, UP, PLANE = 0, 1, 2
SUBTRACT_GREEN = 256
_GRID = TILE_SIDE // BLOCK_SIDE


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Describes the tiles of a group and their sizes.

    Attributes:
        header: Header of the image.
        tile_row: Tile row of the group.
        tile_column: Column of the first tile.
        num_tiles: Number of adjacent tiles.
    """

    header: LosslessHeader
    tile_row: int
    tile_column: int
    num_tiles: int

    @property
    def height(self) -> int:
        """Number of sample rows."""
        return min(TILE_SIDE, self.header.height - self.tile_row * TILE_SIDE)

    @property
    def widths(self) -> list[int]:
        """Number of sample columns of each tile."""
        lefts = [(self.tile_column + number) * TILE_SIDE for number in range(self.num_tiles)]
        return [min(TILE_SIDE, self.header.width - left) for left in lefts]

    @property
    def num_down(self) -> int:
        """Number of block rows."""
        return -(-self.height // BLOCK_SIDE)

    @property
    def num_across(self) -> list[int]:
        """Number of block columns of each tile."""
        return [-(-width // BLOCK_SIDE) for width in self.widths]

    @property
    def start_bytes(self) -> int:
        """Length of the modes and first samples in bytes."""
        return self.num_tiles * (2 + self.header.num_channels * (self.header.bits // 8))


# -- packing -----------------------------------------------------------------------------------------------------------


def pack_group(pixels: Samples, place: GroupPlace) -> tuple[bytes, bytes, bytes, bytes]:
    """Packs the tiles of a group.

    Args:
        pixels: Whole image, (C, H, W) uint8 or uint16.
        place: Group to pack.

    Returns:
        The head (modes, first samples, widths), all top planes, all second planes, and the remaining planes.
    """
    tiles = _cut(pixels, place)  # (T, C, 64, 64)
    plain = [_choose(tiles[:, channel], place) for channel in range(tiles.shape[1])]
    modes = np.zeros(place.num_tiles, np.int64)
    starts = tiles[:, :, 0, 0].copy()
    values = np.stack([choice.values for choice in plain], axis=1)
    grids = np.stack([choice.grid for choice in plain], axis=1)
    predictors = np.stack([choice.predictor for choice in plain], axis=1)
    if tiles.shape[1] >= 3:
        less = {channel: tiles[:, channel] - tiles[:, 1] for channel in (0, 2)}
        minus = {channel: _choose(tile, place) for channel, tile in less.items()}
        is_less = minus[0].cost + minus[2].cost < plain[0].cost + plain[2].cost
        modes[is_less] |= SUBTRACT_GREEN
        for channel, choice in minus.items():
            values[is_less, channel] = choice.values[is_less]
            grids[is_less, channel] = choice.grid[is_less]
            predictors[is_less, channel] = choice.predictor[is_less]
            starts[is_less, channel] = less[channel][is_less, 0, 0]
    for channel in range(tiles.shape[1]):
        modes |= predictors[:, channel] << (2 * channel)
    head = modes.astype("<u2").tobytes() + starts.astype(starts.dtype.newbyteorder("<")).tobytes()
    head += b"".join(
        _nibbles(grids[number, channel, : place.num_down, :across])
        for number, across in enumerate(place.num_across)
        for channel in range(tiles.shape[1])
    )
    top, second, rest = _planes(values, grids)
    return head, top, second, rest


def _cut(pixels: Samples, place: GroupPlace) -> Samples:
    """Returns the tiles of the group, (T, C, 64, 64), with zeros outside the image."""
    top, left = place.tile_row * TILE_SIDE, place.tile_column * TILE_SIDE
    part = pixels[:, top : top + TILE_SIDE, left : left + place.num_tiles * TILE_SIDE]
    room = np.zeros((len(pixels), TILE_SIDE, place.num_tiles * TILE_SIDE), pixels.dtype)
    room[:, : part.shape[1], : part.shape[2]] = part
    return np.ascontiguousarray(room.reshape(len(pixels), TILE_SIDE, place.num_tiles, TILE_SIDE).transpose(2, 0, 1, 3))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Stores, for one channel of each tile: values (T, 64, 64), width codes (T, 16, 16), predictor and cost (T,)."""

    values: Samples
    grid: npt.NDArray[np.uint8]
    predictor: npt.NDArray[np.int64]
    cost: npt.NDArray[np.int64]


def _choose(tiles: Samples, place: GroupPlace) -> _Choice:
    candidates = [_folded(_residuals(tiles, predictor)) for predictor in (LEFT, UP, PLANE)]
    for values in candidates:
        values[:, place.height :] = 0
        values[-1, :, place.widths[-1] :] = 0  # only the last tile of a row is narrower
    grids = [_width_codes(values) for values in candidates]
    costs = np.stack([(grid.astype(np.int64) + (grid == 15)).sum(axis=(1, 2)) for grid in grids])
    best = costs.argmin(axis=0)
    each = np.arange(len(tiles))
    return _Choice(np.stack(candidates)[best, each], np.stack(grids)[best, each], best, costs[best, each])


def _residuals(tiles: Samples, predictor: int) -> Samples:
    """Returns differences modulo 2**bits; the first one is zero, because the first sample is stored."""
    rows, columns = np.zeros_like(tiles), np.zeros_like(tiles)
    rows[:, :, 1:] = tiles[:, :, 1:] - tiles[:, :, :-1]
    columns[:, 1:] = tiles[:, 1:] - tiles[:, :-1]
    if predictor == LEFT:
        rows[:, 1:, 0] = columns[:, 1:, 0]
        return rows
    if predictor == UP:
        columns[:, 0, 1:] = rows[:, 0, 1:]
        return columns
    plane = columns
    plane[:, 1:, 1:] = columns[:, 1:, 1:] - columns[:, 1:, :-1]
    plane[:, 0, 1:] = rows[:, 0, 1:]
    return plane


def _folded(residuals: Samples) -> Samples:
    """Applies zigzag coding, which maps 0, -1, 1, -2 to 0, 1, 2, 3."""
    signs = residuals >> (residuals.itemsize * 8 - 1)
    folded: Samples = (residuals << 1) ^ (0 - signs).astype(residuals.dtype)
    return folded


def _width_codes(values: Samples) -> npt.NDArray[np.uint8]:
    highest = values.reshape(-1, _GRID, BLOCK_SIDE, _GRID, BLOCK_SIDE).max(axis=(2, 4))
    widths = np.frexp(highest.astype(np.float32))[1].astype(np.uint8)
    return np.where(widths >= 15, 15, widths).astype(np.uint8)


def _nibbles(codes: npt.NDArray[np.uint8]) -> bytes:
    flat = np.zeros(codes.size + codes.size % 2, np.uint8)
    flat[: codes.size] = codes.reshape(-1)
    return (flat[::2] | flat[1::2] << 4).tobytes()


def _planes(values: Samples, grids: npt.NDArray[np.uint8]) -> tuple[bytes, bytes, bytes]:
    """Returns the bit planes of all blocks in file order: top planes, second planes, remaining planes."""
    bits = values.itemsize * 8
    blocks = values.reshape(-1, _GRID, BLOCK_SIDE, _GRID, BLOCK_SIDE).swapaxes(2, 3).reshape(-1, BLOCK_SIDE**2)
    # (blocks, bits, 2): bit p of sixteen values, little-endian
    planes = np.packbits((blocks[:, np.newaxis, :] >> np.arange(bits)[:, np.newaxis]) & 1, axis=2, bitorder="little")
    widths = _widths(grids.reshape(-1))[:, np.newaxis]
    which = np.arange(bits)
    parts = (which == widths - 1, which == widths - 2, which < widths - 2)
    return planes[parts[0]].tobytes(), planes[parts[1]].tobytes(), planes[parts[2]].tobytes()


def _widths(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    widths: npt.NDArray[np.int64] = codes.astype(np.int64) + (codes == 15)
    return widths


# -- unpacking ---------------------------------------------------------------------------------------------------------


def unpack_group(coded: npt.NDArray[np.uint8], rest: npt.NDArray[np.uint8], place: GroupPlace) -> Samples:
    """Decodes the tiles of a group.

    Args:
        coded: Decompressed coded section, (n,) uint8.
        rest: Remaining planes, (n,) uint8.
        place: Group to unpack.

    Returns:
        (C, 64, 64 T). Samples outside the image are undefined.

    Raises:
        FormatError: The modes, widths or lengths are invalid.
    """
    modes, starts, grids, sections = _split(coded, rest, place)
    values = _values(grids, *sections, bits=place.header.bits)
    residuals = (values >> 1) ^ (0 - (values & 1)).astype(values.dtype)
    residuals[:, :, 0, 0] += starts
    tiles = np.empty_like(residuals)
    for channel in range(place.header.num_channels):
        predictors = modes >> (2 * channel) & 3
        for predictor in (LEFT, UP, PLANE):
            chosen = predictors == predictor
            tiles[chosen, channel] = _summed(residuals[chosen, channel], predictor)
    is_less = modes & SUBTRACT_GREEN != 0
    for channel in (0, 2) if place.header.num_channels >= 3 else ():
        tiles[is_less, channel] += tiles[is_less, 1]
    side_by_side: Samples = tiles.transpose(1, 2, 0, 3).reshape(place.header.num_channels, TILE_SIDE, -1)
    return side_by_side


def count_units(coded: npt.NDArray[np.uint8], rest: npt.NDArray[np.uint8], place: GroupPlace) -> npt.NDArray[np.int32]:
    """Returns the offsets of the units of a group.

    Returns:
        (T * C, 3) int32: top and second planes in the coded section, remaining planes in the rest.

    Raises:
        FormatError: The modes, widths or lengths are invalid.
    """
    _, _, grids, (top, second, _) = _split(coded, rest, place)
    widths = _widths(grids).reshape(-1, _GRID * _GRID)
    own = 2 * np.stack(((widths > 0).sum(1), (widths > 1).sum(1), np.maximum(widths - 2, 0).sum(1)), axis=1)
    begin = np.array([len(coded) - len(top) - len(second), len(coded) - len(second), 0])
    found: npt.NDArray[np.int32] = (begin + np.cumsum(own, axis=0) - own).astype(np.int32)
    return found


def _split(
    coded: npt.NDArray[np.uint8], rest: npt.NDArray[np.uint8], place: GroupPlace
) -> tuple[npt.NDArray[np.int64], Samples, npt.NDArray[np.uint8], tuple[npt.NDArray[np.uint8], ...]]:
    """Returns checked modes (T,), first samples (T, C), width codes (T, C, 16, 16), and the three sections."""
    channels, num_tiles = place.header.num_channels, place.num_tiles
    if len(coded) < place.start_bytes:
        raise FormatError("a group ends within its modes", expected=place.start_bytes, got=len(coded))
    modes = coded[: 2 * num_tiles].view("<u2").astype(np.int64)
    for channel in range(4):
        if np.any((modes >> (2 * channel) & 3) > (PLANE if channel < channels else 0)):
            raise FormatError("unknown predictor", got=modes.tolist())
    if np.any(modes >> 8 > (1 if channels >= 3 else 0)):
        raise FormatError("unknown color transform", got=modes.tolist())
    dtype = place.header.dtype
    starts = np.frombuffer(coded[2 * num_tiles : place.start_bytes].tobytes(), dtype.newbyteorder("<"))
    grids, at = np.zeros((num_tiles, channels, _GRID, _GRID), np.uint8), place.start_bytes
    for number, across in enumerate(place.num_across):
        count = place.num_down * across
        num_bytes = (count + 1) // 2
        if at + num_bytes * channels > len(coded):
            raise FormatError("a group ends within its widths", got=len(coded))
        packed = coded[at : at + num_bytes * channels].reshape(channels, num_bytes)
        codes = np.stack((packed & 15, packed >> 4), axis=2).reshape(channels, -1)
        if codes[:, count:].any() or (place.header.bits == 8 and codes.max() > 8):
            raise FormatError("invalid width code")
        grids[number, :, : place.num_down, :across] = codes[:, :count].reshape(channels, place.num_down, across)
        at += num_bytes * channels
    widths = _widths(grids)
    top, second = 2 * int((widths > 0).sum()), 2 * int((widths > 1).sum())
    if at + top + second != len(coded) or 2 * int(np.maximum(widths - 2, 0).sum()) != len(rest):
        raise FormatError("the lengths of a group's sections do not match its widths", got=(len(coded), len(rest)))
    sections = coded[at : at + top], coded[at + top :], rest
    return modes, starts.astype(dtype).reshape(num_tiles, channels), grids, sections


def _values(
    grids: npt.NDArray[np.uint8],
    top: npt.NDArray[np.uint8],
    second: npt.NDArray[np.uint8],
    rest: npt.NDArray[np.uint8],
    *,
    bits: int,
) -> Samples:
    """Returns zigzag-coded residuals, (T, C, 64, 64), from bit planes."""
    widths = _widths(grids.reshape(-1))[:, np.newaxis]
    which = np.arange(bits)
    planes = np.zeros((len(widths), bits, 2), np.uint8)
    planes[which == widths - 1] = top.reshape(-1, 2)
    planes[which == widths - 2] = second.reshape(-1, 2)
    planes[which < widths - 2] = rest.reshape(-1, 2)
    dtype: Any = np.uint8 if bits == 8 else np.uint16
    single: Samples = np.unpackbits(planes, axis=2, bitorder="little").astype(dtype)
    blocks = (single << which.astype(dtype)[:, np.newaxis]).sum(axis=1, dtype=dtype)
    shape = (*grids.shape, BLOCK_SIDE, BLOCK_SIDE)
    values: Samples = blocks.reshape(shape).swapaxes(3, 4).reshape(*grids.shape[:2], TILE_SIDE, TILE_SIDE)
    return values


def _summed(residuals: Samples, predictor: int) -> Samples:
    dtype: Any = residuals.dtype
    if predictor == LEFT:
        residuals[:, :, 0] = np.cumsum(residuals[:, :, 0], axis=1, dtype=dtype)
        return np.cumsum(residuals, axis=2, dtype=dtype)
    if predictor == UP:
        residuals[:, 0] = np.cumsum(residuals[:, 0], axis=1, dtype=dtype)
        return np.cumsum(residuals, axis=1, dtype=dtype)
    return np.cumsum(np.cumsum(residuals, axis=2, dtype=dtype), axis=1, dtype=dtype)
