"""Figures as text: numbers with three digits, spreads, tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Figures", "bulleted", "number", "percent", "ranged", "table"]

Figures = Mapping[str, Any]
_NOTHING = "–"


def number(value: float | None) -> str:
    """Three digits, or all of those before the point: 0.194, 41,515; a dash for nothing."""
    if value is None:
        return _NOTHING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    if rounded != 0 and abs(rounded) < 0.0001:
        return f"{rounded:.2e}"
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.10g}"


def percent(value: float | None) -> str:
    """A share as a percentage, one decimal."""
    return _NOTHING if value is None else f"{100 * value:.1f} %"


def ranged(value: float | None, extremes: Sequence[float] | None) -> str:
    """A median with its extremes, where they are known."""
    if value is None or not extremes:
        return number(value)
    return f"{number(value)} ({number(min(extremes))} … {number(max(extremes))})"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, num_left: int = 1) -> str:
    """A table in Markdown.

    Args:
        titles: Of the columns.
        rows: Cells; floats and whole numbers are written by `number`.
        num_left: Columns aligned to the left, the first ones; the others are to the right.
    """
    marks = ["---"] * num_left + ["---:"] * (len(titles) - num_left)
    lines = [titles, marks, *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bulleted(facts: Iterable[tuple[str, str]]) -> str:
    """One line a fact, its name in front."""
    return "\n".join(f"- {name}: {told}" for name, told in facts)


def _cell(cell: object) -> str:
    if cell is None or isinstance(cell, float | int):
        return number(cell)
    return str(cell).replace("|", "\\|").replace("\n", " ")
