from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.format.small_column import SmallColumn, encode_column
from concurrent_loader.storage.shards.format.value_codecs import MAX_SMALL_VALUE_BYTES

TEXT = Column("text", "str")


def column(codec: str, data: bytes, num_samples: int, dictionary: bytes | None = None) -> SmallColumn:
    trained = None if dictionary is None else memoryview(dictionary)
    return SmallColumn(TEXT, codec=codec, data=memoryview(data), dictionary=trained, num_samples=num_samples)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def round_trip(texts: list[str]) -> tuple[str, list[Any]]:
    encoded = encode_column([TEXT.encode(text) for text in texts])
    small = column(encoded.codec, encoded.data, len(texts), encoded.dictionary)
    assert [small.value(row) for row in reversed(range(len(texts)))] == texts[::-1]
    return encoded.codec, small.values()


@given(st.lists(st.text(max_size=200) | st.sampled_from(["a photograph of a cat " * 5, ""]), max_size=80))
def test_values_come_back(texts: list[str]) -> None:
    assert round_trip(texts)[1] == texts


def test_both_codecs_come_back() -> None:
    for codec, texts in {
        "raw": ["a", "", "b"],
        "zstd": [f"photograph {i} of the same old thing" for i in range(200)],
    }.items():
        assert round_trip(texts) == (codec, texts)


def test_threads_share_a_compressed_column() -> None:
    texts = [f"photograph {i} of the same old thing" * (i % 50) for i in range(400)]
    encoded = encode_column([TEXT.encode(text) for text in texts])
    small = column(encoded.codec, encoded.data, len(texts), encoded.dictionary)
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: small.values(), range(8)):
            assert got == texts


@pytest.mark.parametrize(
    ("codec", "data", "num_samples"),
    [
        ("raw", b"", 0),
        ("raw", numbers(0), 1),
        ("raw", numbers(0, 1), 1),
        ("raw", numbers(1, 1) + b"a", 1),
        ("raw", numbers(0, 1) + b"ab", 1),
        ("raw", numbers(0, 2, 1) + b"a", 2),
        ("raw", numbers(0, 2**32 - 1, 1) + b"a", 2),
        ("raw", numbers(0), 2**62),
        ("zstd", numbers(0, 0), 1),
        ("zstd", numbers(0, 0, MAX_SMALL_VALUE_BYTES + 1), 1),
        ("zstd", numbers(*[0] * 18, *[MAX_SMALL_VALUE_BYTES] * 17), 17),
    ],
    ids=[
        "empty",
        "offsets missing",
        "data missing",
        "starts late",
        "data left",
        "backwards",
        "far backwards",
        "impossible count",
        "lengths missing",
        "long value",
        "long column",
    ],
)
def test_blocks_that_do_not_fit_are_refused_before_anything_is_allocated(
    codec: str, data: bytes, num_samples: int
) -> None:
    with pytest.raises(FormatError):
        column(codec, data, num_samples)


def test_a_bomb_is_refused_where_it_is_read_and_names_the_row() -> None:
    bomb, good = (zstandard.ZstdCompressor().compress(data) for data in (bytes(32 << 20), b"good"))
    small = column("zstd", numbers(0, 4 + len(good) - 4, len(good) + len(bomb), 4, 5) + good + bomb, 2)
    assert small.value(0) == "good"
    with pytest.raises(FormatError, match="another size") as caught:
        small.value(1)
    assert caught.value.sample == 1


def test_text_that_is_not_utf8_names_row_and_column() -> None:
    small = column("raw", numbers(0, 1, 2) + b"a\xff", 2)
    assert small.value(0) == "a"
    with pytest.raises(FormatError) as caught:
        small.values()
    assert (caught.value.sample, caught.value.column) == (1, "text")
