"""The report's part about other loaders: the same photographs, the same bucket, each in its own best format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting.charts import OTHERS, OTHERS_PALE, OURS, OURS_PALE, bars, canvas, save
from benchmarks.reporting.markdown import Figures, number, ranged, table
from benchmarks.reporting.section import Section

__all__ = ["PEERS", "by_latency"]

Row = dict[str, Any]
_RATIOS = {
    "cold_raw_vs_best": "raw bytes, cold: samples/s, ours ÷ best peer",
    "warm_raw_vs_best": "raw bytes, warm: samples/s, ours ÷ best peer",
    "decoded_vs_best": "decoded to 224²: samples/s a core, ours ÷ best peer",
    "first_batch_vs_best": "time to the first batch, ours ÷ best peer",
}


def by_latency(value: object) -> dict[str, float]:
    """A ratio that is one number or one a latency; those that were not measured are left out."""
    if isinstance(value, dict):
        return {str(name): float(each) for name, each in value.items() if each is not None}
    return {"all": float(value)} if isinstance(value, int | float) else {}


def _rows(figures: Figures) -> tuple[list[Row], list[Row]]:
    """Those that were measured, and those that failed."""
    rows: list[Row] = figures["rows"]
    return [row for row in rows if not row.get("error")], [row for row in rows if row.get("error")]


def _groups(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    """By kind and latency."""
    found: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row["kind"], row["latency_ms"] or 0), []).append(row)
    return dict(sorted(found.items(), key=lambda pair: (pair[0][0] != "raw", pair[0])))


def _spread(row: Row) -> Sequence[float] | None:
    spread = row.get("spread")
    return spread.get("samples_s") if isinstance(spread, dict) else spread


_COLUMNS = {
    "first_batch_s": "first batch, s",
    "cpu_s_per_1000": "CPU s / 1,000",
    "peak_rss_mb": "peak memory, MB",
    "gets": "GETs",
    "bytes_ratio": "bytes ÷ data set",
    "shuffle_quality": "shuffle",
    "resume_s": "resume, s",
}


def _body(figures: Figures) -> str:
    measured, failed = _rows(figures)
    told = []
    for (kind, latency_ms), rows in _groups(measured).items():
        shown = [key for key in _COLUMNS if any(row.get(key) is not None for row in rows)]
        rows.sort(key=lambda row: (row["epoch"], -row["samples_s"]))
        cells = [
            [_bold(row), row["layout"], row["epoch"], str(row.get("workers", "–")),
             ranged(row["samples_s"], _spread(row)), *(row.get(key) for key in shown)]
            for row in rows
        ]  # fmt: skip
        titles = ["", "format", "epoch", "workers", "samples/s (extremes)", *(_COLUMNS[key] for key in shown)]
        told += [f"**{kind.capitalize()}, {_where(latency_ms)}:**", table(titles, cells, num_left=3)]
    ratios = [
        [what, *(f"{name}: {number(value)}" for name, value in by_latency(figures.get(key)).items())]
        for key, what in _RATIOS.items()
    ]
    told += ["Ours against the best peer" + (", by latency in ms:" if any(len(row) > 2 for row in ratios) else ":")]
    told.append("\n".join(f"- {row[0]}: {', '.join(row[1:]) or 'not measured'}" for row in ratios))
    notes = dict.fromkeys((row["peer"], row["note"]) for row in measured if row.get("note"))
    if notes:
        told.append("\n".join(f"- {peer}: {note}" for peer, note in notes))
    if failed:
        errors = dict.fromkeys((row["peer"], row["layout"], str(row["error"])) for row in failed)
        told += ["**What did not run, and what it said:**", table(["", "format", "error"], errors, num_left=3)]
    return "\n\n".join(told)


def _bold(row: Row) -> str:
    return f"**{row['peer']}**" if _is_ours(row) else str(row["peer"])


def _is_ours(row: Row) -> bool:
    return str(row["peer"]).startswith("ours")


def _where(latency_ms: float) -> str:
    return f"{number(latency_ms)} ms" if latency_ms else "no latency"


def _plot(figures: Figures, file: Path) -> None:
    measured, _ = _rows(figures)
    groups = _groups(measured)
    kinds = list(dict.fromkeys(kind for kind, _ in groups))
    latencies = sorted({latency_ms for _, latency_ms in groups})
    names = list(dict.fromkeys(row["peer"] for row in sorted(measured, key=lambda row: not _is_ours(row))))
    ours = {row["peer"] for row in measured if _is_ours(row)}
    num_panels = len(kinds) * len(latencies)
    figure, panels = canvas(num_panels, height=(0.36 * len(names) + 0.9) * len(kinds), num_rows=len(kinds))
    for place, axes in enumerate(panels):
        kind, latency_ms = kinds[place // len(latencies)], latencies[place % len(latencies)]
        rows = groups.get((kind, latency_ms), [])
        series = []
        for epoch, looks in (("cold", (OURS, OTHERS)), ("warm", (OURS_PALE, OTHERS_PALE))):
            best = {name: _best(rows, name, epoch) for name in names}
            series.append((epoch, list(best.values()), [looks[name not in ours] for name in names]))
        bars(axes, names, series, title=f"{kind}, {_where(latency_ms)}", unit="samples/s (logarithmic)", log=bool(rows))
        if place % len(latencies):
            axes.set_yticklabels([])
    figure.suptitle("dark: cold, pale: warm; the better number of workers", fontsize=8.5, x=0.01, ha="left")
    save(figure, file)


def _best(rows: Sequence[Row], name: str, epoch: str) -> float | None:
    return max((row["samples_s"] for row in rows if (row["peer"], row["epoch"]) == (name, epoch)), default=None)


def _latency(figures: Figures) -> str:
    asked = sorted({row["latency_ms"] for row in figures["rows"] if row["latency_ms"]})
    told = f"{', '.join(number(each) for each in asked)} ms to the first byte, as the tables say"
    return f"{told}; {figures['bandwidth_mb_s']} MB/s a connection" if "bandwidth_mb_s" in figures else told


PEERS = Section(
    "peers",
    "Other loaders, on the same work",
    "The same photographs from the same server behind the same latency, each loader in a virtual environment of its "
    "own, in the format and with the settings that its documentation names as best. Loaders take turns; all have to "
    "deliver the same samples. Those that do not run have their exact error here.",
    _latency,
    "cold: nothing kept; warm: what the loader itself kept from the epoch before",
    _body,
    _plot,
    "Bars: samples a second by loader, cold and warm, by latency",
)
