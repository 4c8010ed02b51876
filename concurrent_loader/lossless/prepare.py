"""Prepares one lossless image for a device in a decode thread. This module does not touch the device.

A decode thread does everything that concerns one image alone: checks, zstd, tile facts. Facts and bytes share one block
of memory, so that they are copied together with the other data of the batch. The facts are followed by a valid lossless
image with only the groups that the box touches, from which the CPU can decode if the device fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from concurrent_loader.decode import Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless.tile_plan import NUM_FACTS, Place, check_box, facts_of_tiles
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless import LosslessHeader, decode, parse_header
from concurrent_loader.storage.lossless.decoder import index_units, plain_sections
from concurrent_loader.storage.lossless.layout import PACKED, PLAIN, TILE_SIDE, Groups, parse_groups

__all__ = ["FACT_COLUMNS", "TilePlan", "prepare_image"]

FACT_COLUMNS = (1, 2, *range(12, NUM_FACTS))
"""Columns of the tile facts that are offsets into the bytes of an image."""

_FACT_BYTES = 8
_ANY_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Stores what the CPU needs to know about a prepared image when its bytes are elsewhere.

    Attributes:
        num_tiles: Number of tiles for the kernel; 0 for an image whose samples are stored without coding.
        shape: Shape (C, H, W) of the part to decode.
        top: First row of the part, in the image that follows the facts.
        left: First column of the part, in the image that follows the facts.
    """

    num_tiles: int
    shape: tuple[int, int, int]
    top: int = 0
    left: int = 0

    @property
    def facts_bytes(self) -> int:
        """Length in bytes of the facts, which the image follows."""
        return self.num_tiles * NUM_FACTS * _FACT_BYTES

    def located(self, box: Box) -> Box:
        """Converts a box of the part to a box of the image that follows the facts."""
        return replace(box, top=box.top + self.top, left=box.left + self.left)


def prepare_image(data: Buffer, box: Box | None, mode: str) -> tuple[memoryview, TilePlan]:
    """Checks an image, decompresses zstd and computes its tile facts, only for the groups that the box touches.

    Args:
        data: Encoded image with 8 bits per channel. The caller checks its size.
        box: Part of the image to decode; None for the whole image. ``flip`` is ignored.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``; only ``"unchanged"`` includes alpha.

    Returns:
        The bytes for the device and the plan for the CPU. The bytes are `NUM_FACTS` int64 for each tile, followed by a
        lossless image. Offsets count from the first of these bytes; output offsets count from the start of the part.

    Raises:
        DecodeError: The data is damaged or has 16 bits, or the box does not lie within the image.

    Thread-safety: May be called from any number of threads; zstd and the native module release the GIL.
    """
    try:
        header = parse_header(data)
        if header.bits != 8:
            raise DecodeError("only lossless images with 8 bits are decoded on a device", expected=8, got=header.bits)
        place = check_box(box, header)
        alpha = mode == "unchanged"
        if header.mode == PACKED:
            channels = header.num_channels if alpha else header.num_channels - (header.num_channels + 1) % 2
            return _packed(data, header, place, channels)
        pixels = decode(data, box=place, alpha=alpha, max_pixels=_ANY_SIZE)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error
    channels, height, width = pixels.shape
    plain = LosslessHeader(PLAIN, channels, 8, width, height)
    return memoryview(plain.to_bytes() + pixels.tobytes()), TilePlan(0, (channels, height, width))


def _packed(data: Buffer, header: LosslessHeader, place: Place, channels: int) -> tuple[memoryview, TilePlan]:
    groups = parse_groups(data, header).touching(*place)
    coded = plain_sections(data, groups)
    units = index_units(data, header, groups, coded)
    facts = facts_of_tiles(header, groups, units, coded, place, channels, first_byte=0)
    above, beside = int(groups.tile_row[0]) * TILE_SIDE, int(groups.tile_column[0]) * TILE_SIDE
    plan = TilePlan(len(facts), (channels, *place[2:]), place[0] - above, place[1] - beside)
    outside = _outside(header, groups)
    sections_at = plan.facts_bytes + len(outside)
    facts[:, FACT_COLUMNS] += sections_at
    content = np.empty(sections_at + int((groups.coded_bytes + groups.rest_bytes).sum()), np.uint8)
    content[: plan.facts_bytes] = facts.view(np.uint8).reshape(-1)
    content[plan.facts_bytes : sections_at] = outside
    whole, at = np.frombuffer(data, np.uint8), sections_at
    rests = (groups.start + groups.stored_bytes).tolist()
    for section, rest, rest_bytes in zip(coded, rests, groups.rest_bytes.tolist(), strict=True):
        for piece in (np.frombuffer(section, np.uint8), whole[rest : rest + rest_bytes]):
            content[at : at + len(piece)] = piece
            at += len(piece)
    return content.data, plan


def _outside(header: LosslessHeader, groups: Groups) -> npt.NDArray[np.uint8]:
    """Returns the header and table of an image that contains only the given groups: whole rows, whole columns."""
    rows, columns = groups.tile_row, groups.tile_column
    below = min(header.height, (int(rows[-1]) + 1) * TILE_SIDE)
    beyond = min(header.width, int(columns[-1] + groups.num_tiles[-1]) * TILE_SIDE)
    part = replace(header, height=below - int(rows[0]) * TILE_SIDE, width=beyond - int(columns[0]) * TILE_SIDE)
    table = np.stack((groups.coded_bytes, groups.coded_bytes, groups.rest_bytes), axis=1).astype("<u4")
    return np.concatenate((np.frombuffer(part.to_bytes(), np.uint8), table.view(np.uint8).reshape(-1)))
