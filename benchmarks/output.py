"""Writes a benchmark's figures: as JSON where asked for, and to the terminal as in its section of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.report_page import section


def present(name: str, figures: Mapping[str, object], console: Console, file: Path | None) -> None:
    """Writes the figures to a file, if one is given, and prints them."""
    text = json.dumps(figures, indent=2) + "\n"
    if file is not None:
        file.write_text(text, encoding="utf-8")
    console.print(Markdown(section(name, json.loads(text))))
