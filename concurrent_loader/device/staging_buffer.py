"""Manages the page-locked memory in which batches are assembled: a ring of slots between decode threads and the device.

The CPU writes a slot and the device reads it later. This module decides which slot is next and which work must be done
before the slot may be overwritten; the stage waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from concurrent_loader.device.backend import Ticket
from concurrent_loader.storage.ranges import ByteRange

__all__ = ["ALIGNMENT_BYTES", "Layout", "Slot", "SlotRing", "lay_out"]

_STEP_BYTES = 1 << 20


class Slot:
    """Holds one block of page-locked memory, which grows to the size of the largest batch."""

    def __init__(self, number: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self.number = number
        self._allocate = allocate
        self._memory: torch.Tensor | None = None

    def memory(self, num_bytes: int) -> torch.Tensor:
        """Returns (num_bytes,) uint8; earlier contents may be lost."""
        if self._memory is None or self._memory.numel() < num_bytes:
            self._memory = None  # release first, so that both need not fit
            self._memory = self._allocate(-(-max(num_bytes, 1) // _STEP_BYTES) * _STEP_BYTES)
        return self._memory[:num_bytes]

    def release(self) -> None:
        """Releases the memory."""
        self._memory = None


class SlotRing:
    """Provides slots in rotation.

    Args:
        num_slots: Number of slots, which is the maximum number of batches in transfer.
        allocate: Function that allocates page-locked memory of a size in bytes.

    Raises:
        ValueError: ``num_slots`` is less than 1.
    """

    def __init__(self, num_slots: int, allocate: Callable[[int], torch.Tensor]) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self._slots = [Slot(number, allocate) for number in range(num_slots)]
        self._busy: dict[int, Ticket] = {}
        self._next = 0

    def take(self, wait: Callable[[Ticket], None]) -> Slot:
        """Returns the next slot, ready to be written.

        Args:
            wait: Function that is called with the ticket to wait for, if the device may still read the slot.
        """
        slot = self._slots[self._next]
        ticket = self._busy.get(slot.number)
        if ticket is not None:
            wait(ticket)
            del self._busy[slot.number]
        return slot

    def mark_in_use(self, slot: Slot, ticket: Ticket) -> None:
        """Records that the device reads a slot until a ticket, and advances to the next slot."""
        self._busy[slot.number] = ticket
        self._next = (slot.number + 1) % len(self._slots)

    def release(self) -> None:
        """Releases the memory of all slots; no transfer may be running."""
        self._busy.clear()
        for slot in self._slots:
            slot.release()

    @property
    def num_busy(self) -> int:
        """Number of slots that the device may still read."""
        return len(self._busy)


ALIGNMENT_BYTES = 256  # CUDA's own alignment: any dtype can be viewed, and no two pieces share a cache line


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes the contents of a slot.

    Attributes:
        copied: Ranges of the pieces that are copied to the device, in the given order.
        kept: Ranges of the pieces that are not copied.
        copied_bytes: Length in bytes of the front of the slot, which is copied.
        num_bytes: Length of the whole slot in bytes.
    """

    copied: tuple[ByteRange, ...]
    kept: tuple[ByteRange, ...]
    copied_bytes: int
    num_bytes: int


def lay_out(copied: Sequence[int], kept: Sequence[int], *, alignment_bytes: int = ALIGNMENT_BYTES) -> Layout:
    """Places pieces in sequence, each at a multiple of the alignment.

    Args:
        copied: Sizes in bytes of the pieces that are copied to the device.
        kept: Sizes in bytes of the other pieces.
        alignment_bytes: Alignment of the pieces in bytes. Default 256.
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
