"""The table of faults names the tests that prove it, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
NODES = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))))


def test_every_fault_names_a_test():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    faults = [row for row in rows if not row.startswith("| fault ")]
    assert len(faults) > 40
    assert [row for row in faults if row.count(" | ") != 3 or "::test_" not in row.split(" | ")[3]] == []


@pytest.mark.parametrize(("path", "name"), NODES)
def test_the_test_exists(path, name):
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
