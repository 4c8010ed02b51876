"""What the report makes of the rows of `benchmarks.peers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.report_text import DASH, Figures, number, ranged


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
        found.append(
            {
                **row, "ours": ours, "name": name, "shown_name": f"**{name}**" if ours else name, "where": where,
                "label": f"{name}, {row['layout']}", "unfinished": why, "rate": why or rate,
                "cpu": DASH if why else cpu, "workers": row.get("workers"),
                "cell": ", ".join([row["kind"], row["epoch"], where, _workers(row.get("workers"))]).rstrip(", "),
            }
        )  # fmt: skip
    return sorted(found, key=_shown_order)


def _shown_order(row: Figures) -> tuple[Any, ...]:
    far = row["latency_ms"] or math.inf
    is_local, is_cut = row["latency_ms"] is None, row["unfinished"] is not None
    return row["kind"] != "raw", is_local, far, row["epoch"], is_cut, -row["samples_s"]


def _workers(count: int | None) -> str:
    return "" if count is None else f"{count} worker{'s' * (count > 1)}"


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
