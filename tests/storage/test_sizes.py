from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.sizes import format_count, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        (" 2 TB ", 2 * 10**12),
    ],
)
def test_reads_sizes_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("size", ["", "MiB", "-1", "1 XB", "1e3", -1, 1.5, None, True, "٣MiB x"])
def test_refuses_what_is_no_size(size: object) -> None:
    with pytest.raises(ConfigurationError, match="cache_bytes"):
        parse_size(size, name="cache_bytes")  # type: ignore[arg-type]


@given(st.integers(0, 2**60))
def test_integers_are_bytes(num_bytes: int) -> None:
    assert parse_size(num_bytes) == parse_size(str(num_bytes)) == num_bytes


def test_writes_sizes() -> None:
    assert [format_size(n) for n in (0, 1023, 1024, 8 << 20, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "8.0 MiB",
        "1024.0 TiB",
    ]


def test_writes_counts() -> None:
    assert [format_count(n, "shard") for n in (0, 1, 2, 12_000)] == ["0 shards", "1 shard", "2 shards", "12,000 shards"]
    assert format_count(1, "batch", "batches") == "1 batch"
    assert format_count(2, "batch", "batches") == "2 batches"
