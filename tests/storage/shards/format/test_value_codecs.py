from __future__ import annotations

import datetime as dt
import enum
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.lossless import encode
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.format.value_codecs import MAX_JSON_DEPTH, MAX_SMALL_VALUE_BYTES

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = {"float16": "<e", "float32": "<f", "float64": "<d"}
PNG = b"\x89PNG\r\n\x1a\n...."
WEBP = b"RIFF\x04\0\0\0WEBP"


def column(type_: str) -> Column:
    return Column("x", type_)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Level(enum.IntEnum):
    LOW = 1


# -- bytes, images -----------------------------------------------------------------------------------------------------


@given(st.binary())
def test_bytes_come_back_from_any_buffer(data: bytes) -> None:
    for value in (data, bytearray(data), memoryview(data)):
        assert column("bytes").decode(column("bytes").encode(value)) == data


def test_mutable_bytes_are_copied_and_immutable_ones_are_not() -> None:
    mutable, fixed = bytearray(b"abc"), b"abc"
    stored = column("bytes").encode(mutable)
    mutable[0] = 0
    assert stored == b"abc"
    assert column("bytes").encode(fixed) is fixed


@pytest.mark.parametrize("value", ["text", 1, None, [1], np.zeros(3, np.uint8)])
def test_bytes_take_only_bytes(value: object) -> None:
    with pytest.raises(SchemaError, match="column='x'"):
        column("bytes").encode(value)


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("jpeg", b"\xff\xd8\xff\xe0x"),
        ("png", PNG),
        ("webp", WEBP),
        ("avif", b"\0\0\0\x20ftypavif"),
        ("avif", b"\0\0\0\x20ftypmif1"),
        ("gif", b"GIF89a...."),
        ("gif", b"GIF87a...."),
    ],
)
def test_images_are_known_by_their_first_bytes(type_: str, data: bytes) -> None:
    for good in (type_, "image"):
        assert column(good).decode(column(good).encode(data)) == data
    for bad in {"jpeg", "png", "webp", "avif", "gif"} - {type_}:
        with pytest.raises(SchemaError) as caught:
            column(bad).encode(data)
        assert caught.value.column == "x"
        assert type_ in str(caught.value.got)
        assert caught.value.expected == bad


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"GIF88a....", b"\0\0\0\x20ftypheic", b"RIFF\0\0\0\0WAVE"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaError):
        column("image").encode(data)


# -- str, json ---------------------------------------------------------------------------------------------------------


@given(st.text())
def test_text_comes_back(text: str) -> None:
    assert column("str").decode(column("str").encode(text)) == text


@pytest.mark.parametrize("value", [b"bytes", 1, None, "\ud800", "a\udfffb"])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(SchemaError):
        column("str").encode(value)


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"abc\xe2\x82"])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        column("str").decode(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    assert column("json").decode(column("json").encode(value)) == value


@given(st.dictionaries(st.text(), st.integers()))
def test_json_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))
    assert column("json").encode(value) == column("json").encode(turned)
    assert list(column("json").decode(column("json").encode(value))) == sorted(value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [1, {"a": -math.inf}],
        (1, 2),
        {"a": {1, 2}},
        {1: "a"},
        b"bytes",
        dt.date(2020, 1, 1),
        "\ud800",
        {"\ud800": 1},
        object(),
        np.float64(1.5),
        np.zeros(2),
        nested(MAX_JSON_DEPTH + 1),
        nested(100_000),
    ],
)
def test_what_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(SchemaError) as caught:
        column("json").encode(value)
    assert len(str(caught.value)) < 1000


def test_json_nests_up_to_the_limit_and_brackets_in_text_do_not_count() -> None:
    for value in (nested(MAX_JSON_DEPTH), "[" * 5000, {'["\\': '{"' * 300}, [[1]] * 5000):
        assert column("json").decode(column("json").encode(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"1 2",
        b"nan",
        b"NaN",
        b'"\xff"',
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"\0",
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        column("json").decode(data)


def test_small_values_end_at_64_mib() -> None:
    with pytest.raises(SchemaError, match="too long"):
        column("str").encode("x" * (MAX_SMALL_VALUE_BYTES + 1))


# -- scalars -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_, np.array(True)])
def test_bools_come_back(value: Any) -> None:
    assert column("bool").decode(column("bool").encode(value)) is bool(value)


@pytest.mark.parametrize("value", [0, 1, "True", None, 1.0, np.int8(1), np.array([True])])
def test_only_bools_are_bools(value: object) -> None:
    with pytest.raises(SchemaError):
        column("bool").encode(value)


@pytest.mark.parametrize("data", [b"", b"\2", b"\0\0"])
def test_a_stored_bool_is_one_byte(data: bytes) -> None:
    with pytest.raises(FormatError):
        column("bool").decode(data)


@pytest.mark.parametrize("type_", INTEGERS)
@given(data=st.data())
def test_integers_come_back_and_end_at_their_range(type_: str, data: st.DataObject) -> None:
    info = np.iinfo(type_)
    low, high = int(info.min), int(info.max)
    value = data.draw(st.integers(low, high) | st.sampled_from([low, high]))
    kinds = data.draw(st.sampled_from([int, np.dtype(type_).type, np.array]))
    stored = column(type_).encode(kinds(value))
    assert stored == value.to_bytes(info.bits // 8, "little", signed=low < 0)
    assert column(type_).decode(stored) == value
    for outside in (low - 1, high + 1, 10**30):
        with pytest.raises(SchemaError, match=type_):
            column(type_).encode(outside)


@pytest.mark.parametrize(
    "value", [True, np.True_, 1.0, np.float64(1), "1", None, np.timedelta64(1, "s"), np.array([1]), 1j]
)
def test_only_integers_are_integers(value: object) -> None:
    with pytest.raises(SchemaError):
        column("int64").encode(value)


def test_an_integer_enum_is_an_integer() -> None:
    assert column("int8").encode(Level.LOW) == b"\x01"


@pytest.mark.parametrize("type_", FLOATS)
@given(data=st.data())
def test_every_bit_pattern_of_a_float_is_kept(type_: str, data: st.DataObject) -> None:
    size = struct.calcsize(FLOATS[type_])
    pattern = data.draw(st.binary(min_size=size, max_size=size))
    scalar = np.frombuffer(pattern, np.dtype(type_).newbyteorder("<"))[0]
    assert column(type_).encode(scalar) == pattern
    number = column(type_).decode(pattern)
    assert number == scalar or (math.isnan(number) and np.isnan(scalar))


@pytest.mark.parametrize("type_", FLOATS)
@given(number=st.floats(allow_nan=False))
def test_python_floats_are_rounded_or_refused(type_: str, number: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float64(number).astype(type_)
    if math.isinf(expected) and not math.isinf(number):
        with pytest.raises(SchemaError):
            column(type_).encode(number)
    else:
        assert column(type_).encode(number) == expected.tobytes()


@pytest.mark.parametrize(("type_", "exact"), [("float16", 2**11), ("float32", 2**24), ("float64", 2**53)])
def test_integers_are_floats_where_they_are_exact(type_: str, exact: int) -> None:
    for value in (exact, -exact, np.int64(exact), 0):
        assert column(type_).decode(column(type_).encode(value)) == value
    for value in (exact + 1, -exact - 1, np.int64(exact + 1), 10**400):
        with pytest.raises(SchemaError):
            column(type_).encode(value)


@pytest.mark.parametrize("value", [True, "1.0", None, 1j, np.array([1.0]), np.longdouble(1)])
def test_only_numbers_are_floats(value: object) -> None:
    with pytest.raises(SchemaError):
        column("float32").encode(value)


@pytest.mark.parametrize("type_", [*INTEGERS, *FLOATS])
def test_a_number_of_another_length_is_refused(type_: str) -> None:
    with pytest.raises(FormatError):
        column(type_).decode(b"")
    with pytest.raises(FormatError):
        column(type_).decode(bytes(9))


def test_a_lossless_column_takes_lossless_pictures_only() -> None:
    file = encode(np.zeros((1, 3, 4), np.uint8))
    assert column("image/lossless").encode(file) == file
    for type_, data in (("image/lossless", b"\x89PNG\r\n\x1a\n...."), ("image", file), ("png", file)):
        with pytest.raises(SchemaError, match="does not begin like"):
            column(type_).encode(data)


@pytest.mark.parametrize(
    ("type_", "value", "advice"),
    [
        ("jpeg", Image.new("RGB", (2, 2)), "read_bytes()"),
        ("image", Path("cat.jpg"), "read_bytes()"),
        ("png", "cat.png", "read_bytes()"),
        ("jpeg", np.zeros((2, 2, 3), np.uint8), 'uint8[...]"'),
        ("int64", "cat", 'type "str"'),
        ("float32", "0.5", 'type "str"'),
    ],
)
def test_errors_name_the_way_out(type_: str, value: object, advice: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Column("c", type_).encode(value)
    assert advice in str(caught.value)
    assert caught.value.column == "c"


def test_no_advice_where_there_is_none() -> None:
    for type_ in ("jpeg", "int64"):
        with pytest.raises(SchemaError) as caught:
            Column("c", type_).encode(None)
        assert ":" not in caught.value.what
