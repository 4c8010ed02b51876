from __future__ import annotations

from benchmarks.figures import with_spread


def test_a_spread_has_the_median_and_the_extremes() -> None:
    assert with_spread({"a": [5.0, 1.0, 3.0, 100.0, 2.0]}) == {"a": 3.0, "spread": {"a": [1.0, 100.0]}}
    assert with_spread({"a": [1.0, 2.0]})["a"] == 1.5
