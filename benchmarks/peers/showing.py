"""The peers' figures on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

# Key → bound, and whether more is better.
TARGETS = {
    "cold_raw_vs_best": (2.0, True),
    "warm_raw_vs_best": (1.2, True),
    "decoded_vs_best": (1.4, True),
    "first_batch_vs_best": (0.5, False),
}
_COLUMNS = (
    ("samples_s", "per s", "{:,.0f}"),
    ("cpu_s_per_1000", "CPU s/1k", "{:.2f}"),
    ("first_batch_s", "first, s", "{:.2f}"),
    ("peak_rss_mb", "MB", "{:,.0f}"),
    ("gets", "GETs", "{:,}"),
    ("bytes_ratio", "bytes", "{:.2f} x"),
    ("shuffle_distance", "shuffle", "{:.2f}"),
    ("resume_s", "resume", "{:.2f}"),
)


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints a table a cell, the fastest first, and the headline."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in figures["rows"]:
        if row["latency_ms"] is not None:
            cells.setdefault((row["kind"], row["latency_ms"], row["workers"], row["epoch"]), []).append(row)
    for (kind, latency_ms, workers, epoch), rows in cells.items():
        table = Table(title=f"{kind}, {epoch}, {latency_ms} ms, {workers} workers or threads", box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for _, title, _ in _COLUMNS:
            table.add_column(title, justify="right")
        for row in sorted(rows, key=lambda row: -(row["samples_s"] or 0)):
            cells_shown = [_cell(row[key], form) for key, _, form in _COLUMNS]
            table.add_row(row["peer"], *cells_shown)
        console.print(table)
    for row in figures["rows"]:
        if row["fault"]:
            console.print(f"{row['title']}, {row['layout']}, {row['kind']}, {row['epoch']}: {row['fault']}")
    for key, (bound, more) in TARGETS.items():
        value = figures[key]
        if value is not None:
            met = value >= bound if more else value <= bound
            verdict = f"{'≥' if more else '≤'} {bound:g}: {'met' if met else 'MISSED'}"
            console.print(f"{key}: {value} (best: {figures['best'][key]}), target {verdict}", highlight=False)


def _cell(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)
