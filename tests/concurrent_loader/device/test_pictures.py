from __future__ import annotations

import os

import torch

from concurrent_loader.device import StagedColumn, StagedPicture
from concurrent_loader.parcel import pack, unpack
from concurrent_loader.shared_memory import SharedBlocks


def column() -> StagedColumn:
    return StagedColumn(
        "image", "jpeg", "rgb", (8, 8),
        (
            StagedPicture(7, "a", 1, 1, codec="nvjpeg", data=b"x" * 50_000),
            StagedPicture(8, "a", 2, 3, picture=torch.full((3, 2, 3), 5, dtype=torch.uint8)),
            StagedPicture(9, "b", 1, 1, codec="nvjpeg", data=memoryview(b"-yy-" * 20_000)[1:-1]),
        ),
    )  # fmt: skip


def payloads(column: StagedColumn) -> list[bytes]:
    return [column.payload(picture).tobytes() for picture in column.pictures if picture.codec]


def test_packed_bytes_are_the_same_bytes() -> None:
    packed = column().packed()
    assert payloads(packed) == payloads(column())
    assert [(each.sample, each.key) for each in packed.pictures] == [(7, "a"), (8, "a"), (9, "b")]
    assert all(each.data is None for each in packed.pictures)
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
    assert torch.equal(there.pictures[1].picture, column().pictures[1].picture)
