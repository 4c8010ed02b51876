from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.batch.batch import Batch
from concurrent_loader.device import StagedColumn, StagedImage
from concurrent_loader.device.batch_transfer import BatchBytes, restore

DTYPES = (torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
    ),
)
def test_a_column_comes_back_with_dtype_shape_and_order(dtype: torch.dtype, how: tuple[list[int], list[int]]) -> None:
    shape, order = how
    column = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype).permute(order)
    (piece,) = BatchBytes.of(Batch({"x": column})).copied
    content = torch.from_numpy(piece.content.copy())
    for whole_bytes in (content.numel(), 10 * content.numel()):
        back = restore(content, column, whole_bytes)
        assert torch.equal(back, column)
        assert back.dtype == column.dtype
        for length, one, other in zip(column.shape, back.stride(), column.stride(), strict=True):
            assert one == other or length == 1


def test_a_small_column_keeps_no_other_column_alive() -> None:
    whole = torch.zeros(4096, dtype=torch.uint8)
    label = torch.arange(4)
    small = restore(whole[:32], label, 4096)
    assert small.untyped_storage().nbytes() == 32
    large = torch.zeros(4000, dtype=torch.uint8)
    assert restore(whole[:4000], large, 4096).data_ptr() == whole.data_ptr()


@pytest.mark.parametrize("strange", [torch.empty(0), torch.ones(2, requires_grad=True), torch.eye(2).to_sparse()])
def test_what_is_not_plain_stays_with_torch(strange: torch.Tensor) -> None:
    assert BatchBytes.of(Batch({"x": strange, "name": ["a"]})).copied == []


def test_pictures_are_divided_by_where_their_decoder_reads() -> None:
    column = StagedColumn(
        "image", "image", "rgb", None,
        (
            StagedImage(0, "a", 1, 1, codec="nvjpeg", data=b"encoded"),
            StagedImage(1, "a", 2, 3, pixels=torch.zeros(3, 2, 3, dtype=torch.uint8)),
        ),
    )  # fmt: skip
    batch_bytes = BatchBytes.of(Batch({"image": column, "label": torch.tensor([1, 2])}))
    assert [(piece.column, piece.position, piece.encoded) for piece in batch_bytes.copied] == [
        ("image", 1, False),
        ("label", None, False),
    ]
    (kept,) = batch_bytes.kept
    assert (kept.position, kept.encoded, kept.content.tobytes()) == (0, True, b"encoded")
