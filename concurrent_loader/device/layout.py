"""Where each piece of a batch lies in its page-locked slot: pure arithmetic between decode threads and the device.

What is copied lies at the front, so that one copy takes all of it; what the device's decoder reads from the host's
memory comes behind and is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.ranges import ByteRange

__all__ = ["ALIGNMENT_BYTES", "Layout", "lay_out"]

ALIGNMENT_BYTES = 256  # of CUDA's own allocations: any dtype may be viewed there, and no two pieces share a cache line


@dataclass(frozen=True, slots=True)
class Layout:
    """A slot's contents.

    Attributes:
        copied: The pieces that go to the device, in the order given.
        kept: Those that stay.
        copied_bytes: The slot's front [0, copied_bytes), which is copied.
        num_bytes: Of the whole slot.
    """

    copied: tuple[ByteRange, ...]
    kept: tuple[ByteRange, ...]
    copied_bytes: int
    num_bytes: int


def lay_out(copied: Sequence[int], kept: Sequence[int], *, alignment_bytes: int = ALIGNMENT_BYTES) -> Layout:
    """Places pieces one after another, each at a multiple of the alignment.

    Args:
        copied: Sizes in bytes of what goes to the device.
        kept: Sizes in bytes of what stays.
        alignment_bytes: Where pieces may begin.
    """
    front, end = _place(copied, 0, alignment_bytes)
    back, whole = _place(kept, end, alignment_bytes)
    return Layout(front, back, end, whole)


def _place(sizes: Sequence[int], start: int, alignment_bytes: int) -> tuple[tuple[ByteRange, ...], int]:
    ranges = []
    for size in sizes:
        ranges.append(ByteRange(start, start + size))
        start = -(-(start + size) // alignment_bytes) * alignment_bytes
    return tuple(ranges), start
