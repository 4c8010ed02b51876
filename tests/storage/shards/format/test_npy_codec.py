from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec
from concurrent_loader.storage.shards.format.npy_codec import NpyCodec, parse_npy_header

DTYPES = [
    np.dtype(order + kind + width)
    for order in "<>"
    for kind, widths in {"i": "1248", "u": "1248", "f": "248"}.items()
    for width in widths
] + [np.dtype(bool)]


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # NumPy warns of versions 2 and 3
        np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return file.getvalue()


def with_header(text: bytes, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + data


@given(data=st.data(), dtype=st.sampled_from(DTYPES), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_arrays_are_those_that_numpy_wrote(data: st.DataObject, dtype: np.dtype[Any], version: tuple[int, int]) -> None:
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
    array = np.asfortranarray(array) if data.draw(st.booleans()) else array
    decoded = foreign_codec("npy", f"{dtype.name}[...]").decode(npy(array, version))
    np.testing.assert_array_equal(decoded, array, strict=False)
    assert (decoded.dtype, decoded.shape) == (dtype.newbyteorder("<"), array.shape)
    assert decoded.flags.c_contiguous
    assert not decoded.flags.writeable


def test_a_fixed_shape_is_checked() -> None:
    codec = foreign_codec("npy", "int16[2,3]")
    assert codec.decode(npy(np.ones((2, 3), np.int16))).shape == (2, 3)
    for other in (np.ones((3, 2), np.int16), np.ones((2, 3), np.int32)):
        with pytest.raises(FormatError, match="dtype and shape"):
            codec.decode(npy(other))


def test_what_other_programs_write() -> None:
    without_blanks = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,) }"
    python_2 = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 2L), } \n"
    for text, shape in ((without_blanks, (2,)), (python_2, (1, 2))):
        assert parse_npy_header(with_header(text)).shape == shape


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a .npy file"),
        (b"PK\3\4", "not a .npy file"),
        (b"\x93NUMPY", "ends within its header"),
        (b"\x93NUMPY\1\0v", "ends within its header"),
        (b"\x93NUMPY\4\0" + bytes(20), "version"),
        (with_header(b"")[:8] + b"\xff\xff", "too long"),
        (with_header(b"{" + b" " * 5000), "too long"),
        (with_header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "no array of numbers"),
        (with_header(b"__import__('os').abort()"), "no array of numbers"),
        (with_header(b"(" * 4000), "no array of numbers"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "no array of numbers"),
        (with_header(b"{'descr': '<f7', 'fortran_order': False, 'shape': (1,), }"), "dtype or the shape"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1,), }"), "dtype or the shape"),
        (
            with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" % (b"1," * 33)),
            "dtype or the shape",
        ),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }" % (b"9" * 30)), "impossible"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %s), }" % (b"9" * 30)), "impossible"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }"), "wrong length"),
        (npy(np.zeros(3, np.float32)) + b"x", "wrong length"),
        (npy(np.zeros(3, np.float32))[:-1], "wrong length"),
        (npy(np.zeros(1, complex)), "no array of numbers"),
        (npy(np.zeros(1, "M8[s]")), "no array of numbers"),
        (npy(np.zeros(1, "S3")), "no array of numbers"),
        (npy(np.zeros(1, [("a", "f4")])), "no array of numbers"),
    ],
)
def test_hostile_and_other_files(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        NpyCodec("float32[...]").decode(data)


def test_bools_are_zero_or_one() -> None:
    with pytest.raises(FormatError, match="bool"):
        NpyCodec("bool[...]").decode(npy(np.ones(3, bool))[:-1] + b"\2")


@given(st.data())
def test_damaged_files_give_format_errors(data: st.DataObject) -> None:
    damaged = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 100))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        array = NpyCodec("float32[...]").decode(bytes(damaged))
    except FormatError:
        return
    assert array.nbytes <= len(damaged)


def test_columns_that_have_no_arrays() -> None:
    for type_ in ("bytes", "float32", "str", "jpeg"):
        with pytest.raises(SchemaError, match=r"fits a column of arrays"):
            foreign_codec("npy", type_)
    with pytest.raises(SchemaError, match="encoding of a column is unknown"):
        foreign_codec("np", "float32[...]")
    with pytest.raises(SchemaError, match="only read"):
        NpyCodec("int8[...]").encode(np.zeros(3, np.int8))
