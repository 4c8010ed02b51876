from __future__ import annotations

import os

import torch

from concurrent_loader.batch.shared_memory import SharedBlocks
from concurrent_loader.device import StagedColumn, StagedImage
from concurrent_loader.workers.serialization import pack, unpack


def column() -> StagedColumn:
    return StagedColumn(
        "image", "jpeg", "rgb", (8, 8),
        (
            StagedImage(7, "a", 1, 1, codec="nvjpeg", data=b"x" * 50_000),
            StagedImage(8, "a", 2, 3, pixels=torch.full((3, 2, 3), 5, dtype=torch.uint8)),
            StagedImage(9, "b", 1, 1, codec="nvjpeg", data=memoryview(b"-yy-" * 20_000)[1:-1]),
        ),
    )  # fmt: skip


def payloads(column: StagedColumn) -> list[bytes]:
    return [column.payload(image).tobytes() for image in column.images if image.codec]


def test_packed_bytes_are_the_same_bytes() -> None:
    packed = column().packed()
    assert payloads(packed) == payloads(column())
    assert [(each.sample, each.key) for each in packed.images] == [(7, "a"), (8, "a"), (9, "b")]
    assert all(each.data is None for each in packed.images)
    assert len(packed) == 3


def test_they_change_processes_without_a_copy() -> None:
    blocks = SharedBlocks()
    with blocks:
        packed = column().packed()
    parcel = pack(packed, blocks)
    assert len(parcel.files) == 2  # the note, and the block that was made in shared memory
    there = unpack([os.dup(fd) for fd in parcel.files])
    parcel.close()
    blocks.close()
    assert payloads(there) == payloads(column())
    assert torch.equal(there.images[1].pixels, column().images[1].pixels)
