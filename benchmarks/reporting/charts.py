"""How plots look: one colour for ours everywhere, colours that the colour-blind tell apart, no decoration.

Colours are those of Okabe and Ito, "Color Universal Design" (2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.reporting.markdown import number

__all__ = [
    "BEST",
    "LOCAL",
    "OTHERS",
    "OTHERS_PALE",
    "OURS",
    "OURS_DARK",
    "OURS_PALE",
    "Place",
    "Series",
    "bars",
    "below",
    "canvas",
    "legend",
    "legend_under",
    "named",
    "plain",
    "save",
]

OURS, OURS_PALE, OURS_DARK = "#0072B2", "#56B4E9", "#003A5D"
OTHERS, OTHERS_PALE = "#7A7A7A", "#BDBDBD"
LOCAL = "#E69F00"  # the local drive, against which the bucket is held
BEST = "#000000"  # the best that is possible

_WIDTH, _DPI = 9.0, 110
_FONT = 9.0

Place = Literal["best", "lower right", "lower left", "upper left", "center left"]
Series = tuple[str, Sequence[float | None], str | Sequence[str]]  # name, values, colour or colours


def canvas(num_panels: int = 1, *, height: float = 3.2, num_rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, from left to right and down.

    Args:
        num_panels: How many.
        height: In inches.
        num_rows: Of panels.
    """
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    panels = [figure.add_subplot(num_rows, -(-num_panels // num_rows), 1 + place) for place in range(num_panels)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_FONT - 1)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def bars(
    axes: Axes,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    title: str,
    unit: str,
    log: bool = False,
    extremes: Sequence[Sequence[tuple[float, float] | None]] | None = None,
) -> None:
    """Horizontal bars in groups, the first label on top, their values behind them.

    Args:
        axes: Where.
        labels: One a group; none are written where the panel on the left has them.
        series: One bar a group each; a value that is None has no bar.
        title: Above.
        unit: Below.
        log: Whether the axis is logarithmic.
        extremes: Of each value, drawn as a whisker.
    """
    thickness = 0.8 / len(series)
    highest = max([value for _, values, _ in series for value in values if value] or [1.0])
    for place, (name, values, colour) in enumerate(series):
        for group, value in enumerate(values):
            y = group + (place - (len(series) - 1) / 2) * thickness
            paint = colour if isinstance(colour, str) else colour[group]
            if value is None:
                axes.annotate(" –", (0, y), xycoords=("axes fraction", "data"), va="center", fontsize=_FONT - 1)
                continue
            axes.barh(y, value, thickness * 0.92, color=paint, label=name if group == 0 else None)
            around = extremes[place][group] if extremes else None
            if around is not None:
                axes.plot(around, [y, y], color="black", linewidth=1)
            at = max(value, around[1]) if around is not None else value
            told = f"{value / 1000:,.1f} k" if value >= 100_000 else number(value)
            axes.annotate(
                told, (at, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=_FONT - 1.5
            )  # fmt: skip
    axes.set_yticks(range(len(labels)), labels, fontsize=_FONT)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_title(title, fontsize=_FONT + 0.5, loc="left")
    axes.set_xlabel(unit, fontsize=_FONT)
    if log:
        axes.set_xscale("log")
        lowest = min([value for _, values, _ in series for value in values if value] or [0.1])
        axes.set_xlim(lowest / 2, highest * 3)
        plain(axes, "x")
    else:
        axes.set_xlim(0, highest * 1.25)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.locator_params(axis="x", nbins=5)


def plain(axes: Axes, *which: str) -> None:
    """Writes the powers of a logarithmic axis as numbers."""
    for name in which:
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axis.set_minor_formatter(NullFormatter())


def _power(value: float) -> str:
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if value >= power:
            return f"{value / power:g}{letter}"
    return f"{value:.10f}".rstrip("0") if value >= 0.99e-6 else f"{value:g}"


def named(axes: Axes, *, title: str, x: str, y: str) -> None:
    """Title and labels of a panel with lines."""
    axes.set_title(title, fontsize=_FONT + 0.5, loc="left")
    axes.set_xlabel(x, fontsize=_FONT)
    axes.set_ylabel(y, fontsize=_FONT)


def legend(axes: Axes, *, place: Place = "best") -> None:
    """The legend, without a frame."""
    axes.legend(loc=place, fontsize=_FONT - 1, frameon=False)


def legend_under(axes: Axes) -> None:
    """The legend under the panel, where lines leave no room in it."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=_FONT - 1, frameon=False, ncols=2)


def below(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, under them, from one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=_FONT - 0.5, frameon=False)


def save(figure: Figure, file: Path) -> None:
    """Writes it as PNG, without anything that differs from run to run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})
