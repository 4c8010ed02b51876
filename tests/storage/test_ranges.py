from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.ranges import ByteRange, coalesce, split

positions = st.integers(0, 500)
ranges = st.tuples(positions, positions).map(lambda pair: ByteRange(min(pair), max(pair)))


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (1, 0), (-2, -1)])
def test_impossible_ranges(start, end):
    with pytest.raises(ValueError, match="0 <= start <= end"):
        ByteRange(start, end)


@given(ranges, ranges)
def test_covers_means_every_byte(outer, inner):
    if len(inner):
        expected = set(range(inner.start, inner.end)) <= set(range(outer.start, outer.end))
        assert outer.covers(inner) == expected


@given(st.lists(ranges, max_size=20), st.integers(0, 60), st.integers(1, 400))
def test_coalesce(wishes, max_gap_bytes, max_bytes):
    merged = coalesce(wishes, max_gap_bytes=max_gap_bytes, max_bytes=max_bytes)
    wanted = [wish for wish in wishes if len(wish)]
    assert merged == sorted(merged)
    for wish in wanted:
        assert sum(request.covers(wish) for request in merged) == 1
    asked = {byte for request in merged for byte in range(request.start, request.end)}
    needed = {byte for wish in wanted for byte in range(wish.start, wish.end)}
    assert needed <= asked
    for before, after in pairwise(merged):
        assert before.end <= after.start
        # What was left apart could not have been merged.
        assert (
            after.start - before.end > max_gap_bytes
            or after.end - before.start > max_bytes
            or before.end == after.start
        )
    for request in merged:
        inside = sorted(wish for wish in wanted if request.covers(wish))
        assert request == ByteRange(inside[0].start, max(wish.end for wish in inside))
        reach = inside[0].end
        for wish in inside[1:]:
            assert wish.start - reach <= max_gap_bytes
            reach = max(reach, wish.end)


@given(st.lists(ranges, max_size=20), st.integers(0, 60), st.integers(1, 400), st.randoms())
def test_coalesce_does_not_depend_on_the_order_of_wishes(wishes, max_gap_bytes, max_bytes, random):
    shuffled = random.sample(wishes, len(wishes))
    options = {"max_gap_bytes": max_gap_bytes, "max_bytes": max_bytes}
    assert coalesce(shuffled, **options) == coalesce(wishes, **options)


def test_bridging_stops_at_max_bytes_but_a_large_wish_stays_whole():
    wishes = [ByteRange(0, 10), ByteRange(12, 20), ByteRange(21, 60)]
    assert coalesce(wishes, max_gap_bytes=5, max_bytes=20) == [ByteRange(0, 20), ByteRange(21, 60)]
    assert coalesce(wishes, max_gap_bytes=1, max_bytes=100) == [ByteRange(0, 10), ByteRange(12, 60)]
    assert coalesce(wishes, max_gap_bytes=0, max_bytes=100) == wishes


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
