"""The demo's result as one self-contained HTML page and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import box
from rich.table import Table

from benchmarks.harness import Epoch
from benchmarks.plots import bars, lines

_COLUMNS = ("", "images/s", "first batch", "waiting", "GETs", "MB fetched", "loss", "accuracy")
_SHORT_COLUMNS = ("", "img/s", "1st batch", "waits", "GETs", "MB", "loss", "acc.")  # fit a terminal of 80 columns
_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


@dataclass(frozen=True, slots=True)
class Row:
    """One side of the comparison."""

    name: str
    epoch: Epoch  # of median speed
    note: str = ""  # what a reader must know about the side
    rates: tuple[float, ...] = ()  # images per second of every round

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of its line in the tables."""
        epoch = self.epoch
        from_bucket = epoch.client is not None
        return (
            self.name,
            f"{epoch.samples_per_s:,.0f}",
            f"{epoch.first_batch_s:.2f} s",
            f"{epoch.waiting_share:.1%}",
            f"{epoch.num_gets:,}" if from_bucket else "–",
            f"{epoch.num_bytes / 1e6:,.1f}" if from_bucket else "–",
            f"{epoch.first_loss:.2f} → {epoch.last_loss:.2f}" if epoch.first_loss is not None else "–",
            f"{epoch.accuracy:.1%}" if epoch.accuracy is not None else "–",
        )


def headline(rows: Sequence[Row]) -> str:
    """Returns the result in one sentence, with its spread; the first row is the local drive, the last two are shards.

    A ratio compares epochs of the same round.
    """
    local, *_, cold, warm = (row.rates or (row.epoch.samples_per_s,) for row in rows)
    count = min(len(local), len(cold), len(warm))
    return (
        f"From the bucket the network trains at {_spread(cold, local)} of the local drive's speed with a cold cache "
        f"and at {_spread(warm, local)} with a warm one ({_WORDS.get(count, count)} round{'s' * (count > 1)})."
    )


def _spread(rates: Sequence[float], local: Sequence[float]) -> str:
    ratios = [round(100 * rate / other) for rate, other in zip(rates, local, strict=True)]
    low, high = min(ratios), max(ratios)
    return f"{low} %" if low == high else f"{low}–{high} %"


def table(rows: Sequence[Row]) -> Table:
    """Makes the table for the terminal."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(_SHORT_COLUMNS):
        made.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row.cells())
    return made


def write_report(path: Path, rows: Sequence[Row], *, facts: Mapping[str, str], commands: Sequence[str]) -> None:
    """Writes the page, which refers to nothing outside itself; ``facts`` tells what was measured where."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=True
    )
    speed = bars([(row.name, row.epoch.samples_per_s, row.epoch.waiting_share) for row in rows], unit="images/s")
    points = [(row.name, [(0.0, 0.0), *row.epoch.timeline]) for row in rows]
    page = environment.get_template("demo.html.jinja").render(
        headline=headline(rows),
        columns=_COLUMNS,
        rows=rows,
        speed=speed,
        progress=lines(points, x_label="seconds since the epoch began", y_label="images trained"),
        facts=facts,
        commands=commands,
    )
    temporary = path.with_suffix(".tmp")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(path)
