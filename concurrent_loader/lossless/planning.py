"""What an accelerator is told of a batch of lossless pictures: bytes to copy, and facts of each tile. No device here.

Everything that the kernel will rely on is checked here: headers, tables, modes, widths and the lengths of all sections
(`storage.lossless.decoder.index_units`). zstd is undone here, too. What the kernel then reads lies within the bytes
that it gets, whatever a file says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from storage.errors import FormatError
from storage.lossless import PictureHeader, decode, parse_header
from storage.lossless.decoder import index_units, plain_sections
from storage.lossless.layout import BLOCK_SIDE, PACKED, TILE_SIDE, Groups, parse_groups

__all__ = ["NUM_FACTS", "BatchPlan", "PlainPicture", "plan_batch"]

NUM_FACTS = 24
"""Of a tile: mode, where its first samples and its widths are, blocks down and across, where its picture's output
begins, height and width of that, the tile's first row and column there, channels in the file and wanted; then for each
of four channels where its top planes, second planes and rest are."""

_HALF_BYTE_CODES = 2


@dataclass(frozen=True, slots=True)
class PlainPicture:
    """A picture whose samples are stored as they are: they are copied.

    Attributes:
        picture: Its number in the batch.
        start: Where in the batch's bytes they begin.
    """

    picture: int
    start: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch, checked.

    Attributes:
        data: (n,) uint8, all that the kernel reads; to be copied to the device.
        facts: (tiles, 24) int64, see `NUM_FACTS`.
        shapes: (C, H, W) of each picture's box.
        starts: Where in the output each of them begins; one more for the end.
        plain: Those that are no work for the kernel.
    """

    data: npt.NDArray[np.uint8]
    facts: npt.NDArray[np.int64]
    shapes: list[tuple[int, int, int]]
    starts: list[int]
    plain: list[PlainPicture]


def plan_batch(
    files: Sequence[Buffer],
    boxes: Sequence[Box | None] | None = None,
    *,
    alpha: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> BatchPlan:
    """Checks a batch's pictures and gathers what an accelerator needs of them.

    Args:
        files: Encoded pictures of 8 bits and any sizes.
        boxes: The part of each that is wanted; None for all of it. Only its tiles are looked at; ``flip`` is not.
        alpha: Whether an alpha channel is wanted, too.
        max_pixels: A larger picture is refused.

    Raises:
        DecodeError: A file that is no picture, too large, damaged in what is looked at, or of 16 bits; ``sample`` is
            its place among ``files``. Or a box that does not lie within its picture.
    """
    gathered = _Gathered()
    for at, data in enumerate(files):
        try:
            gathered.add(data, boxes[at] if boxes is not None else None, alpha=alpha, max_pixels=max_pixels)
        except FormatError as error:
            raise DecodeError(error.what, sample=at, expected=error.expected, got=error.got) from error
        except DecodeError as error:
            error.locate(sample=at)
            raise
    return gathered.finish()


class _Gathered:
    """Bytes and facts of the pictures so far."""

    def __init__(self) -> None:
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._num_bytes = 0
        self._facts: list[npt.NDArray[np.int64]] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._starts = [0]
        self._plain: list[PlainPicture] = []

    def add(self, data: Buffer, box: Box | None, *, alpha: bool, max_pixels: int) -> None:
        """Takes the next picture."""
        header = parse_header(data)
        if header.width * header.height > max_pixels:
            raise DecodeError("the image is too large", expected=max_pixels, got=(header.width, header.height))
        if header.bits != 8:
            raise DecodeError("lossless pictures of 16 bits are decoded by the processor", expected=8, got=header.bits)
        place = _checked(box, header)
        channels = header.num_channels if alpha else header.num_channels - (header.num_channels + 1) % 2
        if header.mode == PACKED:
            self._add_packed(data, header, place, channels)
        else:
            self._plain.append(PlainPicture(len(self._shapes), self._num_bytes))
            self._append(decode(data, box=place, alpha=alpha, max_pixels=max_pixels).reshape(-1))
        self._shapes.append((channels, *place[2:]))
        self._starts.append(self._starts[-1] + channels * place[2] * place[3])

    def finish(self) -> BatchPlan:
        """Puts everything together."""
        data = np.concatenate(self._pieces) if self._pieces else np.empty(0, np.uint8)
        facts = np.concatenate(self._facts) if self._facts else np.empty((0, NUM_FACTS), np.int64)
        return BatchPlan(data, facts, self._shapes, self._starts, self._plain)

    def _append(self, piece: npt.NDArray[np.uint8]) -> None:
        self._pieces.append(piece)
        self._num_bytes += len(piece)

    def _add_packed(self, data: Buffer, header: PictureHeader, place: tuple[int, int, int, int], channels: int) -> None:
        groups = parse_groups(data, header).touching(*place)
        coded = plain_sections(data, groups)
        units = index_units(data, header, groups, coded)
        before = self._num_bytes
        whole = np.frombuffer(data, np.uint8)
        rests = (groups.start + groups.stored_bytes).tolist()
        for section, rest, rest_bytes in zip(coded, rests, groups.rest_bytes.tolist(), strict=True):
            self._append(np.frombuffer(section, np.uint8))
            self._append(whole[rest : rest + rest_bytes])
        facts = _tile_facts(header, groups, units, coded, first_byte=before)
        facts[:, 5:8] = self._starts[-1], place[2], place[3]
        facts[:, 8:10] -= place[:2]
        facts[:, 11] = channels
        seen = (facts[:, 8] < place[2]) & (facts[:, 9] < place[3])
        seen &= (facts[:, 8] > -TILE_SIDE) & (facts[:, 9] > -TILE_SIDE)
        self._facts.append(facts[seen])


def _checked(box: Box | None, header: PictureHeader) -> tuple[int, int, int, int]:
    if box is None:
        return 0, 0, header.height, header.width
    fits = min(box.top, box.left) >= 0 and min(box.height, box.width) >= 1
    if not fits or box.top + box.height > header.height or box.left + box.width > header.width:
        size = header.height, header.width
        raise DecodeError("the crop does not lie within the picture", expected=size, got=box)
    return box.top, box.left, box.height, box.width


def _tile_facts(
    header: PictureHeader,
    groups: Groups,
    units: npt.NDArray[np.int32],
    coded: Sequence[Buffer],
    *,
    first_byte: int,
) -> npt.NDArray[np.int64]:
    """Facts of the tiles of some groups, whose coded sections and rests stand in turns from ``first_byte`` on."""
    counts, channels = groups.num_tiles, header.num_channels
    lengths = groups.coded_bytes + groups.rest_bytes
    begins = first_byte + np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(groups)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = begins[owner]
    tile_row, tile_column = groups.tile_row[owner], groups.tile_column[owner] + number
    down = _blocks(header.height - tile_row * TILE_SIDE)
    across = _blocks(header.width - tile_column * TILE_SIDE)
    # Within a group, all tiles before one are whole ones.
    own_widths = channels * -(-down * (TILE_SIDE // BLOCK_SIDE) // _HALF_BYTE_CODES)
    facts = np.zeros((len(owner), NUM_FACTS), np.int64)
    facts[:, 0] = np.concatenate(
        [np.frombuffer(section, "<u2", count) for section, count in zip(coded, counts.tolist(), strict=True)]
    )
    facts[:, 1] = begin + 2 * counts[owner] + number * channels
    facts[:, 2] = begin + (2 + channels) * counts[owner] + number * own_widths
    facts[:, 3], facts[:, 4] = down, across
    facts[:, 8], facts[:, 9] = tile_row * TILE_SIDE, tile_column * TILE_SIDE
    facts[:, 10] = channels
    places = units.reshape(-1, channels, 3).astype(np.int64) + begin[:, np.newaxis, np.newaxis]
    places[:, :, 2] += groups.coded_bytes[owner][:, np.newaxis]
    facts[:, 12 : 12 + 3 * channels] = places.reshape(len(owner), -1)
    return facts


def _blocks(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    blocks: npt.NDArray[np.int64] = -(-np.minimum(samples, TILE_SIDE) // BLOCK_SIDE)
    return blocks
