from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.fresh_process import cpu_of_fresh_processes_s
from benchmarks.machine import (
    Bystanders,
    cpu_of_tree_s,
    describe_machine,
    make_memory_resident,
    read_into_page_cache,
    versions,
)

BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.processes
def test_a_tree_counts_children_that_have_ended() -> None:
    before_s = cpu_of_tree_s()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_of_tree_s() - before_s >= 0.3


@pytest.mark.processes
def test_a_tree_counts_what_a_live_child_has_waited_for() -> None:
    before_s = cpu_of_tree_s()
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used_s = cpu_of_tree_s() - before_s
        child.communicate(b"\n")
    # The system tells the user and the system time of a live process's children each in whole ticks.
    assert used_s >= 0.3 - 2 / os.sysconf("SC_CLK_TCK")


@pytest.mark.processes
@pytest.mark.parametrize(("others_s", "share"), [(0.0, 0.0), (1.0, 0.5)])
def test_own_children_are_no_bystanders(monkeypatch: pytest.MonkeyPatch, others_s: float, share: float) -> None:
    # One core is busy with this process and its children alone; in two seconds, others take so many.
    clock = iter((0.0, 2.0))
    monkeypatch.setattr(machine, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "num_cores", lambda: 1)
    monkeypatch.setattr(machine, "_busy_s", lambda: cpu_of_tree_s() + cpu_of_fresh_processes_s())
    others = Bystanders()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    monkeypatch.setattr(machine, "_busy_s", lambda: cpu_of_tree_s() + cpu_of_fresh_processes_s() + others_s)
    assert others.share() == pytest.approx(share, abs=0.05)


def test_facts_are_filled_in() -> None:
    machine = describe_machine()
    assert machine["num_cores"] >= 1  # type: ignore[operator]
    assert machine["cpu"]
    assert {"python", "torch", "numpy"} <= set(versions())


def test_making_memory_resident_leaves_nothing(tmp_path: Path) -> None:
    make_memory_resident(tmp_path, 20_000_000)
    assert list(tmp_path.iterdir()) == []


def test_all_files_below_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "large").write_bytes(bytes((8 << 20) + 3))
    (tmp_path / "small").write_bytes(bytes(5))
    assert read_into_page_cache(tmp_path) == (8 << 20) + 8
    assert read_into_page_cache(tmp_path / "nowhere") == 0
