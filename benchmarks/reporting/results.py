"""The committed results: ``NAME.json`` as the benchmark wrote it, ``NAME.failed.json`` where its last run failed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reporting.markdown import Figures, number, percent

__all__ = ["Failure", "Results", "circumstances"]

_NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed.

    Attributes:
        command: As it is typed.
        began: When.
        error: What it said at the end, as it is.
    """

    command: str
    began: str
    error: str


class Results:
    """A folder of results.

    Args:
        folder: May lack any of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where a benchmark's figures are, or would be."""
        return self.folder / f"{name}.json"

    def failed_file(self, name: str) -> Path:
        """Where it is said how its last run failed, if it did."""
        return self.folder / f"{name}.failed.json"

    def figures(self, name: str) -> dict[str, Any] | None:
        """What a benchmark measured; None if there is nothing."""
        file = self.file(name)
        if not file.exists():
            return None
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def failure(self, name: str) -> Failure | None:
        """How its last run failed; None if it did not."""
        file = self.failed_file(name)
        return Failure(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def circumstances(figures: Figures) -> list[tuple[str, str]]:
    """Where and when it was measured, and who else was there, as far as the file says it.

    What else has to be known of a run, and no program can tell, is in the file's ``remarks``.
    """
    machine, run = figures.get("machine", {}), figures.get("run", {})
    what = _NOT_RECORDED
    if machine:
        what = f"{machine['cpu']}, {machine['num_cores']} cores, {number(machine['memory_gb'])} GB; {machine['system']}"
    if "device" in figures:
        what += f"; device: {figures['device']}"
    took = run.get("took_s", figures.get("took_s"))
    when = run.get("began") or machine.get("measured_at") or _NOT_RECORDED
    key = "other_programs_share"
    others = {"": figures[key]} if key in figures else {}
    others |= {f" ({name})": part[key] for name, part in figures.items() if isinstance(part, dict) and key in part}
    whole = others.pop(" (run)", None)
    if whole is not None and not others:
        others[""] = whole
    told = ", ".join(f"{percent(share)}{name}" for name, share in others.items())
    load = f"; load of the minute before: {machine['load_before']}" if "load_before" in machine else ""
    versions = ", ".join(f"{name} {version}" for name, version in figures.get("versions", {}).items())
    return [
        ("Machine", what),
        ("Versions", versions or _NOT_RECORDED),
        ("When", when + (f"; took {took:,.0f} s" if took else "")),
        ("Other programs had", (told or _NOT_RECORDED) + load),
        *(("Remark", remark) for remark in figures.get("remarks", ())),
    ]
