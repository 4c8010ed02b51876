"""Many threads write the images of one batch into one buffer."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from concurrent_loader.batch.buffers import BatchBuffers, BatchSlotWrites, gather_images
from concurrent_loader.batch.decode_failures import FailedImage
from concurrent_loader.batch.shared_memory import LARGE_BYTES, SharedBlocks
from concurrent_loader.errors import DecodeError

SHAPE = (3, 64, 64)


def num_descriptors() -> int:
    gc.collect()  # what earlier tests left closes now, not meanwhile
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("shared", [False, True])
def test_all_threads_get_the_same_memory(shared: bool) -> None:
    before = num_descriptors()
    memory = BatchBuffers(16, SharedBlocks() if shared else None)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: memory.images("image", SHAPE), range(64)))
    assert all(each is found[0] for each in found)
    assert (found[0].shape, found[0].dtype, found[0].is_contiguous()) == ((16, *SHAPE), torch.uint8, True)
    assert memory.images("other", (3, 8, 8)).shape == (16, 3, 8, 8)  # small: not in a file
    assert num_descriptors() - before == int(shared)
    memory.close()
    memory.close()
    assert num_descriptors() == before
    found[0].fill_(7)  # the memory lives as long as somebody has it


def test_a_thread_that_is_late_leaves_no_descriptor() -> None:
    before = num_descriptors()
    memory = BatchBuffers(16, SharedBlocks())
    memory.close()
    memory.images("image", SHAPE).fill_(1)
    assert num_descriptors() == before


def test_whoever_takes_a_descriptor_keeps_it() -> None:
    blocks = SharedBlocks()
    memory = BatchBuffers(16, blocks)
    images = memory.images("image", SHAPE)
    num_bytes = images.numel()
    assert num_bytes >= LARGE_BYTES
    assert blocks.take(images.data_ptr(), num_bytes - 1) is None
    fd = blocks.take(images.data_ptr(), num_bytes)
    assert fd is not None
    memory.close()
    images[0, 0, 0, 0] = 9
    assert os.pread(fd, 1, 0) == b"\x09"
    os.close(fd)
    assert blocks.take(images.data_ptr(), num_bytes) is None


def placed(*slices: list[int]) -> list[BatchSlotWrites]:
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).repeat(1, 3, 2, 2)
    return [BatchSlotWrites(images, np.array(positions)) for positions in slices]


def test_pictures_that_lie_in_order_are_not_copied() -> None:
    parts = placed([4, 0, 1], [2, 5, 3])
    back = np.argsort(np.concatenate([part.positions for part in parts]))
    assert gather_images(parts, back) is parts[0].images


@pytest.mark.parametrize("rows", [[0, 2, 5], [3, 3, 3, 3, 3, 3], [1], [1, 0, 2, 3, 4, 5]])
def test_some_pictures_are_copied(rows: list[int]) -> None:
    parts = placed([4, 0, 1], [2, 5, 3])
    back = np.argsort(np.concatenate([part.positions for part in parts]))
    some = gather_images(parts, back[rows])
    assert some[:, 0, 0, 0].tolist() == rows
    assert some.data_ptr() != parts[0].images.data_ptr()


def test_blanks_are_black() -> None:
    (part,) = placed([4, 0, 1])
    part.failures[0] = FailedImage(DecodeError("no"), SHAPE)
    part.blank(0)
    assert part.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 5]
