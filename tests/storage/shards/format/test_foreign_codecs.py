"""Codecs of values that stay in another format's file: what valid bytes decode to, and that all others are errors."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec, split_list
from concurrent_loader.storage.shards.format.foreign_headers import HEADERS, MAX_HEADER_BYTES, read_header
from concurrent_loader.storage.shards.format.protobuf_lists import decode_ints, read_varint

CODECS = [
    ("raw/1d", "int32[...]"),
    ("mds/ndarray", "int16[...]"),
    ("mds/shaped", "int16[...]"),
    ("litdata/tensor", "bool[...]"),
    ("litdata/numpy", "float32[...]"),
    ("pil", "uint8[...]"),
    ("pil", "bool[...]"),
    ("pil", "uint16[...]"),
    ("tfrecord/floats", "float32[...]"),
    ("tfrecord/ints", "int64[...]"),
    ("tfrecord/bytes", "bytes"),
]


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def pil(mode: str, width: int, height: int, rows: bytes) -> bytes:
    return struct.pack("<III", width, height, len(mode)) + mode.encode() + rows


@pytest.mark.parametrize(
    ("encoding", "type_", "data", "expected"),
    [
        ("raw/1d", "int16[...]", b"\1\0\2\0", [1, 2]),
        ("raw/1d", "float64[...]", b"", []),
        ("mds/ndarray", "int16[...]", bytes([17, 2 << 2 | 1, 1, 0, 2, 0]) + b"\1\0\2\0", [[1, 2]]),
        ("mds/shaped", "uint8[...]", bytes([1 << 2 | 3, 2, *bytes(7)]) + b"\1\2", [1, 2]),
        ("litdata/tensor", "bool[...]", struct.pack(">III", 19, 1, 2) + b"\1\0", [True, False]),
        ("litdata/tensor", "float32[...]", struct.pack(">II", 1, 0) + struct.pack("<f", 0.5), 0.5),
        ("litdata/tensor", "int64[...]", struct.pack(">IIII", 18, 2, 0, 7), []),
        ("litdata/numpy", "int8[...]", struct.pack("<III", 0, 1, 2) + b"\1\xff", [1, -1]),
        ("pil", "uint8[...]", pil("L", 2, 1, b"\1\2"), [[1, 2]]),
        ("pil", "uint8[...]", pil("RGB", 1, 2, bytes(range(6))), [[[0, 1, 2]], [[3, 4, 5]]]),
        ("pil", "bool[...]", pil("1", 9, 1, b"\x80\x80"), [[True, *[False] * 7, True]]),
        ("pil", "uint16[...]", pil("I;16", 1, 1, b"\1\0"), [[1]]),
        ("pil", "uint16[...]", pil("I;16B", 1, 1, b"\0\1"), [[1]]),
        ("tfrecord/floats", "float32[...]", b"", []),
        ("tfrecord/floats", "float32[...]", b"\x0a\4" + struct.pack("<f", 0.5), [0.5]),
        ("tfrecord/ints", "int64[...]", b"\x0a\3\1\xac\2\x08\7", [1, 300, 7]),
    ],
)
@pytest.mark.parametrize("unaligned", [0, 1])
def test_valid_bytes_are_decoded(encoding: str, type_: str, data: bytes, expected: Any, unaligned: int) -> None:
    decoded = foreign_codec(encoding, type_).decode(memoryview(bytes(unaligned) + data)[unaligned:])
    assert decoded.tolist() == expected
    assert decoded.dtype == np.dtype(type_.split("[")[0])
    assert decoded.flags.aligned
    assert not decoded.flags.writeable


@pytest.mark.parametrize("mode", ["L", "P", "LA", "PA", "La", "RGB", "YCbCr", "HSV", "LAB", "RGBA", "RGBa", "RGBX",
                                  "CMYK", "1", "I", "F", "I;16", "I;16L", "I;16B"])  # fmt: skip
def test_images_of_all_modes_equal_those_of_pillow(mode: str) -> None:
    image = Image.new("L", (11, 3)) if mode in ("La", "RGBa") else Image.new(mode, (11, 3))
    rows = np.random.default_rng(0).integers(0, 128, 3 * 11 * 4, dtype=np.uint8).tobytes()
    size = {"1": 3 * 2, "I": 4 * 33, "F": 4 * 33}.get(
        mode, 66 if ";" in mode else 33 * len(Image.new(mode, (1, 1)).getbands())
    )
    image = Image.frombytes(mode, (11, 3), rows[:size])
    expected = np.asarray(image)
    decoded = foreign_codec("pil", f"{expected.dtype.name}[...]").decode(pil(mode, 11, 3, image.tobytes()))
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize(
    ("encoding", "type_", "data", "match"),
    [
        ("raw/1d", "int16[...]", b"\0", "part of an element"),
        ("raw/1d", "bool[...]", b"\2", "0 or 1"),
        ("mds/ndarray", "int16[...]", b"", "within its header"),
        ("mds/ndarray", "int16[...]", b"\x63\4\1\0", "dtype"),
        ("mds/ndarray", "int16[...]", bytes([33, 4, 1]) + bytes(4), "another dtype"),
        ("mds/ndarray", "int16[...]", bytes([17, 33 << 2]) + bytes(40), "too many dimensions"),
        ("mds/ndarray", "int16[...]", bytes([17, 2 << 2 | 3]) + b"\xff" * 16, "impossible"),
        ("mds/shaped", "int16[...]", bytes([2 << 2 | 3, *bytes(8), *b"\xff" * 8]), "impossible"),
        ("mds/shaped", "int16[...]", bytes([4, 2, 0, 0]), "wrong length"),
        ("litdata/tensor", "int16[...]", struct.pack(">II", 10, 0), "dtype"),
        ("litdata/tensor", "int16[...]", struct.pack(">II", 13, 2**32 - 1), "too many dimensions"),
        ("litdata/tensor", "int16[...]", struct.pack(">III", 13, 1, 2**32 - 1) + bytes(4), "wrong length"),
        ("litdata/numpy", "bool[...]", struct.pack("<III", 13, 1, 1) + b"\2", "0 or 1"),
        ("pil", "uint8[...]", pil("XYZ", 1, 1, b"\0"), "mode"),
        ("pil", "uint8[...]", struct.pack("<III", 1, 1, 2**32 - 1) + b"L\0", "mode"),
        ("pil", "uint8[...]", pil("L", 2**32 - 1, 2**32 - 1, b"\0"), "impossible|wrong length"),
        ("pil", "bool[...]", pil("1", 9, 1, b"\0"), "wrong length"),
        ("pil", "uint8[...]", pil("F", 1, 1, bytes(4)), "another dtype"),
        ("tfrecord/ints", "int64[...]", b"\x0a\2\xff\xff", "within a number"),
        ("tfrecord/ints", "int64[...]", b"\x0a\xff\xff\xff\xff\x0f\1", "ends early"),
        ("tfrecord/ints", "int64[...]", b"\x0a", "within a number"),
        ("tfrecord/ints", "int64[...]", b"\x08" + b"\xff" * 10, "64 bits"),
        ("tfrecord/floats", "float32[...]", b"\x0a\3\0\0\0", "part of an element"),
        ("tfrecord/floats", "float32[...]", b"\x12\0", "unknown field"),
    ],
)
def test_invalid_bytes_are_errors(encoding: str, type_: str, data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        foreign_codec(encoding, type_).decode(data)


@pytest.mark.parametrize(
    ("encoding", "type_"),
    [("telepathy", "int8[...]"), ("raw/1d", "int8[3]"), ("raw/1d", "bytes"), ("tfrecord/floats", "float64[...]"),
     ("tfrecord/bytes", "str"), ("pil", "jpeg")],
)  # fmt: skip
def test_unknown_encodings_and_types_are_errors(encoding: str, type_: str) -> None:
    with pytest.raises(SchemaError, match="encoding"):
        foreign_codec(encoding, type_)


@pytest.mark.parametrize(("encoding", "type_"), CODECS)
def test_nothing_is_written_in_another_format(encoding: str, type_: str) -> None:
    with pytest.raises(SchemaError, match="convert"):
        foreign_codec(encoding, type_).encode(np.zeros(3))


@given(st.sampled_from(CODECS), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(codec: tuple[str, str], data: bytes) -> None:
    with contextlib.suppress(FormatError):
        foreign_codec(*codec).decode(data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200))
def test_integers_of_all_lengths_are_decoded(numbers: list[int]) -> None:
    packed = b"".join(varint(number & (1 << 64) - 1) for number in numbers)
    assert decode_ints(memoryview(b"\x0a" + varint(len(packed)) + packed)).tolist() == numbers
    assert decode_ints(memoryview(b"".join(b"\x08" + varint(n & (1 << 64) - 1) for n in numbers))).tolist() == numbers


def test_long_lists_are_decoded_in_blocks() -> None:
    numbers = np.random.default_rng(0).integers(0, 2**63, 50_000) >> np.arange(50_000) % 63
    packed = b"".join(varint(int(number)) for number in numbers)
    np.testing.assert_array_equal(decode_ints(memoryview(b"\x0a" + varint(len(packed)) + packed)), numbers)


@pytest.mark.parametrize(("data", "expected"), [(b"\0", (0, 1)), (b"\xff" * 9 + b"\1", (2**64 - 1, 10))])
def test_varints_are_read(data: bytes, expected: tuple[int, int]) -> None:
    assert read_varint(memoryview(data), 0) == expected


@pytest.mark.parametrize("encoding", HEADERS)
def test_the_longest_header_is_within_the_limit(encoding: str) -> None:
    longest = {
        "mds/ndarray": bytes([8, 32 << 2 | 3]) + bytes(256),
        "mds/shaped": bytes([32 << 2 | 3]) + bytes(256),
        "litdata/tensor": struct.pack(">II", 0, 32) + bytes(128),
        "litdata/numpy": struct.pack("<II", 0, 32) + bytes(128),
        "pil": pil("YCbCr", 1, 1, b""),
    }[encoding]
    header = read_header(encoding, longest)
    assert header is not None
    assert header.start == len(longest) <= MAX_HEADER_BYTES
    with pytest.raises(FormatError, match="within its header"):
        read_header(encoding, longest[:-1] if encoding != "pil" else longest[:11])


def test_an_encoding_without_headers_has_none() -> None:
    assert read_header("raw/1d", b"") is None


@pytest.mark.parametrize(
    ("form", "data", "parts"),
    [
        ("jpeg_array", struct.pack("<III", 2, 1, 2) + b"abb", [b"a", b"bb"]),
        ("mds/list", struct.pack("<III", 0, 1, 2) + b"ab", [b"ab"]),
        ("mds/list", bytes(8), []),
        ("tfrecord/bytes", b"\x0a\1a\x0a\0", [b"a", b""]),
    ],
)
def test_lists_are_split(form: str, data: bytes, parts: list[bytes]) -> None:
    assert [bytes(part) for part in split_list(form, data)] == parts


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("jpeg_array", b"\1"),
        ("jpeg_array", struct.pack("<I", 2**32 - 1)),
        ("jpeg_array", struct.pack("<II", 1, 9) + b"a"),
        ("jpeg_array", struct.pack("<II", 1, 0) + b"a"),
        ("mds/list", bytes(7)),
        ("tfrecord/bytes", b"\x0a\2a"),
        ("tfrecord/bytes", b"\x08\1"),
        ("tar", b""),
    ],
)
def test_damaged_lists_are_errors(form: str, data: bytes) -> None:
    with pytest.raises(FormatError):
        split_list(form, data)


@pytest.mark.parametrize(
    ("encoding", "type_", "data"),
    [
        ("mds/ndarray", "float64[...]", bytes([66, 1 << 2 | 3]) + struct.pack("<Q", 1 << 40)),
        ("litdata/numpy", "float64[...]", struct.pack("<IIII", 10, 2, 2**31, 2**31)),
        ("pil", "uint8[...]", pil("RGB", 2**31, 2**31, b"")),
        ("tfrecord/ints", "int64[...]", b"\x0a" + varint(1 << 40)),
        ("tfrecord/floats", "float32[...]", b"\x0a" + varint(1 << 40)),
    ],
)
def test_lying_headers_allocate_nothing(encoding: str, type_: str, data: bytes) -> None:
    codec = foreign_codec(encoding, type_)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            codec.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
