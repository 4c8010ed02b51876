from __future__ import annotations

import itertools
import re

import pytest

from benchmarks.plots import _ticks, bars, lines


@pytest.mark.parametrize("highest", [0.013, 0.9, 1.0, 7.3, 100.0, 3200.0, 999_999.0])
def test_ticks_are_few_even_and_cover_everything(highest: float) -> None:
    ticks = _ticks(highest)
    assert ticks[0] == 0
    assert highest <= ticks[-1] * (1 + 1e-9)
    assert ticks[-2] < highest
    assert 3 <= len(ticks) <= 9
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bars([("a & b", 100.0, 0.25), ("c", 50.0, 0.0)], unit="images/s")
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.2)
    assert widths[2] == pytest.approx((widths[0] + widths[1]) / 2, abs=0.2)
    assert widths[3] == 0.0
    assert "a &amp; b" in drawn


def test_lines_end_where_their_points_do() -> None:
    drawn = lines([("slow", [(0, 0), (10, 100)]), ("fast", [(0, 0), (5, 100)])], x_label="s", y_label="n")
    (slow, fast) = [
        [tuple(map(float, point.split(","))) for point in path.split()]
        for path in re.findall(r'points="([^"]+)"', drawn)
    ]
    assert slow[0] == fast[0]
    assert slow[1][1] == fast[1][1]
    assert slow[1][0] - slow[0][0] == pytest.approx(2 * (fast[1][0] - fast[0][0]), abs=0.2)
