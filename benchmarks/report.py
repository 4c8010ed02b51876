"""The demo's result as one self-contained HTML page and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.measurement import Epoch
from benchmarks.plots import bars, lines


@dataclass(frozen=True, slots=True)
class Row:
    """One side of the comparison."""

    name: str  # short, for table and plots
    epoch: Epoch  # what was measured
    note: str = ""  # what a reader must know about it, or nothing
    rates: tuple[float, ...] = ()  # images per second of every round; only the epoch of median speed is shown


_COLUMNS = ("", "images/s", "first batch", "waiting", "GETs", "MB fetched", "loss", "accuracy")
_SHORT_COLUMNS = ("", "img/s", "1st batch", "waits", "GETs", "MB", "loss", "acc.")  # fit a terminal of 80 columns


def _cells(row: Row) -> tuple[str, ...]:
    epoch = row.epoch
    from_bucket = epoch.client is not None
    return (
        row.name,
        f"{epoch.samples_per_s:,.0f}",
        f"{epoch.first_batch_s:.2f} s",
        f"{epoch.waiting_share:.1%}",
        f"{epoch.num_gets:,}" if from_bucket else "–",
        f"{epoch.num_bytes / 1e6:,.1f}" if from_bucket else "–",
        f"{epoch.first_loss:.2f} → {epoch.last_loss:.2f}" if epoch.first_loss is not None else "–",
        f"{epoch.accuracy:.1%}" if epoch.accuracy is not None else "–",
    )


def headline(rows: Sequence[Row]) -> str:
    """The result in one sentence, with its spread; the first row is the local drive, the last two are shards.

    A ratio compares epochs of the same round.
    """
    local, *_, cold, warm = (row.rates or (row.epoch.samples_per_s,) for row in rows)
    count = min(len(local), len(cold), len(warm))
    return (
        f"From the bucket the network trains at {_spread(cold, local)} of the local drive's speed with a cold cache "
        f"and at {_spread(warm, local)} with a warm one ({_WORDS.get(count, count)} round{'s' * (count > 1)})."
    )


_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


def _spread(rates: Sequence[float], local: Sequence[float]) -> str:
    ratios = [round(100 * rate / other) for rate, other in zip(rates, local, strict=True)]
    low, high = min(ratios), max(ratios)
    return f"{low} %" if low == high else f"{low}–{high} %"


def table(rows: Sequence[Row]) -> Table:
    """For the terminal."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(_SHORT_COLUMNS):
        made.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*_cells(row))
    return made


def write_report(path: Path, rows: Sequence[Row], *, facts: Mapping[str, str], commands: Sequence[str]) -> None:
    """Writes the page; it refers to nothing outside itself."""
    speed = bars([(row.name, row.epoch.samples_per_s, row.epoch.waiting_share) for row in rows], unit="images/s")
    progress = lines(
        [(row.name, [(0.0, 0.0), *row.epoch.timeline]) for row in rows],
        x_label="seconds since the epoch began",
        y_label="images trained",
    )
    head = "".join(f"<th>{escape(title)}</th>" for title in _COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in rows)
    notes = "".join(f"<li>{escape(row.name)}: {escape(row.note)}</li>" for row in rows if row.note)
    told = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    page = _PAGE.format(
        style=_STYLE,
        headline=escape(headline(rows)),
        head=head,
        body=body,
        speed=speed,
        progress=progress,
        notes=notes,
        facts=told,
        commands=escape("\n".join(commands)),
    )
    temporary = path.with_suffix(".tmp")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(path)


_STYLE = """
:root { color-scheme: light dark; --c0: #7a7f87; --c1: #c2571a; --c2: #1f77b4; --c3: #2a9d55; --grid: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em; }
.wide { overflow-x: auto; } .wide table { min-width: 640px; } .wide svg { min-width: 600px; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 2em; }
.result { font-size: 1.15em; border-left: 4px solid var(--c2); padding-left: 0.8em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: 0.3em 0.6em; border-bottom: 1px solid var(--grid); text-align: right; font-weight: normal; }
thead th { font-weight: 600; } td:first-child, th:first-child, .facts td { text-align: left; }
svg { width: 100%; height: auto; font-size: 13px; } text { fill: currentColor; }
.grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 2.5; } .pale { opacity: 0.3; }
.s0 { fill: var(--c0); } .s1 { fill: var(--c1); } .s2 { fill: var(--c2); } .s3 { fill: var(--c3); }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); } .l3 { stroke: var(--c3); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: 0.8em; }
.facts td { overflow-wrap: anywhere; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>concurrent-loader: demo</title>
<style>{style}</style></head>
<body>
<h1>Training from a bucket as fast as from a local drive</h1>
<p class="result">{headline}</p>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<h2>Speed; the pale part of a bar is the share of time spent waiting for data</h2>
<div class="wide">{speed}</div>
<h2>Progress of one epoch</h2>
<div class="wide">{progress}</div>
<h2>What was compared</h2>
<ul>{notes}</ul>
<h2>Where</h2>
<table class="facts"><tbody>{facts}</tbody></table>
<h2>How to run it again</h2>
<pre>{commands}</pre>
</body></html>
"""
