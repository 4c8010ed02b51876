from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.ranges import ByteRange, split

positions = st.integers(0, 500)
ranges = st.tuples(positions, positions).map(lambda pair: ByteRange(min(pair), max(pair)))


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (1, 0), (-2, -1)])
def test_impossible_ranges(start, end):
    with pytest.raises(ValueError, match="0 <= start <= end"):
        ByteRange(start, end)


@given(ranges, st.integers(1, 70))
def test_split_cuts_at_multiples(whole, chunk_bytes):
    chunks = list(split(whole, chunk_bytes=chunk_bytes))
    assert [byte for chunk in chunks for byte in range(chunk.start, chunk.end)] == list(range(whole.start, whole.end))
    for chunk in chunks:
        assert len(chunk)
        assert chunk.start // chunk_bytes == (chunk.end - 1) // chunk_bytes


@pytest.mark.parametrize("chunk_bytes", [0, -1])
def test_split_needs_a_size(chunk_bytes):
    with pytest.raises(ValueError, match="positive"):
        list(split(ByteRange(0, 1), chunk_bytes=chunk_bytes))
