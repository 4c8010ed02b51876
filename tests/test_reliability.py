"""The tables of faults name the tests that prove them, and these exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "explanation" / "reliability.md").read_text(encoding="utf-8")


def functions() -> set[str]:
    """The names of all tests, those in classes included."""
    found: set[str] = set()
    for file in TESTS.rglob("test_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_every_fault_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    faults = [row for row in rows if not row.startswith("| fault ")]
    assert len(faults) > 40
    assert [row for row in faults if row.count(" | ") != 3 or "`test_" not in row.split(" | ")[3]] == []


@pytest.mark.slow
def test_the_tests_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert sorted(named - functions()) == [], "give docs/explanation/reliability.md the new names of these tests"
