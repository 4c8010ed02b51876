"""Freed batch memory is reused instead of being mapped again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
import resource, sys
import pytest
from concurrent_loader.storage.freed_memory import keep_freed_memory

def faults():
    blocks = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks += [bytearray(b"x") * (1 << 20) for _ in range(40)]
        blocks.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory()
    keep_freed_memory()
faults()  # of the first time: somebody has to
print(faults())
"""


def num_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_blocks_that_come_and_go_are_mapped_once() -> None:
    kept, plain = num_faults("kept"), num_faults("plain")
    if platform.libc_ver()[0] == "glibc":
        assert kept < plain / 10
    else:
        assert kept <= 1.5 * plain
