"""Buffers that are used again."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from concurrent_loader.storage.fetch import buffer_pool
from concurrent_loader.storage.fetch.buffer_pool import BUFFER_BYTES, BufferPool


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def test_a_buffer_is_used_again_once_nothing_refers_to_it() -> None:
    pool = BufferPool()
    first = pool.take(BUFFER_BYTES)
    place = address(first)
    part = np.asarray(first.toreadonly()[5:9])
    first[5:9] = b"kept"
    del first
    second = pool.take(BUFFER_BYTES - 1)
    second[:] = bytes(BUFFER_BYTES - 1)
    assert address(second) != place  # an array made of a part still refers to it
    assert part.tobytes() == b"kept"
    del part
    third = pool.take(BUFFER_BYTES // 2 + 1)
    assert address(third) == place
    assert len(third) == BUFFER_BYTES // 2 + 1


def test_few_buffers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def new_buffer() -> mmap.mmap:
        made.append(len(made))
        return mmap.mmap(-1, BUFFER_BYTES)

    monkeypatch.setattr(buffer_pool, "_new_buffer", new_buffer)
    pool = BufferPool()
    views = [pool.take(BUFFER_BYTES) for _ in range(10)]
    views.clear()
    views = [pool.take(BUFFER_BYTES) for _ in range(10)]
    assert len(made) == 12


@pytest.mark.parametrize("num_bytes", [0, 1, BUFFER_BYTES // 2, BUFFER_BYTES + 1])
def test_other_lengths_have_memory_of_their_own(num_bytes: int) -> None:
    pool = BufferPool()
    assert len(pool.take(num_bytes)) == num_bytes
    assert not pool._free


def test_no_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError):
        BufferPool().take(BUFFER_BYTES)
