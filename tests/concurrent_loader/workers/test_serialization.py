from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import Batch, collate
from concurrent_loader.batch.shared_memory import LARGE_BYTES, SharedBlocks
from concurrent_loader.workers.serialization import MAX_FILES, pack, unpack

LARGE = LARGE_BYTES  # elements of one byte


@pytest.fixture(autouse=True)
def _closes_all() -> Any:
    gc.collect()  # what earlier tests left closes now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture(params=["memfd", "file"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memfds, and as where there are none."""
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.delattr(os, "posix_fallocate")


def sent(thing: Any, blocks: SharedBlocks | None = None) -> Any:
    packed = pack(thing, blocks)
    try:
        return unpack(packed.files)
    finally:
        packed.close()


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    assert torch.equal(one, other)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("size", [(3,), (), (0,), (2, 0, 3), (300, 400), (2, 3, 200, 200)])
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
def test_tensors_arrive_as_they_are(size: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.arange(torch.Size(size).numel()).reshape(size).to(dtype)
    assert_same(sent(tensor), tensor)


@pytest.mark.parametrize("side", [4, 200])
def test_strides_are_kept(side: int) -> None:
    pictures = torch.randn(2, 3, side, side)
    for tensor in (
        pictures.to(memory_format=torch.channels_last),
        pictures.permute(3, 1, 0, 2),
        pictures[1:],
        pictures[:, :1],
    ):
        arrived = sent(tensor)
        assert torch.equal(arrived, tensor)
        if tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last):
            assert arrived.stride() == tensor.stride()
    spread = torch.arange(3).expand(4, 3)
    assert torch.equal(sent(spread), spread)
    assert torch.equal(sent(pictures[..., ::2]), pictures[..., ::2])


def test_what_is_no_plain_tensor_arrives_in_torchs_way() -> None:
    learnt = sent(torch.ones(3, requires_grad=True))
    assert learnt.requires_grad
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(sent(sparse).to_dense(), torch.eye(3))
    conjugated = torch.tensor([1 + 2j]).conj()
    assert sent(conjugated).tolist() == [1 - 2j]


@pytest.mark.parametrize("length", [4, 100_000])
def test_arrays_arrive_as_they_are(length: int) -> None:
    rows = np.arange(2 * length, dtype=np.float32).reshape(2, length)
    for array in (rows, np.asfortranarray(rows), rows[:, ::2], rows.astype(">i4"), np.array(["a", None], dtype=object)):
        arrived = sent(array)
        assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
        assert (arrived == array).all()
        assert arrived.flags.writeable


def test_a_batch_keeps_its_place_and_its_values() -> None:
    batch = Batch({"data": [b"", b"x" * 100_000], "facts": [{"a": [1]}, None]}, epoch=3, step=4, num_padded=1)
    batch.sample_ids = torch.tensor([8, 9])
    arrived = sent(batch)
    assert isinstance(arrived, Batch)
    assert dict(arrived) == dict(batch)
    assert (arrived.epoch, arrived.step, arrived.num_padded, arrived.sample_ids.tolist()) == (3, 4, 1, [8, 9])
    assert bytes(sent([memoryview(b"view")])[0]) == b"view"


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    )
)
def test_any_plain_value_arrives(value: Any) -> None:
    assert sent((value,)) == (value,)


def test_what_is_put_together_in_shared_memory_is_not_copied() -> None:
    blocks = SharedBlocks()
    with blocks:
        batch = collate([{"picture": torch.full((100, 1000), number, dtype=torch.uint8)} for number in range(3)])
    packed = pack(batch, blocks)
    blocks.close()
    arrived = unpack(packed.files)
    packed.close()
    assert arrived["picture"][:, 0, 0].tolist() == [0, 1, 2]
    batch["picture"][1] = 77  # the same memory
    assert arrived["picture"][:, 0, 0].tolist() == [0, 77, 2]


def test_blocks_are_of_one_thread_and_one_batch() -> None:
    parts = [{"picture": torch.zeros(LARGE, dtype=torch.uint8)}] * 2
    blocks, made = SharedBlocks(), []
    with blocks:
        other = threading.Thread(target=lambda: made.append(collate(parts)))
        other.start()
        other.join()
    made.append(collate(parts))
    for batch in made:
        packed = pack(batch, blocks)
        arrived = unpack(packed.files)
        packed.close()
        batch["picture"][:] = 1
        assert not arrived["picture"].any()  # a copy, for it lay elsewhere
    blocks.close()


def test_a_part_of_a_block_is_copied() -> None:
    blocks = SharedBlocks()
    with blocks:
        batch = collate([{"x": torch.full((LARGE,), number, dtype=torch.uint8)} for number in range(3)])
    arrived = sent({"part": batch["x"][1:], "whole": batch["x"], "again": batch["x"].view(-1)}, blocks)
    blocks.close()
    assert arrived["part"].untyped_storage().nbytes() == 2 * LARGE
    assert arrived["part"][:, 0].tolist() == [1, 2]
    assert torch.equal(arrived["whole"].view(-1), arrived["again"])


def test_descriptors_are_few_however_many_pieces_there_are() -> None:
    pieces = [torch.full((LARGE,), number, dtype=torch.uint8) for number in range(40)]
    packed = pack(pieces)
    assert len(packed.files) == MAX_FILES
    arrived = unpack(packed.files)
    packed.close()
    assert [int(piece[-1]) for piece in arrived] == list(range(40))
    for piece in arrived:
        piece[:] = 1


def test_nothing_is_left_of_what_cannot_be_packed() -> None:
    with pytest.raises(TypeError, match="pickle"):
        pack([torch.zeros(LARGE), threading.Lock()])


def test_no_memory_is_an_error_and_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        pack(torch.zeros(LARGE))
    with SharedBlocks(), pytest.raises(OSError, match="No space"):
        collate([{"x": torch.zeros(LARGE)}])
