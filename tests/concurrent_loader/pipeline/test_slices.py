from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.pipeline.slices import count_slices, count_units, cut_batch

UNITS = st.lists(st.integers(0, 40) | st.sampled_from([2**40, 2**62, 2**63 - 1]), max_size=60)


class AnyShard(dict):  # type: ignore[type-arg]
    def __missing__(self, unit: int) -> int:
        return unit


@given(UNITS)
def test_units_are_counted_in_ascending_order(units: list[int]) -> None:
    found, counts = count_units(np.array(units, np.int64))
    assert dict(zip(found, counts, strict=True)) == Counter(units)
    assert found == sorted(set(units))


@given(UNITS, st.integers(0, 2**32), st.integers(1, 5))
def test_slices_have_each_sample_once_by_shard_and_row(units: list[int], seed: int, num_slices: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2**33, len(units))
    index = BatchIndex(0, np.array(units, np.int64), rows, np.arange(len(units)) * 10)
    slices = cut_batch(index, AnyShard(), num_slices=num_slices)
    read = [
        (unit, row) for each in slices for unit, run in zip(each.units, each.rows, strict=True) for row in run.tolist()
    ]
    assert read == sorted(zip(units, rows.tolist(), strict=True))
    positions = np.concatenate([each.positions for each in slices]).tolist()
    assert sorted(positions) == list(range(len(units)))
    assert [(units[at], int(rows[at])) for at in positions] == read
    assert [number for each in slices for number in each.samples.tolist()] == [10 * at for at in positions]


@pytest.mark.parametrize(
    ("samples", "num_bytes", "expected"),
    [(7, None, 1), (16, None, 2), (500, None, 4), (500, 10**6, 1), (2, 3 << 20, 3)],
)
def test_only_large_batches_are_sliced(samples: int, num_bytes: int | None, expected: int) -> None:
    assert count_slices(samples, num_threads=4, num_bytes=num_bytes) == expected
