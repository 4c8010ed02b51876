from __future__ import annotations

from benchmarks import scaling
from benchmarks.scaling import FULL, QUICK, Side, ratios


def test_all_sides_are_there() -> None:
    found = {(side.mode, side.n) for side in scaling.sides(FULL)}
    assert {("threads", 1), ("threads", 2), ("threads", 4), ("processes", 1), ("processes", 2)} <= found
    assert {side.transform for side in scaling.sides(FULL)} == {"native", "python"}


def test_a_quick_run_leaves_out_the_large_ones() -> None:
    assert scaling.sides(QUICK) == [Side("threads", 1, "python"), Side("processes", 1, "python")]


def test_ratios_are_medians_within_rounds() -> None:
    rates = {Side("threads", 1, "native"): (100, 200, 300), Side("processes", 2, "native"): (150, 500, 390)}
    found = {side: [{"samples_s": float(rate)} for rate in each] for side, each in rates.items()}
    assert ratios(found) == {"native-threads-1": 1, "native-processes-2": 1.5}
