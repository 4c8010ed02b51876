"""The tables in docs/order.md that `benchmarks.scale` measured, from its JSON file: nothing in them is typed.

    python -m benchmarks.scale --json benchmarks/results/scale.json
    python -m benchmarks.scale_tables

The second command reads that file and writes what lies between the marks in docs/order.md anew; nothing is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import exponent

__all__ = ["DOCS", "FIGURES", "document_with", "main", "tables"]

Row = Mapping[str, Any]

_ROOT = Path(__file__).resolve().parents[1]
FIGURES = _ROOT / "benchmarks" / "results" / "scale.json"
DOCS = _ROOT / "docs" / "order.md"
_MARK = "<!-- {name}: {end}; made by python -m benchmarks.scale_tables -->"

_OPENED: dict[str, tuple[str, Callable[[float], str]]] = {
    "num_shards": ("shards", lambda value: f"{value:,.0f}"),
    "manifest_bytes": ("manifest", lambda value: _size(value)),
    "open_s": ("open the data set", lambda value: _time(value)),
    "loader_s": ("make the loader", lambda value: _time(value)),
    "shuffle_s": ("first batch of an epoch, planned", lambda value: _time(value)),
    "batch_s": ("a batch in a row after it", lambda value: _time(value)),
    "seek_s": ("a batch anywhere, by itself", lambda value: _time(value)),
    "resume_s": ("resume in the middle, first batch planned", lambda value: _time(value)),
    "schedule_s": ("schedule for the cache", lambda value: _time(value)),
    "rss_added_mb": ("memory added, at its highest", lambda value: _size(value * 1e6)),
}


def tables(report: Mapping[str, Any]) -> dict[str, str]:
    """Name of the mark → what belongs there."""
    return {"nodes": _nodes(report["nodes"]), "growth": _growth(report)}


def document_with(text: str, found: Mapping[str, str]) -> str:
    """Puts each table between its marks.

    Raises:
        ValueError: A mark is not there.
    """
    for name, table in found.items():
        begin, end = (_MARK.format(name=name, end=which) for which in ("begin", "end"))
        before, between, rest = text.partition(begin)
        _, closing, after = rest.partition(end)
        if not between or not closing:
            raise ValueError(f"no marks for the table {name!r}")
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def _nodes(rows: Sequence[Row]) -> str:
    half = len(rows) // 2
    by_default, each = rows[:half], rows[half:]
    lines = [
        [f"{few['nodes']:,}", f"{few['gets']:,}", f"{few['bytes_ratio']:.2f}", f"{many['gets']:,}",
         f"{many['bytes_ratio']:.2f}", f"{many['least_over_mean']:.3f} … {many['most_over_mean']:.3f}"]
        for few, many in zip(by_default, each, strict=True)
    ]  # fmt: skip
    titles = ["nodes", f"GETs: {by_default[0]['groups']} groups", "bytes ÷ data set", "GETs: a group each"]
    return _table([*titles, "bytes ÷ data set", "a node's bytes ÷ mean"], lines)


def _growth(report: Mapping[str, Any]) -> str:
    rows, machine = report["samples"], report["machine"]
    sizes = [row["num_samples"] for row in rows]
    lines = [
        [title, *(told(row[key]) for row in rows), _power(exponent(sizes[-2:], [row[key] for row in rows[-2:]]))]
        for key, (title, told) in _OPENED.items()
    ]
    where = (
        f"{machine['cpu']}, {machine['num_cores']} cores, load {machine['load_before']:g} before; medians of "
        f"{report['load']['num_rounds']} rounds. The last column is the power by which a figure grows between the last "
        "two sizes."
    )
    return _table(["samples", *(f"{size:,}" for size in sizes), "power"], lines) + "\n\n" + where


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    ruled = [titles, ["---", *("---:" for _ in titles[1:])], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in ruled)


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} KB"


def main(arguments: list[str] | None = None) -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_tables", description=__doc__)
    parser.add_argument("figures", nargs="?", type=Path, default=FIGURES, help="JSON file of benchmarks.scale")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page with the marks, docs/order.md by default")
    options = parser.parse_args(arguments)
    report = json.loads(options.figures.read_text(encoding="utf-8"))
    text = document_with(options.docs.read_text(encoding="utf-8"), tables(report))
    options.docs.write_text(text, encoding="utf-8")
    print(f"{options.docs}: written from {options.figures}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
