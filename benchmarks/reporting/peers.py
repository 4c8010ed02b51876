"""The report's part about other loaders: the same photographs, the same bucket, each in its own best format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting.charts import OTHERS, OTHERS_PALE, OURS, OURS_PALE, bars, canvas, save
from benchmarks.reporting.markdown import Figures, bulleted, number, ranged, table
from benchmarks.reporting.section import Section

__all__ = ["PEERS", "by_latency"]

Row = dict[str, Any]
_RATIOS = {
    "cold_raw_vs_best": "raw bytes, cold: samples/s, ours ÷ best peer",
    "warm_raw_vs_best": "raw bytes, warm: samples/s, ours ÷ best peer",
    "decoded_vs_best": "decoded to 224²: samples a second of processor time, ours ÷ best peer",
    "decoded_wall_vs_best": "decoded to 224²: samples/s, ours ÷ best peer",
    "first_batch_vs_best": "time to the first batch, ours ÷ best peer",
}


def by_latency(value: object) -> dict[str, float]:
    """A ratio that is one number or one a latency; those that were not measured are left out."""
    if isinstance(value, dict):
        return {str(name): float(each) for name, each in value.items() if each is not None}
    return {"all": float(value)} if isinstance(value, int | float) else {}


def _groups(figures: Figures) -> dict[tuple[str, float | None], list[Row]]:
    """The rows that were measured, by kind and latency; None is the local drive."""
    found: dict[tuple[str, float | None], list[Row]] = {}
    for row in figures["rows"]:
        if row["samples_s"] is not None:
            found.setdefault((row["kind"], row["latency_ms"]), []).append(row)
    return dict(sorted(found.items(), key=_place))


def _place(group: tuple[tuple[str, float | None], object]) -> tuple[bool, str, float]:
    (kind, latency_ms), _ = group
    return kind != "raw", kind, math.inf if latency_ms is None else latency_ms


_COLUMNS = {
    "first_batch_s": "first batch, s",
    "cpu_s_per_1000": "CPU s / 1,000",
    "peak_rss_mb": "peak memory, MB",
    "gets": "GETs",
    "bytes_ratio": "bytes ÷ data set",
    "shuffle_distance": "shuffle distance",
    "resume_s": "resume, s",
}


# What the loaders are compared by in each cell, and whether more of it is better.
_COMPARED = {"samples_s": True, "cpu_s_per_1000": False, "first_batch_s": False}


def _body(figures: Figures) -> str:
    told = []
    for (kind, latency_ms), rows in _groups(figures).items():
        shown = [key for key in _COLUMNS if any(row.get(key) is not None for row in rows)]
        rows.sort(key=lambda row: (row["epoch"], -row["samples_s"]))
        cells = [
            [_title(row), row["layout"], row["epoch"], str(row.get("workers", "–")),
             str(row.get("rounds", "–")), _ranged(row, "samples_s"), *(_ranged(row, key) for key in shown)]
            for row in rows
        ]  # fmt: skip
        titles = ["", "format", "epoch", "workers", "rounds", "samples/s (extremes)", *(_COLUMNS[key] for key in shown)]
        told += [f"**{kind.capitalize()}, {_where(latency_ms)}:**", table(titles, cells, num_left=3)]
    told += ["**Ours against the best peer:**", bulleted(_ratios(figures))]
    measured = [row for row in figures["rows"] if row["samples_s"] is not None]
    compared = _by_cell(measured)
    if compared:
        titles = ["", "samples/s", "samples a CPU second", "first batch"]
        told += ["**The same in each cell, ours ÷ the best of the others, medians (first batch: less is better):**",
                 table(titles, compared, num_left=1)]  # fmt: skip
    remarks = [
        (_label(row), str(remark))
        for row in measured
        for remark in (row.get("note"), row.get("resume"), _fault(row))
        if remark
    ]
    if remarks:
        told += ["**Remarks:**", bulleted(dict.fromkeys(remarks))]
    others = _other_runs(measured)
    if others:
        told += ["**Measured in other runs than the ratios:**", bulleted(others)]
    errors = dict.fromkeys(
        (row.get("title", row["peer"]), row["layout"], f"{row['kind']}, {row['epoch']}", str(row["error"]))
        for row in figures["rows"]
        if row.get("error")
    )
    if errors:
        told += ["**What did not run, and what it said:**", table(["", "format", "", "error"], errors, num_left=4)]
    return "\n\n".join(told)


def _ratios(figures: Figures) -> list[tuple[str, str]]:
    """What is compared, and how it came out."""
    found = []
    for key, what in _RATIOS.items():
        values = by_latency(figures.get(key))
        told = ", ".join(
            f"{number(value)}{'' if name == 'all' else f' at {name} ms'}" for name, value in values.items()
        )
        best = figures.get("best", {}).get(key)
        found.append((what, (told or "not measured") + (f" (the best: {best})" if best and told else "")))
    return found


def _by_cell(rows: Sequence[Row]) -> list[list[object]]:
    """Ours over shards beside whoever else is best at it, in each cell that both were measured in."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["latency_ms"] is not None:
            cells.setdefault(tuple(row.get(key) for key in ("kind", "latency_ms", "workers", "epoch")), []).append(row)
    found: list[list[object]] = []
    for (kind, latency_ms, workers, epoch), there in sorted(cells.items(), key=_cell_place):
        ours = next((row for row in there if row["peer"] == "ours"), None)
        others = [row for row in there if not _is_ours(row)]
        if ours is not None and others:
            cell = ", ".join((kind, epoch, _where(latency_ms), *([] if workers is None else [_workers(workers)])))
            ratios = (_ratio(ours, others, key, more=more) for key, more in _COMPARED.items())
            found.append([cell, *ratios])
    return found


def _cell_place(cell: tuple[tuple[Any, ...], object]) -> tuple[bool, float, int, str]:
    (kind, latency_ms, workers, epoch), _ = cell
    return kind != "raw", latency_ms, -(workers or 0), epoch


def _ratio(ours: Row, others: Sequence[Row], key: str, *, more: bool) -> float | None:
    """Ours ÷ the best; of processor time, the other way round: samples a second of it."""
    theirs: list[float] = [row[key] for row in others if row.get(key)]
    if not theirs or not ours.get(key):
        return None
    ratio = float(ours[key]) / (max(theirs) if more else min(theirs))
    return round(1 / ratio if key == "cpu_s_per_1000" else ratio, 2)


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def _fault(row: Row) -> str | None:
    """What was wrong with what it delivered."""
    told = f"delivered {row['fault']}" if row.get("fault") else None
    if row.get("complete") is False:
        told = f"{told}; cut short" if told else "cut short: it took too long"
    return f"{told} ({row['kind']}, {row['epoch']}, {_where(row['latency_ms'])})" if told else None


def _other_runs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """When another run was, and whom it measured in which tables."""
    runs: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        if row.get("measured"):
            workers = "" if row.get("workers") is None else f", {_workers(row['workers'])}"
            where = f"{row['kind']}, {_where(row['latency_ms'])}{workers}"
            runs.setdefault(row["measured"], {}).setdefault(where, {})[_label(row)] = None
    return [
        (f"run of {began}", ". ".join(f"{where} ({'; '.join(labels)})" for where, labels in tables.items()))
        for began, tables in sorted(runs.items())
    ]


def _ranged(row: Row, key: str) -> str:
    return ranged(row.get(key), row.get("spread", {}).get(key))


def _title(row: Row) -> str:
    return f"**{_name(row)}**" if _is_ours(row) else _name(row)


def _name(row: Row) -> str:
    return "ours" if _is_ours(row) else str(row.get("title", row["peer"]))


def _label(row: Row) -> str:
    return f"{_name(row)}, {row['layout']}"


def _is_ours(row: Row) -> bool:
    return str(row["peer"]).startswith("ours")


def _where(latency_ms: float | None) -> str:
    return "local drive" if latency_ms is None else f"{number(latency_ms)} ms"


def _plot(figures: Figures, file: Path) -> None:
    groups = {pair: rows for pair, rows in _groups(figures).items() if pair[1] is not None}
    labels = {_label(row): _is_ours(row) for rows in groups.values() for row in rows}
    names = sorted(labels, key=lambda name: not labels[name])
    num_rows = -(-len(groups) // 2)
    figure, panels = canvas(len(groups), height=(0.34 * len(names) + 1.0) * num_rows, num_rows=num_rows)
    for place, (axes, ((kind, latency_ms), rows)) in enumerate(zip(panels, groups.items(), strict=True)):
        series = [
            (epoch, [_best(rows, name, epoch) for name in names], [looks[not labels[name]] for name in names])
            for epoch, looks in (("cold", (OURS, OTHERS)), ("warm", (OURS_PALE, OTHERS_PALE)))
        ]
        bars(axes, names, series, title=f"{kind}, {_where(latency_ms)}", unit="samples/s (logarithmic)", log=True)
        if place % -(-len(panels) // num_rows):
            axes.set_yticklabels([])
    figure.suptitle("dark: cold, pale: warm; the better number of workers", fontsize=8.5, x=0.01, ha="left")
    save(figure, file)


def _best(rows: Sequence[Row], label: str, epoch: str) -> float | None:
    found = (row["samples_s"] for row in rows if (_label(row), row["epoch"]) == (label, epoch))
    return max(found, default=None)


def _latency(figures: Figures) -> str:
    asked = sorted({row["latency_ms"] for row in figures["rows"] if row["latency_ms"]})
    told = f"{', '.join(number(each) for each in asked)} ms to the first byte, as the tables say"
    return f"{told}; {figures['bandwidth_mb_s']} MB/s a connection" if "bandwidth_mb_s" in figures else told


PEERS = Section(
    "peers",
    "Other loaders, on the same work",
    "The same photographs from the same server behind the same latency, each loader in a virtual environment of its "
    "own, in the format and with the settings that its documentation names as best. Every epoch is a fresh process; "
    "loaders take turns in every round. GETs and bytes are counted on the wire. Every picture that comes is checked: "
    "its bytes, none twice, none missing. Those that do not run have their exact error here.",
    _latency,
    "cold: nothing kept; warm: what the loader itself kept from the epoch before",
    _body,
    _plot,
    "Bars: samples a second by loader, cold and warm, by latency",
)
