from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from concurrent_loader.storage.shards.manifest.statistics import fixed_facts, merge_statistics, payload_facts


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.array([3, -1, 2]), {"max": 3, "min": -1}),
        (np.array([[1, 2], [3, 2**64 - 1]], np.uint64), {"max": 2**64 - 1, "min": 1}),
        (np.array([True, False, True]), {"num_true": 2, "num_values": 3}),
        (np.array([1.5, np.nan, np.inf, -np.inf]), {"max": 1.5, "min": 1.5, "num_infinite": 2, "num_nan": 1}),
        (np.array([np.nan], np.float16), {"max": None, "min": None, "num_infinite": 0, "num_nan": 1}),
        (np.array([], np.int8), {"max": None, "min": None}),
    ],
)
def test_facts_of_numbers(values: Any, facts: dict[str, Any]) -> None:
    assert fixed_facts(values) == facts


def test_facts_of_payload() -> None:
    assert payload_facts(np.array([5, 0, 7], np.uint64)) == {"max_bytes": 7, "min_bytes": 0, "total_bytes": 12}
    assert payload_facts(np.array([], np.uint64)) == {"max_bytes": None, "min_bytes": None, "total_bytes": 0}


@given(
    st.sampled_from([np.float32, np.int16, np.bool_]).flatmap(lambda kind: hnp.arrays(kind, st.integers(0, 20))),
    st.integers(0, 20),
)
def test_merging_two_parts_is_describing_the_whole(values: Any, cut: int) -> None:
    parts = [{"x": fixed_facts(part)} for part in (values[:cut], values[cut:])]
    assert merge_statistics(*parts) == {"x": fixed_facts(values)}


def test_merging_with_nothing() -> None:
    facts = {"x": {"max": 1, "min": 0}}
    assert merge_statistics({}, facts) == merge_statistics(facts, {}) == facts
