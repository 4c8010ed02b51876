from __future__ import annotations

import pytest

from benchmarks.growth import exponent, slopes


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 2.0])
def test_a_power_law_gives_its_power(power: float) -> None:
    sizes = [1, 10, 100, 1000]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_what_has_no_logarithm_is_left_out() -> None:
    assert exponent([1, 10, 100], [0.0, 20, 200]) == pytest.approx(1)
    assert exponent([1, 10], [0.0, 20]) is None
    assert exponent([10], [20]) is None


def test_a_fixed_cost_hides_growth_from_the_first_slope_only() -> None:
    sizes = [1, 10, 100, 1000, 10_000]
    found = slopes(sizes, {"open_s": [1 + size / 100 for size in sizes]})["open_s"]
    assert found["all"] is not None
    assert found["last"] is not None
    assert found["all"] < 0.6 < 0.95 < found["last"] <= 1
