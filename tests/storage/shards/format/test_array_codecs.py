from __future__ import annotations

import struct
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.schema import Column

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


class Tensor:
    """As much of a tensor as matters here."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values


def ragged(type_: str, value: object) -> Any:
    column = Column("x", f"{type_}[...]")
    return column.decode(column.encode(value))


def same(got: Any, value: Any) -> None:
    value = np.asarray(value)
    assert got.dtype == value.dtype.newbyteorder("<")
    assert got.shape == value.shape
    assert got.tobytes() == value.astype(value.dtype.newbyteorder("<")).tobytes()  # bits, NaNs included


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_ragged_arrays_come_back_bit_for_bit(dtype: str, data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)))
    got = ragged(dtype, array)
    same(got, array)
    assert not got.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_fixed_arrays_come_back_bit_for_bit(dtype: str, data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)))
    column = Column("x", f"{dtype}[{','.join(map(str, array.shape))}]")
    same(column.decode(column.encode(array)), array)


@given(hnp.arrays(hnp.integer_dtypes(endianness=">") | hnp.floating_dtypes(endianness=">", sizes=(16, 32, 64)), (2, 3)))
def test_big_endian_arrays_are_turned(array: Any) -> None:
    same(ragged(array.dtype.name, array), array)


def test_any_memory_order_is_stored_in_c_order() -> None:
    array = np.arange(24, dtype="i4").reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1], np.asfortranarray(array), array[..., 1:3]):
        same(ragged("int32", view), view)


def test_32_dimensions_and_no_more() -> None:
    array = np.ones((1,) * 32, np.uint8)
    same(ragged("uint8", array), array)
    if int(np.__version__.split(".")[0]) > 1:
        with pytest.raises(SchemaError, match="dimensions"):
            ragged("uint8", np.ones((1,) * 33, np.uint8))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], "f4")),
        ("float32", [0.1], np.array([0.1], "f4")),
        ("float64", 1, np.array(1.0)),
        ("int8", (-128, 127), np.array([-128, 127], "i1")),
        ("uint64", [2**64 - 1], np.array([2**64 - 1], "u8")),
        ("uint64", [[2**63 + 5], [7]], np.array([[2**63 + 5], [7]], "u8")),  # float64 for NumPy
        ("float64", [2**53, 0.5, float("inf")], np.array([2.0**53, 0.5, np.inf])),
        ("int16", [], np.zeros(0, "i2")),
        ("int16", [[], []], np.zeros((2, 0), "i2")),
        ("bool", [True, False], np.array([True, False])),
        ("float16", [float("inf"), float("nan")], np.array([np.inf, np.nan], "f2")),
        ("float64", np.float32(1.5), np.array(1.5)),
        ("float64", np.array([1.5], "f4"), np.array([1.5])),
        ("float32", np.array([1], "i2"), np.array([1], "f4")),
        ("float64", np.array([1], "i4"), np.array([1.0])),
        ("int64", np.array([200], "u1"), np.array([200])),
        ("int32", Tensor(np.array([3], "i4")), np.array([3], "i4")),
    ],
)
def test_what_converts_exactly_is_converted(dtype: str, value: object, expected: Any) -> None:
    same(ragged(dtype, value), expected)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", np.array([1])),  # int64
        ("float64", np.array([1])),
        ("float32", np.array([1.0])),  # float64
        ("int32", np.array([1])),
        ("int8", np.array([1], "u1")),
        ("int8", np.array([True])),
        ("bool", np.array([1], "i1")),
        ("float64", np.array([1], np.longdouble)),
        ("float64", np.array([1j])),
        ("float64", np.array(["1"])),
        ("float64", np.array([1.0], object)),
        ("int64", np.array(["2020-01-01"], "M8[D]")),
        ("float64", np.ma.masked_array([1.0], mask=[True])),
        ("float64", np.zeros(1, [("a", "f8")])),
        ("int8", [128]),
        ("int64", [2**63]),
        ("int64", [2**64]),
        ("uint8", [-1]),
        ("int8", [1.0]),
        ("int8", [True]),
        ("bool", [0, 1]),
        ("float32", [2**24 + 1]),
        ("float32", [2**24 + 1, 0.5]),
        ("float64", [2**53 + 1, 0.5]),
        ("float64", [2**63 + 1, 1]),
        ("int64", [2**63 + 1, 1]),
        ("uint64", [2**63 + 1, -1]),
        ("float32", [1e39]),
        ("float16", [[65520.0]]),
        ("float32", [[1], [1, 2]]),
        ("float32", [None]),
        ("float32", ["1"]),
        ("float32", [10**400]),
        ("float32", "12"),
        ("float32", b"1234"),
        ("float32", None),
        ("float32", {"a": 1}),
    ],
)
def test_what_could_change_is_refused(dtype: str, value: object) -> None:
    with pytest.raises(SchemaError) as caught:
        ragged(dtype, value)
    assert caught.value.column == "x"
    assert caught.value.expected is not None


@pytest.mark.parametrize("value", [np.zeros((3, 2), "f4"), np.zeros(6, "f4"), np.float32(1), [1.0, 2.0], []])
def test_a_fixed_array_has_its_shape(value: object) -> None:
    with pytest.raises(SchemaError, match="shape"):
        Column("x", "float32[2,3]").encode(value)


def test_bools_are_stored_as_0_and_1_whatever_their_memory_says() -> None:
    array = np.array([0, 1, 2, 255], np.uint8).view(bool)
    assert Column("x", "bool[4]").encode(array) == b"\0\1\1\1"
    with pytest.raises(FormatError):
        Column("x", "bool[4]").decode(b"\0\1\2\1")


def test_values_are_views_where_memory_is_aligned_and_copies_where_not() -> None:
    column = Column("x", "float64[...]")
    stored = column.encode(np.arange(4.0))
    memory = np.zeros(len(stored) + 8, np.uint8)
    for shift in (0, 1, 4):
        room = memoryview(memory)[shift : shift + len(stored)]
        room[:] = stored
        got = column.decode(room)
        same(got, np.arange(4.0))
        assert got.flags.aligned
        assert np.shares_memory(got, memory) == (shift == 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0" * 7,
        b"\0" * 8,  # a single element is missing
        b"\x01" + bytes(7),
        b"\x00\x01" + bytes(6 + 4),
        b"\x21" + bytes(7 + 33 * 8),  # 33 dimensions
        struct.pack("<B7xQ", 1, 2) + bytes(7),
        struct.pack("<B7xQ", 1, 2) + bytes(9),
        struct.pack("<B7xQ", 1, 2**64 - 1) + bytes(4),
        struct.pack("<B7xQQ", 2, 2**32, 2**32),  # the product is 0 modulo 2**64
        struct.pack("<B7xQQ", 2, 2**62, 4) + bytes(0),
        struct.pack("<B7xQQQ", 3, 0, 2**62, 4),
        struct.pack("<B7xQQ", 2, 0, 2**63),
    ],
)
def test_impossible_ragged_arrays_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Column("x", "float32[...]").decode(data)


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_that_is_stored_the_same_or_an_error(data: bytes) -> None:
    column = Column("x", "int16[...]")
    try:
        array = column.decode(data)
    except FormatError:
        return
    assert column.encode(array) == data


def test_large_fixed_arrays_check_their_length() -> None:
    column = Column("x", "float32[300]")
    same(column.decode(column.encode(np.zeros(300, "f4"))), np.zeros(300, "f4"))
    for num_bytes in (0, 1199, 1201):
        with pytest.raises(FormatError):
            column.decode(bytes(num_bytes))
