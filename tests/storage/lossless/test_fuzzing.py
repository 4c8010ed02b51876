"""A few seconds of mutated images, in a process of its own: it would not survive a stray write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("fuzz_program.py")


def test_mutated_pictures_are_errors_or_pictures():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_PERTURB_": "165"}
    said = subprocess.run(
        [sys.executable, PROGRAM, "2", "1"], env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    counts = json.loads(said.stdout)
    assert counts["inputs"] >= 100
    assert 0 < counts["decoded"] < counts["inputs"]
