"""Page-locked memory that batches are put together in: a ring of slots between decode threads and the device.

A slot is written by the CPU and read by the device, later. Which slot is next, and what must be over before it may be
written to again, is decided here; the waiting is the stage's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from concurrent_loader.device.backend import Ticket

__all__ = ["Slot", "SlotRing"]

_STEP_BYTES = 1 << 20


class Slot:
    """One piece of page-locked memory, which grows to what the largest batch so far has needed."""

    def __init__(self, number: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self.number = number
        self._allocate = allocate
        self._memory: torch.Tensor | None = None

    def memory(self, num_bytes: int) -> torch.Tensor:
        """Returns (num_bytes,) uint8; what was there before may be gone."""
        if self._memory is None or self._memory.numel() < num_bytes:
            self._memory = None  # first, so that both need not fit
            self._memory = self._allocate(-(-max(num_bytes, 1) // _STEP_BYTES) * _STEP_BYTES)
        return self._memory[:num_bytes]

    def clear(self) -> None:
        """Lets go of the memory."""
        self._memory = None


class SlotRing:
    """The slots, used one after another.

    Args:
        num_slots: How many: so many batches may be on their way at once.
        allocate: Makes page-locked memory.

    Raises:
        ValueError: There would be none.
    """

    def __init__(self, num_slots: int, allocate: Callable[[int], torch.Tensor]) -> None:
        if num_slots < 1:
            raise ValueError(f"a ring needs a slot, got {num_slots}")
        self._slots = [Slot(number, allocate) for number in range(num_slots)]
        self._busy: dict[int, Ticket] = {}
        self._next = 0

    def take(self, wait: Callable[[Ticket], None]) -> Slot:
        """Returns the next slot, free to be written to.

        Args:
            wait: Called with the point that must have been reached before, if the device may still read from it.
        """
        slot = self._slots[self._next]
        ticket = self._busy.get(slot.number)
        if ticket is not None:
            wait(ticket)
            del self._busy[slot.number]
        return slot

    def sent(self, slot: Slot, ticket: Ticket) -> None:
        """Notes that the device reads from a slot until some point; the next one is another's turn."""
        self._busy[slot.number] = ticket
        self._next = (slot.number + 1) % len(self._slots)

    def forget(self) -> None:
        """Lets go of the slots' memory; nothing may be under way any more."""
        self._busy.clear()
        for slot in self._slots:
            slot.clear()

    @property
    def num_busy(self) -> int:
        """Slots that the device may still read from."""
        return len(self._busy)
