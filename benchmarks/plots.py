"""Two plots as inline SVG: speed of the sides, and images trained over time; text in, text out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDTH = 760
_BAR = 30
_LABEL = 250
_LEFT, _TOP, _BOTTOM = 60, 14, 44


def bars(values: Sequence[tuple[str, float, float]], *, unit: str) -> str:
    """Draws horizontal bars, the lost part of each pale."""
    longest = max(value for _, value, _ in values)
    scale = (_WIDTH - _LABEL - 130) / longest
    rows = []
    for number, (name, value, pale) in enumerate(values):
        y = number * (_BAR + 14)
        full = value * scale
        solid = full * (1 - pale)
        rows += [
            _text(_LABEL - 12, y + 20, name, anchor="end"),
            _rect(f"s{number}", _LABEL, y, solid, _BAR),
            _rect(f"s{number} pale", _LABEL + solid, y, full - solid, _BAR),
            _text(_LABEL + full + 8, y + 20, f"{value:,.0f} {unit}"),
        ]
    return _svg(len(values) * (_BAR + 14), rows)


def lines(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, x_label: str, y_label: str) -> str:
    """Lines through points, each named at its end in the legend."""
    height = 320
    x_ticks = _ticks(max(points[-1][0] for _, points in series))
    y_ticks = _ticks(max(y for _, points in series for _, y in points))
    x_scale = (_WIDTH - _LEFT - 20) / x_ticks[-1]
    y_scale = (height - _TOP - _BOTTOM) / y_ticks[-1]
    base = height - _BOTTOM
    rows = []
    for y in y_ticks:
        level = base - y * y_scale
        rows.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{level:.1f}" y2="{level:.1f}"/>')
        rows.append(_text(_LEFT - 8, level + 4, f"{y:,.0f}", anchor="end"))
    rows += [_text(_LEFT + x * x_scale, base + 18, f"{x:g}", anchor="middle") for x in x_ticks]
    rows.append(_text((_WIDTH + _LEFT) / 2, height - 4, x_label, anchor="middle"))
    rows.append(_text(_LEFT + 8, _TOP + 10, y_label))
    for number, (name, points) in enumerate(series):
        path = " ".join(f"{_LEFT + x * x_scale:.1f},{base - y * y_scale:.1f}" for x, y in points)
        legend = base - 14 - 18 * (len(series) - 1 - number)
        rows.append(f'<polyline class="l{number}" points="{path}"/>')
        rows.append(_rect(f"s{number}", _WIDTH - 300, legend - 9, 12, 10))
        rows.append(_text(_WIDTH - 282, legend, name))
    return _svg(height, rows)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _ticks(highest: float) -> list[float]:
    """Returns four to eight round numbers from 0 to at least ``highest``."""
    raw = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _svg(height: int, rows: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(rows)}</svg>'
