from __future__ import annotations

import pytest
import torch

from concurrent_loader.device import Ticket
from concurrent_loader.device.staging_buffer import SlotRing


class Memory:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, num_bytes: int) -> torch.Tensor:
        self.sizes.append(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8)


def test_slots_take_turns_and_are_waited_for_before_they_are_used_again() -> None:
    ring, waited = SlotRing(2, Memory()), []
    for number in range(5):
        slot = ring.take(lambda ticket: waited.append(ticket.event))
        assert slot.number == number % 2
        ring.mark_in_use(slot, Ticket(number))
    assert waited == [0, 1, 2]
    assert ring.num_busy == 2


def test_a_slot_that_was_not_sent_is_taken_again_without_waiting() -> None:
    ring = SlotRing(2, Memory())
    first = ring.take(pytest.fail)
    assert ring.take(pytest.fail) is first
    assert not ring.num_busy


def test_a_wait_that_fails_leaves_the_slot_busy() -> None:
    def fail(_: Ticket) -> None:
        raise RuntimeError("the device is gone")

    ring = SlotRing(1, Memory())
    ring.mark_in_use(ring.take(fail), Ticket(0))
    with pytest.raises(RuntimeError):
        ring.take(fail)
    assert ring.num_busy == 1


def test_memory_grows_to_the_largest_batch_and_is_kept() -> None:
    memory = Memory()
    ring = SlotRing(1, memory)
    slot = ring.take(pytest.fail)
    for num_bytes in (10, 1 << 20, 1000, (1 << 20) + 1, 0):
        assert slot.memory(num_bytes).numel() == num_bytes
    assert memory.sizes == [1 << 20, 2 << 20]
    ring.release()
    slot.memory(1)
    assert memory.sizes == [1 << 20, 2 << 20, 1 << 20]


def test_a_ring_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="num_slots"):
        SlotRing(0, Memory())
