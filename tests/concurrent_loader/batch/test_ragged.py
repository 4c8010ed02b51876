"""Columns whose shapes differ: lists, padding, nested tensors, packing, and their way to a device in one block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader import Batch, Pad, collate
from concurrent_loader.batch.collate import collate_columns
from concurrent_loader.batch.ragged import RaggedColumn, ragged_columns
from concurrent_loader.errors import CollateError
from concurrent_loader.storage import ConfigurationError

NESTED = pytest.param("nested", marks=pytest.mark.slow)  # torch imports its compiler, for 7 s
BOXES = [torch.arange(8.0).view(2, 4), torch.zeros(0, 4), torch.ones(3, 4)]


def column(values: list[Any], how: Any, **options: Any) -> Batch:
    return collate([{"x": value} for value in values], ragged={"x": how}, **options)


def test_values_of_different_shapes_are_a_list_without_an_option() -> None:
    for make in (torch.zeros, np.zeros):
        values = collate([{"x": make((3, 4))}, {"x": make((3, 5))}])["x"]
        assert [tuple(value.shape) for value in values] == [(3, 4), (3, 5)]
        assert all(type(value) is torch.Tensor for value in values)


def test_a_list_is_a_list_even_of_equal_shapes() -> None:
    assert [value.tolist() for value in column([np.zeros(2), np.ones(2)], "list")["x"]] == [[0, 0], [1, 1]]


def test_read_only_arrays_can_be_written_to_in_the_batch() -> None:
    arrays = [np.arange(3), np.arange(2)]
    for array in arrays:
        array.flags.writeable = False
    for how in ("list", "pad", "packed"):
        got = column(arrays, how)["x"]
        (got[0] if how == "list" else got)[...] = 7
    assert [array.tolist() for array in arrays] == [[0, 1, 2], [0, 1]]


def test_padding_has_lengths_and_a_mask() -> None:
    batch = column(BOXES, Pad(value=-1, multiple=4, mask=True))
    assert list(batch) == ["x", "x_lengths", "x_mask"]
    assert batch["x"].shape == (3, 4, 4)
    assert batch["x_lengths"].tolist() == [2, 0, 3]
    assert batch["x_mask"].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert torch.equal(batch["x"][batch["x_mask"]], torch.cat(BOXES))
    assert bool((batch["x"][~batch["x_mask"]] == -1).all())


def test_padding_of_equal_shapes_has_the_same_columns() -> None:
    batch = column([torch.ones(2, 4)] * 3, "pad")
    assert batch["x"].shape == (3, 2, 4)
    assert batch["x_lengths"].tolist() == [2, 2, 2]


def test_all_dimensions_are_padded_if_each_has_a_multiple() -> None:
    batch = column([torch.ones(2, 3), torch.ones(1, 9)], Pad(multiple=(1, 8), mask=True))
    assert batch["x"].shape == (2, 2, 16)
    assert batch["x_sizes"].tolist() == [[2, 3], [1, 9]]
    assert batch["x_mask"].sum((1, 2)).tolist() == [6, 9]
    assert batch["x"].sum() == 15


def test_images_are_padded_in_height_and_width() -> None:
    images = [torch.full((3, 5, 7), 1, dtype=torch.uint8), torch.full((3, 6, 2), 2, dtype=torch.uint8)]
    batch = column(images, Pad(multiple=4, mask=True), images=("x",))
    assert batch["x"].shape == (2, 3, 8, 8)
    assert batch["x_sizes"].tolist() == [[5, 7], [6, 2]]
    assert batch["x_mask"].shape == (2, 8, 8)
    for image, padded, mask in zip(images, batch["x"], batch["x_mask"], strict=True):
        height, width = image.shape[1:]
        assert torch.equal(padded[:, :height, :width], image)
        assert int(padded.sum()) == int(image.sum())
        assert mask[:height, :width].all()
        assert mask.sum() == height * width


def test_packing_has_lengths_and_offsets() -> None:
    batch = column(BOXES, "packed")
    assert list(batch) == ["x", "x_seq_lens", "x_cu_seqlens"]
    assert torch.equal(batch["x"], torch.cat(BOXES))
    assert batch["x_seq_lens"].tolist() == [2, 0, 3]
    assert batch["x_cu_seqlens"].tolist() == [0, 2, 2, 5]
    assert batch["x_cu_seqlens"].dtype == torch.int32


@pytest.mark.slow
def test_a_nested_tensor_is_jagged() -> None:
    nested = column(BOXES, "nested")["x"]
    assert nested.layout is torch.jagged
    assert torch.equal(nested.offsets(), torch.tensor([0, 2, 2, 5]))
    assert all(torch.equal(one, other) for one, other in zip(nested.unbind(), BOXES, strict=True))


@pytest.mark.parametrize("how", ["packed", NESTED])
def test_images_are_packed_as_sequences_of_pixels(how: Any) -> None:
    images = [torch.arange(12, dtype=torch.uint8).view(3, 2, 2), torch.zeros(3, 1, 3, dtype=torch.uint8)]
    batch = column(images, how, images=("x",))
    assert batch["x_sizes"].tolist() == [[2, 2], [1, 3]]
    values = batch["x"] if how == "packed" else batch["x"].values()
    assert values.shape == (7, 3)
    assert torch.equal(values[:4].T.reshape(3, 2, 2), images[0])


@pytest.mark.parametrize("how", ["list", "pad", "packed", NESTED])
def test_a_sample_without_values_may_have_any_shape_and_dtype(how: Any) -> None:
    batch = column([np.zeros((0,), np.float64), np.ones((2, 4), np.float32)], how)
    if how == "pad":
        assert batch["x"].shape == (2, 2, 4)
        assert batch["x"].dtype == torch.float32
    elif how != "list":
        values = batch["x"] if how == "packed" else batch["x"].values()
        assert values.shape == (2, 4)


def test_lists_of_numbers_are_sequences() -> None:
    batch = column([[5, 6, 7], [], [8]], "pad")
    assert batch["x"].tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert batch["x"].dtype == torch.int64


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int16, torch.bool]),
    st.integers(1, 5),
)
def test_padding_and_packing_keep_every_number(lengths: list[int], dtype: torch.dtype, multiple: int) -> None:
    values = [(torch.arange(2 * length).view(length, 2) % 2).to(dtype) for length in lengths]
    padded, packed = column(values, Pad(multiple=multiple)), column(values, "packed")
    assert padded["x"].shape[1] % multiple == 0
    assert padded["x"].dtype == packed["x"].dtype == dtype
    rows = [row[:length] for row, length in zip(padded["x"], padded["x_lengths"].tolist(), strict=True)]
    assert torch.equal(torch.cat(rows), packed["x"])
    assert torch.equal(packed["x"], torch.cat(values))


def test_gradients_pass_through_padding_and_packing() -> None:
    for how in ("pad", "packed"):
        leaf = torch.ones(2, requires_grad=True)
        column([leaf, torch.ones(3)], how)["x"].sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("values", "how", "words"),
    [
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "pad", "differ in a dimension"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "packed", "differ in a dimension"),
        ([torch.zeros(2, 3), torch.zeros(2)], "packed", "differ in a dimension"),
        ([torch.zeros(2, 3), torch.zeros(2)], Pad(multiple=(1, 1)), "one number for each dimension"),
        ([torch.zeros(2), torch.zeros(3, dtype=torch.int64)], "pad", "differ in dtype"),
        ([torch.zeros(()), torch.zeros(())], "pad", "at least one dimension"),
        ([torch.zeros(2, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)], Pad(value=-100), "does not fit"),
        ([torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)], Pad(value=0.5), "does not fit"),
        (["a", "b"], "pad", "needs tensors, arrays or lists"),
        ([["a"], ["b"]], "list", "not a list of numbers"),
        ([None, np.zeros(2)], "list", "needs tensors, arrays or lists"),
    ],
)
def test_what_cannot_be_arranged_is_an_error_that_names_the_column(values: list[Any], how: Any, words: str) -> None:
    with pytest.raises(CollateError, match=rf"{words}.*column='x'"):
        column(values, how)


def test_a_column_that_is_there_already_is_not_replaced() -> None:
    with pytest.raises(CollateError, match="has the column 'x_lengths' beside 'x', but the samples have it"):
        collate([{"x": torch.zeros(2), "x_lengths": 3}], ragged={"x": "pad"})


@pytest.mark.parametrize("options", ["pad", {"x": "padded"}, {"x": 8}, {"x": None}])
def test_an_invalid_option_shows_the_form(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="'nested' or 'packed'"):
        ragged_columns(options)


@pytest.mark.parametrize("arguments", [{"multiple": 0}, {"multiple": (1, 0)}, {"multiple": 1.5}, {"value": "a"}])
def test_invalid_padding_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"multiple must be|must be a number"):
        Pad(**arguments)


# -- blocks for the device ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "list", "packed", Pad(2, mask=True)])
@pytest.mark.parametrize("rows", [None, [2, 0, 0]])
def test_a_block_is_arranged_as_the_values_are(how: Any, rows: list[int] | None) -> None:
    block = RaggedColumn.of("x", BOXES, how, False)
    assert block is not None
    got = block.arranged(block.block, rows)
    shown = BOXES if rows is None else [BOXES[row] for row in rows]
    expected = collate_columns({"x": shown}, ragged={} if how is None else {"x": how})
    assert list(got) == list(expected)
    for one, other in zip(got.values(), expected.values(), strict=True):
        pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
        assert all(torch.equal(left, right) for left, right in pairs)


def test_values_that_make_no_block_are_arranged_at_once() -> None:
    values = [torch.zeros(2, requires_grad=True), torch.zeros(3)]
    assert RaggedColumn.of("x", values, "list", False) is None
    assert column(values, "pad", staged=True)["x"].shape == (2, 3)
    assert isinstance(column([torch.zeros(2), torch.zeros(3)], "pad", staged=True)["x"], RaggedColumn)
