"""Which neighbouring values of a cache file are read with one call."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.cache.open_shard import (
    _MAX_GAP_BYTES,
    _MAX_JOINED_BYTES,
    _MAX_READ_BYTES,
    _joined_reads,
)

SIZES = st.sampled_from([0, 1, 500, _MAX_JOINED_BYTES, _MAX_JOINED_BYTES + 1, 2 * _MAX_READ_BYTES])
GAPS = st.sampled_from([-70_000, -1, 0, 0, 1, _MAX_GAP_BYTES, _MAX_GAP_BYTES + 1])


def may_join(first: int, at: int, starts: list[int], ends: list[int]) -> bool:
    """Whether the value at a place may be read with the one before it, in a read that begins with another."""
    return (
        0 <= starts[at] - ends[at - 1] <= _MAX_GAP_BYTES
        and ends[at] - starts[at] <= _MAX_JOINED_BYTES
        and ends[at] - starts[first] <= _MAX_READ_BYTES
    )


@given(st.lists(st.tuples(GAPS, SIZES), max_size=200))
def test_each_value_is_read_once_with_as_many_neighbours_as_may_be(places: list[tuple[int, int]]) -> None:
    starts, ends, at = [], [], 1 << 30
    for gap, size in places:
        starts.append(at + gap)
        at = starts[-1] + size
        ends.append(at)
    reads = list(_joined_reads(np.array(starts, np.int64), np.array(ends, np.int64)))
    assert [row for first, stop in reads for row in range(first, stop)] == list(range(len(places)))
    for first, stop in reads:
        assert all(may_join(first, row, starts, ends) for row in range(first + 1, stop))
    for (first, stop), _ in pairwise(reads):
        assert not may_join(first, stop, starts, ends)
