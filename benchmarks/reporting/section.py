"""What the report says about one benchmark: which words, table and plot its figures become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reporting.markdown import Figures

__all__ = ["Section"]


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark's part.

    Attributes:
        name: Of the benchmark.
        title: Above it.
        what: What was done, against whom, how it is kept fair.
        latency: To the first byte, from the figures.
        cache: In which state caches are.
        body: Tables in Markdown.
        plot: Draws into a file; None where a table says it all.
        alt: What the plot shows.
    """

    name: str
    title: str
    what: str
    latency: Callable[[Figures], str]
    cache: str
    body: Callable[[Figures], str]
    plot: Callable[[Figures, Path], None] | None = None
    alt: str = ""
