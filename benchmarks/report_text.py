"""Numbers and tables of the report as text, and what it makes of the rows of `benchmarks.peers`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

Figures = Mapping[str, Any]
DASH = "–"


def number(value: float | None) -> str:
    """Writes three digits, or all digits before the point: 0.194, 41,515; a dash for None."""
    if value is None:
        return DASH
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    if rounded != 0 and abs(rounded) < 0.0001:
        return f"{rounded:.2e}"
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.10g}"


def percent(value: float | None) -> str:
    """Writes a share as a percentage with one decimal."""
    return DASH if value is None else f"{100 * value:.1f} %"


def ranged(value: float | None, extremes: Sequence[float] | None) -> str:
    """Writes a median with its extremes, where they are known."""
    if value is None or not extremes:
        return number(value)
    return f"{number(value)} ({number(min(extremes))} … {number(max(extremes))})"


def seconds(value: float) -> str:
    """Writes a time with its unit."""
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return f"{value * scale:.3g} {unit}"


def size(num_bytes: float) -> str:
    """Writes a number of bytes with its unit."""
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} KB"


def _cell(row: Figures, spec: str) -> str:
    """Writes a cell by ``key``, ``key %``, ``key ±`` (extremes in ``spread``), ``key ± extremes``, or a format."""
    if "{" in spec:
        return spec.format(**row)
    key, _, mark = spec.partition(" ")
    value: Any = row
    for name in key.split("."):
        value = None if value is None else value.get(name)
    if mark == "%":
        return percent(value)
    if mark.startswith("±"):
        other = mark.removeprefix("±").strip()
        return ranged(value, row[other] if other else row.get("spread", {}).get(key))
    return number(value) if value is None or isinstance(value, int | float) else str(value)


def grid(titles: Sequence[object], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Writes a Markdown table; the first ``left`` columns are aligned to the left."""

    def told(cell: object) -> str:
        text = number(cell) if cell is None or isinstance(cell, float | int) else str(cell)
        return text.replace("|", "\\|").replace("\n", " ")

    marks = ["---"] * left + ["---:"] * (len(titles) - left)
    lines = [[str(title) for title in titles], marks, *([told(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(rows: Iterable[Figures], columns: Mapping[str, str], left: int = 1) -> str:
    """Writes rows as a Markdown table; ``columns`` has a cell's rule under its title (see `_cell`).

    A column that has no value in any row is left out.
    """
    rows = list(rows)
    found = [list(row) for row in zip(*([_cell(row, spec) for row in rows] for spec in columns.values()), strict=True)]
    kept = [at for at in range(len(columns)) if at < left or any(row[at] != DASH for row in found)]
    titles = list(columns)
    return grid([titles[at] for at in kept], ([row[at] for at in kept] for row in found), left)


def pivot(rows: Iterable[Figures], index: Sequence[str], over: str, spec: str, titles: Sequence[str]) -> str:
    """Writes one line for each ``index`` and one column for each value of ``over``."""
    frame = pd.DataFrame([{**{key: row[key] for key in (*index, over)}, "cell": _cell(row, spec)} for row in rows])
    wide = frame.pivot_table(index=list(index), columns=over, values="cell", aggfunc="first", sort=False).reset_index()
    found = wide.astype(object).where(wide.notna(), DASH)
    return grid([*titles, *(str(name) for name in found.columns[len(index) :])], found.values.tolist(), len(index))


def unfinished(row: Figures, load: Figures) -> str | None:
    """Returns why the median turn of a loader did not finish its epoch; None if it finished.

    The time limit of an epoch is checked at each batch: a loader whose first batch comes late is cut off there.
    """
    if row["complete"] is not False or row["samples"] >= row["of_samples"]:
        return None
    limit_s = load["objects_limit_s" if row["layout"] == "objects" else "limit_s"]
    late = f"first batch after {number(row['first_batch_s'])} s; "
    return f"did not finish ({late}limit {limit_s:g} s: {row['samples']:,} of {row['of_samples']:,} samples)"


def peer_rows(figures: Figures) -> list[dict[str, Any]]:
    """Returns the measured rows of `benchmarks.peers` with a name, the cell's words, and the rate that may be shown."""
    found = []
    for row in figures["rows"]:
        if row["samples_s"] is None:
            continue
        ours = str(row["peer"]).startswith("ours")
        where = "local drive" if row["latency_ms"] is None else f"{number(row['latency_ms'])} ms"
        why = unfinished(row, figures.get("load", {}))
        cut = " (some turns were cut off)" if row.get("complete") is False and why is None else ""
        rate = ranged(row["samples_s"], row.get("spread", {}).get("samples_s")) + cut
        cpu = ranged(row["cpu_s_per_1000"], row.get("spread", {}).get("cpu_s_per_1000"))
        name = "ours" if ours else row.get("title", row["peer"])
        workers = "" if row.get("workers") is None else f", {row['workers']} worker{'s' * (row['workers'] > 1)}"
        found.append(
            {
                **row, "ours": ours, "name": name, "shown_name": f"**{name}**" if ours else name, "where": where,
                "label": f"{name}, {row['layout']}", "unfinished": why, "rate": why or rate,
                "cpu": DASH if why else cpu, "workers": row.get("workers"),
                "cell": f"{row['kind']}, {row['epoch']}, {where}{workers}",
            }
        )  # fmt: skip

    def shown_order(row: Figures) -> tuple[Any, ...]:
        is_local, is_cut = row["latency_ms"] is None, row["unfinished"] is not None
        return row["kind"] != "raw", is_local, row["latency_ms"] or 0, row["epoch"], is_cut, -row["samples_s"]

    return sorted(found, key=shown_order)


def by_cell(rows: Sequence[Figures]) -> list[list[str]]:
    """Divides ours over shards by the best of the others, in each cell that both were measured in.

    ``†`` marks a ratio whose best rival did not finish: its rate is that of the part before the limit.
    """
    found = []
    for cell in dict.fromkeys(row["cell"] for row in rows if row["latency_ms"] is not None):
        there = [row for row in rows if row["cell"] == cell]
        mine = next((row for row in there if row["peer"] == "ours"), None)
        others = [row for row in there if not row["ours"]]
        if mine is None or not others:
            continue
        fastest = max(others, key=lambda row: float(row["samples_s"]))
        thrifty = min(others, key=lambda row: row["cpu_s_per_1000"] or math.inf)
        first = min(others, key=lambda row: row["first_batch_s"] or math.inf)
        mark, cpu_mark = (" †" if row["unfinished"] else "" for row in (fastest, thrifty))
        found.append([
            cell, f"{mine['samples_s'] / fastest['samples_s']:.2f}{mark}",
            f"{thrifty['cpu_s_per_1000'] / mine['cpu_s_per_1000']:.2f}{cpu_mark}",
            f"{mine['first_batch_s'] / first['first_batch_s']:.2f}",
        ])  # fmt: skip
    return found


def adopt_rows(figures: Figures) -> list[dict[str, Any]]:
    """Returns the rows of `benchmarks.adopt` with the rate as it is shown, and one for each rival without a turn."""
    rows = [dict(row) for row in figures["rows"]]
    measured = {row["format"] for row in rows if row["side"] == "rival"}
    errors = {name: error for name, error in figures.get("errors", {}).items() if name not in measured}
    rows += [{"format": name, "side": "rival", "epoch": "cold", "error": error} for name, error in errors.items()]
    for row in rows:
        why = row.get("error") or f"limit {figures['load']['limit_s']:g} s"
        rate = row.get("samples_s")
        row["rate"] = f"did not finish ({why.strip().splitlines()[-1]})" if rate is None else number(rate)
    return rows


_MAKERS = (number, percent, ranged, seconds, size, grid, table, pivot, peer_rows, by_cell, adopt_rows)
FILTERS = {maker.__name__: maker for maker in _MAKERS}
