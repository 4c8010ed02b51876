"""Keeps a table of a loader up to date in a notebook, without widgets."""

from __future__ import annotations

from typing import Any

from concurrent_loader.metrics.optional_library import optional_library
from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.wait_attribution import CAUSES
from concurrent_loader.storage.html_table import html_table
from concurrent_loader.storage.sizes import format_size

__all__ = ["NotebookMetrics"]


class NotebookMetrics:
    """Shows a table in the cell's output, and replaces it at each snapshot; see `observe`.

    It is plain HTML, so it works beside a progress bar of tqdm, and stays in the saved notebook. Needs IPython.

    Raises:
        ConfigurationError: IPython is not installed.

    Example:
        >>> from concurrent_loader import NotebookMetrics, observe
        >>> with observe(loader, NotebookMetrics(), every_s=1):  # doctest: +SKIP
        ...     train(tqdm(loader))
    """

    def __init__(self) -> None:
        self._display: Any = optional_library("IPython.display", package="ipython")
        self._handles: dict[tuple[str, int], Any] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Shows a snapshot."""
        key = snapshot.name, snapshot.rank
        table = self._display.HTML(_table(snapshot))
        if key in self._handles:
            self._handles[key].update(table)
        else:
            self._handles[key] = self._display.display(table, display_id=True)


def _table(snapshot: Snapshot) -> str:
    place, pipeline, now, before = snapshot.place, snapshot.pipeline, snapshot.stats, snapshot.before
    total_s = now.total_s - before.total_s
    waits = {cause: getattr(now, f"wait_{cause}_s") - getattr(before, f"wait_{cause}_s") for cause in CAUSES}
    shares = [f"{cause} {seconds / total_s:.0%}" for cause, seconds in waits.items() if seconds > 0.01 * total_s > 0]
    of = "" if place.num_steps is None else f" of {place.num_steps:,}"
    rows = [
        ("position", f"epoch {place.epoch}, step {place.step:,}{of}"),
        ("speed", f"{snapshot.samples_per_s:,.0f} samples/s, {format_size(snapshot.fetched_bytes_per_s)}/s fetched"),
        ("waited", f"{snapshot.wait_share:.0%}" + (f", for {', '.join(shares)}" if shares else "")),
        ("in flight", f"{now.fetch.in_flight} of {now.fetch.limit} requests"),
        ("batches", f"{pipeline.num_ready} ready, {pipeline.num_making} being made, of {pipeline.max_batches}"),
    ]
    return html_table(snapshot.name, rows)
