from __future__ import annotations

import numpy as np
import pytest
import torch

from concurrent_loader import CollateError, Packed, PackedTokens
from concurrent_loader.batch.packed_tokens import pack
from concurrent_loader.order.protocol import Pieces

PACKED = PackedTokens(
    torch.tensor([[5, 6, 7, 8, 9, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]]), torch.tensor([[3, 2], [6, 0], [0, 0]])
)


def pieces(*each: tuple[int, int, int], num_rows: int) -> Pieces:
    row, start, stop = (np.array(numbers, np.int64) for numbers in zip(*each, strict=True))
    return Pieces(row, start, stop, num_rows)


def test_all_follows_from_the_lengths() -> None:
    assert PACKED.document_ids().tolist() == [[0, 0, 0, 1, 1, -1], [0] * 6, [-1] * 6]
    assert PACKED.positions().tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5], [0] * 6]
    assert PACKED.cu_seqlens().tolist() == [0, 3, 5, 6, 12, 18]
    assert PACKED.cu_seqlens().dtype is torch.int32
    assert PACKED.labels(-1).tolist() == [[6, 7, -1, 9, -1, -1], [2, 3, 4, 5, 6, -1], [-1] * 6]


@pytest.mark.slow
def test_the_mask_is_causal_within_documents() -> None:
    mask = PACKED.block_mask()
    place = torch.arange(6)
    visible = torch.stack([mask.mask_mod(torch.tensor(row), torch.tensor(0), place[:, None], place) for row in (0, 1)])
    expected = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2), torch.ones(1, 1)).tril().bool()
    assert torch.equal(visible, torch.stack([expected, torch.ones(6, 6).tril().bool()]))


def test_pieces_come_into_their_rows() -> None:
    documents = [np.array([1, 2, 3], np.uint16), np.array([4], np.uint16), np.array([1, 2, 3], np.uint16)]
    places = pieces((0, 0, 2), (0, 0, 2), (1, 2, 4), num_rows=3)
    batch = pack(documents, np.array([7, 8, 7]), places, Packed("t", 5, eos=9, padding=6), np.dtype(np.uint16))
    assert batch["t"].tolist() == [[1, 2, 4, 9, 6], [3, 9, 6, 6, 6], [6] * 5]
    assert batch["t_seq_lens"].tolist() == [[2, 2], [2, 0], [0, 0]]
    assert batch["t"].dtype is torch.int32


@pytest.mark.parametrize(("dtype", "wide"), [("int8", False), ("int32", False), ("uint32", True), ("int64", True)])
def test_tokens_have_one_of_two_dtypes(dtype: str, wide: bool) -> None:
    batch = pack([np.array([3], dtype)], np.array([0]), pieces((0, 0, 1), num_rows=1), Packed("t", 1), np.dtype(dtype))
    assert batch["t"].dtype is (torch.int64 if wide else torch.int32)


@pytest.mark.parametrize("document", [np.zeros(2, np.int32), np.zeros((5, 1), np.int32)])
def test_a_document_of_another_length_is_named(document: np.ndarray) -> None:
    with pytest.raises(CollateError, match=r"as the shard's index says.*sample=42.*column='t'"):
        pack([document], np.array([42]), pieces((0, 0, 4), num_rows=1), Packed("t", 8, eos=0), np.dtype(np.int32))
