"""What keeps the fast tier fast: a fast test starts no process and takes no second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

CONFTEST = Path(__file__).with_name("conftest.py")
TESTS = """
import subprocess, sys, time
import pytest
from hypothesis import given, strategies as st

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.processes
def test_may_start_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_computes():
    spin(0.4)

@pytest.mark.slow
def test_may_compute():
    spin(0.4)

@given(st.integers())
def test_each_example_computes(number):
    spin(0.005)
"""


def run(folder: Path, *options: str) -> dict[str, str]:
    """Runs the tests as in CI; returns the outcome of each that ran."""
    shorter = CONFTEST.read_text().replace("FAST_CPU_S = 2.0", "FAST_CPU_S = 0.3")
    (folder / "conftest.py").write_text(shorter)
    (folder / "test_given.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n fast\n s3\n processes\n slow\n long\n gpu\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return dict(re.findall(r"::test_(\w+) (\w+) +\[", done.stdout))


def test_markers_decide_and_limits_hold(tmp_path: Path) -> None:
    fast = {"starts_a_process": "FAILED", "computes": "FAILED", "each_example_computes": "PASSED"}
    assert run(tmp_path, "-m", "fast", "--hypothesis-profile=fast") == fast
    assert run(tmp_path) == {**fast, "may_start_a_process": "PASSED", "may_compute": "PASSED"}
