from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.preview.histogram import histogram


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50), st.booleans())
def test_every_value_is_in_a_bar(values: list[int], logarithmic: bool) -> None:
    bars = histogram(values, str, logarithmic=logarithmic)
    assert sum(bar.count for bar in bars) == len(values)
    assert max(bar.share for bar in bars) == 1


def test_without_values_and_with_equal_ones() -> None:
    assert histogram([], str) == []
    assert [(bar.count, bar.share) for bar in histogram([3, 3], str)] == [(2, 1.0)]
    assert sum(bar.count for bar in histogram(np.array([0, 5]), str, logarithmic=True)) == 2
