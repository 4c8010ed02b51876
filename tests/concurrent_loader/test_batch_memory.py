"""Memory that many threads write one batch's pictures into."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from concurrent_loader.batch_memory import BatchMemory, Placed, gathered
from concurrent_loader.broken import Broken
from concurrent_loader.errors import DecodeError
from concurrent_loader.shared_memory import LARGE_BYTES, SharedBlocks

SHAPE = (3, 64, 64)


def num_descriptors() -> int:
    gc.collect()  # what earlier tests left closes now, not meanwhile
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("shared", [False, True])
def test_all_threads_get_the_same_memory(shared: bool) -> None:
    before = num_descriptors()
    memory = BatchMemory(16, SharedBlocks() if shared else None)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: memory.pictures("image", SHAPE), range(64)))
    assert all(each is found[0] for each in found)
    assert (found[0].shape, found[0].dtype, found[0].is_contiguous()) == ((16, *SHAPE), torch.uint8, True)
    assert memory.pictures("other", (3, 8, 8)).shape == (16, 3, 8, 8)  # small: not in a file
    assert num_descriptors() - before == int(shared)
    memory.close()
    memory.close()
    assert num_descriptors() == before
    found[0].fill_(7)  # the memory lives as long as somebody has it


def test_a_thread_that_is_late_leaves_no_descriptor() -> None:
    before = num_descriptors()
    memory = BatchMemory(16, SharedBlocks())
    memory.close()
    memory.pictures("image", SHAPE).fill_(1)
    assert num_descriptors() == before


def test_whoever_takes_a_descriptor_keeps_it() -> None:
    blocks = SharedBlocks()
    memory = BatchMemory(16, blocks)
    pictures = memory.pictures("image", SHAPE)
    num_bytes = pictures.numel()
    assert num_bytes >= LARGE_BYTES
    assert blocks.take(pictures.data_ptr(), num_bytes - 1) is None
    fd = blocks.take(pictures.data_ptr(), num_bytes)
    assert fd is not None
    memory.close()
    pictures[0, 0, 0, 0] = 9
    assert os.pread(fd, 1, 0) == b"\x09"
    os.close(fd)
    assert blocks.take(pictures.data_ptr(), num_bytes) is None


def placed(*slices: list[int]) -> list[Placed]:
    pictures = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).repeat(1, 3, 2, 2)
    return [Placed(pictures, np.array(positions)) for positions in slices]


def test_pictures_that_lie_in_order_are_not_copied() -> None:
    parts = placed([4, 0, 1], [2, 5, 3])
    back = np.argsort(np.concatenate([part.positions for part in parts]))
    assert gathered(parts, back) is parts[0].pictures


@pytest.mark.parametrize("rows", [[0, 2, 5], [3, 3, 3, 3, 3, 3], [1], [1, 0, 2, 3, 4, 5]])
def test_some_pictures_are_copied(rows: list[int]) -> None:
    parts = placed([4, 0, 1], [2, 5, 3])
    back = np.argsort(np.concatenate([part.positions for part in parts]))
    some = gathered(parts, back[rows])
    assert some[:, 0, 0, 0].tolist() == rows
    assert some.data_ptr() != parts[0].pictures.data_ptr()


def test_blanks_are_black() -> None:
    (part,) = placed([4, 0, 1])
    part.broken[0] = Broken(DecodeError("no"), SHAPE)
    part.blank(0)
    assert part.pictures[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 5]
