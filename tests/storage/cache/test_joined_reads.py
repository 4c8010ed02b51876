"""Which neighbouring values of a cache file are read with one call."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.cache.file_values import (
    _MAX_GAP_BYTES,
    _MAX_JOINED_BYTES,
    _MAX_READ_BYTES,
    _ranges,
)

SIZES = st.sampled_from([0, 1, 500, _MAX_JOINED_BYTES, _MAX_JOINED_BYTES + 1, 2 * _MAX_READ_BYTES])
GAPS = st.sampled_from([-70_000, -1, 0, 0, 1, _MAX_GAP_BYTES, _MAX_GAP_BYTES + 1])


def may_join(first: int, at: int, files: list[int], starts: list[int], ends: list[int]) -> bool:
    """Whether the value at a place may be read with the one before it, in a read that begins with another."""
    return (
        files[at] == files[at - 1]
        and 0 <= starts[at] - ends[at - 1] <= _MAX_GAP_BYTES
        and ends[at] - starts[at] <= _MAX_JOINED_BYTES
        and ends[at] - starts[first] <= _MAX_READ_BYTES
    )


@given(st.lists(st.tuples(GAPS, SIZES, st.integers(0, 9)), max_size=200))
def test_each_value_is_read_once_with_as_many_neighbours_as_may_be(places: list[tuple[int, int, int]]) -> None:
    files, starts, ends, at, file = [], [], [], 1 << 30, 3
    for gap, size, is_next in places:
        file += is_next == 0  # one in ten begins another file
        files.append(file)
        starts.append(at + gap)
        at = starts[-1] + size
        ends.append(at)
    found = _ranges(*(np.array(each, np.int64) for each in (files, starts, ends)))
    firsts, lasts = (np.arange(len(places)),) * 2 if found is None else found
    reads = list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
    assert [row for first, stop in reads for row in range(first, stop)] == list(range(len(places)))
    for first, stop in reads:
        assert all(may_join(first, row, files, starts, ends) for row in range(first + 1, stop))
    for (first, stop), _ in pairwise(reads):
        assert not may_join(first, stop, files, starts, ends)
