"""Collating samples, or whole columns, to a batch: shapes, dtypes and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.batch.collate import collate, collate_columns
from concurrent_loader.errors import CollateError

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]


def column(*values: Any) -> Any:
    return collate([{"x": value} for value in values])["x"]


# -- samples -----------------------------------------------------------------------------------------------------------


def test_tensors_are_stacked() -> None:
    got = column(torch.zeros(3, 2, 4, dtype=torch.uint8), torch.ones(3, 2, 4, dtype=torch.uint8))
    assert got.shape == (2, 3, 2, 4)
    assert got.dtype == torch.uint8
    assert got[1].min() == 1


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (3, 4, 5)])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16", "complex64", "float8_e4m3fn"])
def test_tensors_of_any_dtype_and_shape_are_stacked_as_torch_does(dtype: str, shape: tuple[int, ...]) -> None:
    values = [torch.full(shape, n, dtype=torch.float32).to(getattr(torch, dtype)) for n in (0, 1)]
    got, expected = column(*values), torch.stack(values)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.is_contiguous()
    assert got.tolist() == expected.tolist()


def test_strided_and_differentiable_tensors_are_stacked() -> None:
    images = [torch.arange(24).reshape(2, 4, 3).permute(2, 0, 1) + n for n in range(3)]
    assert torch.equal(column(*images), torch.stack(images))
    assert column(*images).is_contiguous()
    leaf = torch.ones(2, requires_grad=True)
    assert column(leaf, leaf).requires_grad
    assert column(torch.ones(2), leaf).requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_numpy_scalars_keep_their_dtype(dtype: str) -> None:
    for make in (lambda v: np.full((2, 3), v, dtype), lambda v: np.array(v, dtype), lambda v: np.dtype(dtype).type(v)):
        got = column(make(0), make(1))
        assert got.numpy().dtype == dtype
        assert got[0].sum() == 0
        assert got.numpy()[1].all()


@pytest.mark.parametrize("values", [[True, False], [1, -(2**63)], [0.1, 2.0], [1, 0.5], [0.5, 1]])
def test_python_numbers_become_what_torch_makes_of_them(values: list[Any]) -> None:
    got = column(*values)
    expected = torch.utils.data.default_collate([float(v) for v in values] if float in map(type, values) else values)
    assert got.dtype == expected.dtype
    assert got.tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", memoryview(b"b")],
        [{"a": 1}, {"a": 2}],
        [[1, 2], [3, 4]],
        [None, 1],
        [True, 2],
        ["a", 1],
        [(1,), (2,)],
    ],
)
def test_what_is_no_number_stays_a_list(values: list[Any]) -> None:
    assert column(*values) == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_integers_are_exact(values: list[int]) -> None:
    assert column(*values).tolist() == values


def test_a_number_that_is_too_large_is_named() -> None:
    with pytest.raises(CollateError, match=r"int64.*column='x'"):
        column(1, 2**63)


def test_many_dtypes_are_not_all_listed() -> None:
    with pytest.raises(CollateError, match=r"dtype.*transform.*collate_fn") as caught:
        column(*(np.zeros(2, dtype) for dtype in DTYPES))
    assert caught.value.column == "x"
    assert caught.value.got == [*DTYPES[:8], "…"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (torch.zeros(2), np.zeros(2)),
        (np.zeros(2), torch.zeros(2)),
        (torch.zeros(2), None),
        (None, np.zeros(2)),
        (np.zeros(1), 1.0),
    ],
)
def test_mixed_dtypes_and_types_are_refused(left: Any, right: Any) -> None:
    with pytest.raises(CollateError, match="column='x'"):
        column(left, right)


def test_samples_must_be_dicts_with_the_same_columns() -> None:
    with pytest.raises(CollateError, match="sample 1 of the batch"):
        collate([{"x": 1}, {"x": 1, "y": 2}])
    with pytest.raises(CollateError, match=r"dict.*tuple"):
        collate([(1, 2)])  # type: ignore[list-item]
    with pytest.raises(CollateError, match="empty list of samples"):
        collate([])


def test_the_order_of_keys_may_differ() -> None:
    batch = collate([{"x": 1, "y": 2}, {"y": 4, "x": 3}])
    assert {name: values.tolist() for name, values in batch.items()} == {"x": [1, 3], "y": [2, 4]}


def test_arrays_that_torch_cannot_hold_are_named() -> None:
    with pytest.raises(CollateError, match=r"no tensor of this dtype.*datetime64"):
        column(np.zeros(2, "datetime64[s]"), np.zeros(2, "datetime64[s]"))


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (5, 3, 4), (0,), (0, 3)])
def test_whole_columns_keep_their_dtype_and_are_not_copied(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype)
    got = collate_columns({"x": values})["x"]
    assert got.numpy().dtype == dtype
    assert got.shape == shape
    assert not values.size or np.shares_memory(got.numpy(), values)


def test_read_only_foreign_and_reversed_columns_are_copied() -> None:
    read_only = np.arange(4)
    read_only.flags.writeable = False
    for values in (read_only, np.arange(4, dtype=">i8"), np.arange(4)[::-1], np.arange(8).reshape(4, 2)[:, 0]):
        got = collate_columns({"x": values})["x"]
        assert got.tolist() == values.tolist()
    collate_columns({"x": read_only})["x"][0] = 9
    assert read_only[0] == 0


def test_lists_of_pictures_are_stacked_and_of_other_things_kept() -> None:
    batch = collate_columns({"image": [torch.zeros(3, 2, 2)] * 2, "json": [1, 2], "text": ["a", "b"]})
    assert batch["image"].shape == (2, 3, 2, 2)
    assert batch["json"] == [1, 2]
    assert batch["text"] == ["a", "b"]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(CollateError, match="length"):
        collate_columns({"x": np.zeros(3), "y": [1, 2]})
