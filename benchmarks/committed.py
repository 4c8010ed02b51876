"""What another benchmark found: its committed figures with their date, or those of a run now."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import lossless, pipelines

_RESULTS = Path(__file__).parent / "results"


def _run_pipelines(console: Console) -> dict[str, Any]:
    return pipelines.run_benchmark(pipelines.FULL, console)


def _run_lossless(console: Console) -> dict[str, Any]:
    return lossless.run_benchmark(lossless.FULL, console)


_RUNS: dict[str, Callable[[Console], dict[str, Any]]] = {"pipelines": _run_pipelines, "lossless": _run_lossless}


def committed_or(name: str, console: Console, *, results: Path = _RESULTS) -> dict[str, Any]:
    """The figures of a benchmark, with where they are from under ``origin``."""
    file = results / f"{name}.json"
    if not file.exists():
        return {**_RUNS[name](console), "origin": f"benchmarks.{name}, run now"}
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {**figures, "origin": f"benchmarks/results/{file.name}, measured {dated(file, figures)}"}


def dated(file: Path, figures: dict[str, Any]) -> str:
    """When figures were measured: as they say themselves, or when they were committed."""
    said = figures.get("machine", {}).get("measured_at")
    if said is not None:
        return f"at {said}"
    command = ["git", "-C", str(file.parent), "log", "-1", "--format=%cs", "--", file.name]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = ""
    return f"before {found}" if found else "at a time that they do not say"
