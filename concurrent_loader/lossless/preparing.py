"""One lossless picture on its way to an accelerator: what its decode thread leaves for the kernel. No device here.

Bytes and facts lie in one piece of memory, so that they travel with whatever else a batch copies, and so that a
decode thread has done all that can be done for one picture alone: checks, zstd, facts of the tiles. Behind the facts
stands a lossless picture again, of the groups that are needed and without zstd: a processor can decode it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from concurrent_loader.decode import Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless.planning import NUM_FACTS, Place, checked_place, facts_of_tiles
from storage.errors import FormatError
from storage.lossless import PictureHeader, decode, parse_header
from storage.lossless.decoder import index_units, plain_sections
from storage.lossless.layout import PACKED, PLAIN, TILE_SIDE, Groups, parse_groups

__all__ = ["FACT_COLUMNS", "TilePlan", "prepare_picture"]

FACT_COLUMNS = (1, 2, *range(12, NUM_FACTS))
"""Facts that are places among a picture's bytes."""

_FACT_BYTES = 8
_ANY_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class TilePlan:
    """What the processor has to know of a prepared picture, when its bytes are elsewhere.

    Attributes:
        num_tiles: For the kernel; 0 of a picture whose samples are stored as they are.
        shape: (C, H, W) of the part that is decoded.
        top: Where the part begins in the picture behind the facts.
        left: Likewise.
    """

    num_tiles: int
    shape: tuple[int, int, int]
    top: int = 0
    left: int = 0

    @property
    def facts_bytes(self) -> int:
        """Of the facts, behind which the picture stands."""
        return self.num_tiles * NUM_FACTS * _FACT_BYTES

    def located(self, box: Box) -> Box:
        """Moves a box of the part into the picture behind the facts."""
        return replace(box, top=box.top + self.top, left=box.left + self.left)


def prepare_picture(data: Buffer, box: Box | None, mode: str) -> tuple[memoryview, TilePlan]:
    """Checks a picture, undoes zstd, and says what its tiles are; only groups that a box touches are looked at.

    Args:
        data: An encoded picture of 8 bits. How large it may be is the caller's to check.
        box: The part that is wanted; None for all of it. ``flip`` is not looked at.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``; the last one alone wants alpha.

    Returns:
        The facts, each tile's `NUM_FACTS` as int64, its places counted from the first of these bytes, its output from
        the part's; then a lossless picture. And what is to be kept of it on the processor.

    Raises:
        DecodeError: The data is damaged in what is looked at, of 16 bits, or the box does not lie within it.

    Thread-safety: Yes; zstd and the native module release the GIL.
    """
    try:
        header = parse_header(data)
        if header.bits != 8:
            raise DecodeError("lossless pictures of 16 bits are decoded by the processor", expected=8, got=header.bits)
        place = checked_place(box, header)
        alpha = mode == "unchanged"
        if header.mode == PACKED:
            channels = header.num_channels if alpha else header.num_channels - (header.num_channels + 1) % 2
            return _packed(data, header, place, channels)
        pixels = decode(data, box=place, alpha=alpha, max_pixels=_ANY_SIZE)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error
    channels, height, width = pixels.shape
    plain = PictureHeader(PLAIN, channels, 8, width, height)
    return memoryview(plain.to_bytes() + pixels.tobytes()), TilePlan(0, (channels, height, width))


def _packed(data: Buffer, header: PictureHeader, place: Place, channels: int) -> tuple[memoryview, TilePlan]:
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


def _outside(header: PictureHeader, groups: Groups) -> npt.NDArray[np.uint8]:
    """Header and table of a picture that is nothing but some groups, which touch a box: whole rows, whole columns."""
    rows, columns = groups.tile_row, groups.tile_column
    below = min(header.height, (int(rows[-1]) + 1) * TILE_SIDE)
    beyond = min(header.width, int(columns[-1] + groups.num_tiles[-1]) * TILE_SIDE)
    part = replace(header, height=below - int(rows[0]) * TILE_SIDE, width=beyond - int(columns[0]) * TILE_SIDE)
    table = np.stack((groups.coded_bytes, groups.coded_bytes, groups.rest_bytes), axis=1).astype("<u4")
    return np.concatenate((np.frombuffer(part.to_bytes(), np.uint8), table.view(np.uint8).reshape(-1)))
