"""The README: short, and without a figure that its table does not have."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_figures_in_the_text_are_those_of_the_table() -> None:
    before, _, rest = README.partition("<!-- measured: begin")
    measured, _, after = rest.partition("<!-- measured: end")
    figures = re.findall(r"[\d.,]+(?= ?(?:×|%|images/s|samples/s|times))", before + after)
    assert figures
    assert [figure for figure in figures if f" {figure} " not in measured] == []


def test_it_promises_no_package_index() -> None:
    assert re.findall(r"pip install [\"']?concurrent", README) == []
