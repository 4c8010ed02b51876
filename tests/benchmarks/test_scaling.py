from __future__ import annotations

from benchmarks import scaling
from benchmarks.scaling import FULL, QUICK, Row, Side, medians, ratios


def test_all_sides_are_there() -> None:
    found = {(side.mode, side.n) for side in scaling.sides(FULL)}
    assert {("threads", 1), ("threads", 2), ("threads", 4), ("processes", 1), ("processes", 2)} <= found
    assert {side.transform for side in scaling.sides(FULL)} == {"native", "python"}


def test_a_quick_run_leaves_out_the_large_ones() -> None:
    assert scaling.sides(QUICK) == [Side("threads", 1, "python"), Side("processes", 1, "python")]


def test_medians_and_ratios_are_over_rounds() -> None:
    two = [Side("threads", 1, "native"), Side("processes", 2, "native")]

    def row(side: Side, samples_s: float) -> Row:
        return Row(side.mode, side.n, side.transform, samples_s, 1.0, 2.0, 3.0)

    rounds = [[row(two[0], alone), row(two[1], both)] for alone, both in ((100, 150), (200, 500), (300, 390))]
    assert [found.samples_s for found in medians(rounds)] == [200, 390]
    assert ratios(rounds) == {"native-threads-1": 1, "native-processes-2": 1.5}
