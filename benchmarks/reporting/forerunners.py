"""The report's part about published figures: what the forerunners measured, and what we do on the same work.

The tables and the heat map are made by `benchmarks.forerunners_report`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.reporting.markdown import Figures
from benchmarks.reporting.section import Section

__all__ = ["FORERUNNERS"]


def _body(figures: Figures) -> str:
    return str(importlib.import_module("benchmarks.forerunners_report").markdown(figures))


def _plot(figures: Figures, file: Path) -> None:
    importlib.import_module("benchmarks.forerunners_report").plot(figures, file)


FORERUNNERS = Section(
    "forerunners",
    "Beside the forerunners' published figures",
    "The tables of ConcurrentDataloader, datadings and Zolnouri et al. done again on this machine, vanilla and ours, "
    "beside what was published. Machines and set-ups differ; the differences are named.",
    lambda figures: "as the tables say",
    "as the tables say",
    _body,
    _plot,
    "Heat map: objects a second over worker processes and requests in flight",
)
