from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
import subprocess, sys, time
import pytest
from benchmarks.harness import take_task
task, results = take_task()
print("what a library prints")
results.write(task.upper())
if task.startswith(b"stay"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    results.write(b"%d\\n" % child.pid)
    time.sleep(60)
"""


def test_results_are_apart_from_what_is_printed() -> None:
    long = b"x" * 200_000 + b"\n"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(long)
        child.stdin.flush()
        assert child.stdout.read() == long.upper()
        assert b"what a library prints" in child.stderr.read()
        assert child.wait(30) == 0  # though its standard input is still open


def test_no_task_is_an_error_of_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=b"half a line", capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == b"no task on standard input\n"


def test_it_and_what_it_has_started_end_with_their_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdout:
        child.stdin.write(b"stay\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"STAY\n"
        grandchild = int(child.stdout.readline())
        child.stdin.close()
        assert child.wait(30) != 0
    deadline_s = time.monotonic() + 30
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
