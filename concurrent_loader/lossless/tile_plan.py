"""Plans the decoding of a batch of lossless images: bytes to copy and facts of each tile. Never touches a device.

This module checks everything that the kernel relies on: headers, tables, modes, widths and the lengths of all sections
(`concurrent_loader.storage.lossless.decoder.index_units`). It also decompresses zstd. The kernel then reads only within
the bytes that it gets, whatever a file contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless import LosslessHeader, decode, parse_header
from concurrent_loader.storage.lossless.decoder import index_units, plain_sections
from concurrent_loader.storage.lossless.layout import BLOCK_SIDE, PACKED, TILE_SIDE, Groups, parse_groups

__all__ = ["NUM_FACTS", "BatchPlan", "Place", "PlainImage", "check_box", "facts_of_tiles", "plan_batch"]

NUM_FACTS = 24
"""Number of facts of a tile: mode; offsets of its first samples and of its widths; block rows and block columns; offset
of the image's output, its height and width; first row and column of the tile in the output; channels in the file and in
the output; then, for each of four channels, offsets of its top planes, second planes and remaining planes."""

Place = tuple[int, int, int, int]
"""Part of an image: top, left, height, width."""

_HALF_BYTE_CODES = 2


@dataclass(frozen=True, slots=True)
class PlainImage:
    """Describes an image whose samples are stored without coding and are only copied.

    Attributes:
        image: Position of the image in the batch.
        start: Offset of its samples in the bytes of the batch.
    """

    image: int
    start: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Stores a checked batch.

    Attributes:
        data: Bytes that the kernel reads, (n,) uint8, to copy to the device.
        facts: (tiles, 24) int64, see `NUM_FACTS`.
        shapes: Shape (C, H, W) of the box of each image.
        starts: Offset of each image in the output, followed by the length of the output.
        plain: Images that do not need the kernel.
    """

    data: npt.NDArray[np.uint8]
    facts: npt.NDArray[np.int64]
    shapes: list[tuple[int, int, int]]
    starts: list[int]
    plain: list[PlainImage]


def plan_batch(
    files: Sequence[Buffer],
    boxes: Sequence[Box | None] | None = None,
    *,
    alpha: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> BatchPlan:
    """Checks the images of a batch and collects what a device needs to decode them.

    Args:
        files: Encoded images with 8 bits per channel, of any sizes.
        boxes: Part of each image; None for the whole image. Only tiles of the part are read. ``flip`` is ignored.
        alpha: Whether to include an alpha channel. Default False.
        max_pixels: Maximum number of pixels of an image.

    Raises:
        DecodeError: A file is not a lossless image, too large, damaged in the part that is read, or has 16 bits; or its
            box does not lie within it. ``sample`` is the position in ``files``.
    """
    builder = _PlanBuilder()
    for at, data in enumerate(files):
        try:
            builder.add(data, boxes[at] if boxes is not None else None, alpha=alpha, max_pixels=max_pixels)
        except FormatError as error:
            raise DecodeError(error.what, sample=at, expected=error.expected, got=error.got) from error
        except DecodeError as error:
            error.locate(sample=at)
            raise
    return builder.build()


class _PlanBuilder:
    """Collects the bytes and facts of images."""

    def __init__(self) -> None:
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._num_bytes = 0
        self._facts: list[npt.NDArray[np.int64]] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._starts = [0]
        self._plain: list[PlainImage] = []

    def add(self, data: Buffer, box: Box | None, *, alpha: bool, max_pixels: int) -> None:
        """Adds the next image."""
        header = parse_header(data)
        if header.width * header.height > max_pixels:
            raise DecodeError("the image is too large", expected=max_pixels, got=(header.width, header.height))
        if header.bits != 8:
            raise DecodeError("only lossless images with 8 bits are decoded on a device", expected=8, got=header.bits)
        place = check_box(box, header)
        channels = header.num_channels if alpha else header.num_channels - (header.num_channels + 1) % 2
        if header.mode == PACKED:
            self._add_packed(data, header, place, channels)
        else:
            self._plain.append(PlainImage(len(self._shapes), self._num_bytes))
            self._append(decode(data, box=place, alpha=alpha, max_pixels=max_pixels).reshape(-1))
        self._shapes.append((channels, *place[2:]))
        self._starts.append(self._starts[-1] + channels * place[2] * place[3])

    def build(self) -> BatchPlan:
        """Returns the plan of all images."""
        data = np.concatenate(self._pieces) if self._pieces else np.empty(0, np.uint8)
        facts = np.concatenate(self._facts) if self._facts else np.empty((0, NUM_FACTS), np.int64)
        return BatchPlan(data, facts, self._shapes, self._starts, self._plain)

    def _append(self, piece: npt.NDArray[np.uint8]) -> None:
        self._pieces.append(piece)
        self._num_bytes += len(piece)

    def _add_packed(self, data: Buffer, header: LosslessHeader, place: Place, channels: int) -> None:
        groups = parse_groups(data, header).touching(*place)
        coded = plain_sections(data, groups)
        units = index_units(data, header, groups, coded)
        facts = facts_of_tiles(header, groups, units, coded, place, channels, first_byte=self._num_bytes)
        facts[:, 5] = self._starts[-1]
        self._facts.append(facts)
        whole = np.frombuffer(data, np.uint8)
        rests = (groups.start + groups.stored_bytes).tolist()
        for section, rest, rest_bytes in zip(coded, rests, groups.rest_bytes.tolist(), strict=True):
            self._append(np.frombuffer(section, np.uint8))
            self._append(whole[rest : rest + rest_bytes])


def check_box(box: Box | None, header: LosslessHeader) -> Place:
    """Returns the part of an image that a box selects; None selects the whole image.

    Raises:
        DecodeError: The box does not lie within the image.
    """
    if box is None:
        return 0, 0, header.height, header.width
    fits = min(box.top, box.left) >= 0 and min(box.height, box.width) >= 1
    if not fits or box.top + box.height > header.height or box.left + box.width > header.width:
        size = header.height, header.width
        raise DecodeError("the crop does not lie within the image", expected=size, got=box)
    return box.top, box.left, box.height, box.width


def facts_of_tiles(
    header: LosslessHeader,
    groups: Groups,
    units: npt.NDArray[np.int32],
    coded: Sequence[Buffer],
    place: Place,
    channels: int,
    *,
    first_byte: int,
) -> npt.NDArray[np.int64]:
    """Returns the facts of the tiles that a part of an image touches.

    Args:
        header: Header of the image.
        groups: Groups that the part touches.
        units: Result of `index_units`.
        coded: Coded sections of the groups.
        place: Part of the image.
        channels: Number of channels of the output.
        first_byte: Offset of the groups' coded sections and remaining planes, which alternate.

    Returns:
        (tiles, 24) int64, see `NUM_FACTS`; the output of the part begins at 0.
    """
    facts = _tile_facts(header, groups, units, coded, first_byte=first_byte)
    facts[:, 6:8] = place[2:]
    facts[:, 8:10] -= place[:2]
    facts[:, 11] = channels
    seen = (facts[:, 8] < place[2]) & (facts[:, 9] < place[3])
    seen &= (facts[:, 8] > -TILE_SIDE) & (facts[:, 9] > -TILE_SIDE)
    return facts[seen]


def _tile_facts(
    header: LosslessHeader,
    groups: Groups,
    units: npt.NDArray[np.int32],
    coded: Sequence[Buffer],
    *,
    first_byte: int,
) -> npt.NDArray[np.int64]:
    """Returns the facts of all tiles of groups whose sections begin at ``first_byte``."""
    counts, channels = groups.num_tiles, header.num_channels
    lengths = groups.coded_bytes + groups.rest_bytes
    begins = first_byte + np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(groups)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = begins[owner]
    tile_row, tile_column = groups.tile_row[owner], groups.tile_column[owner] + number
    down = _blocks(header.height - tile_row * TILE_SIDE)
    across = _blocks(header.width - tile_column * TILE_SIDE)
    # Within a group, all tiles before a tile are whole.
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
