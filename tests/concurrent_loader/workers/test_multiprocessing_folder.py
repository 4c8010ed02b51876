from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from concurrent_loader.workers import workers

pytestmark = pytest.mark.processes

OWNER = "concurrent-loader-owner.json"
SCRIPT = """
import sys
from concurrent_loader.workers.multiprocessing_folder import claim_multiprocessing_folder
claim_multiprocessing_folder()
claim_multiprocessing_folder()
print("made", flush=True)
sys.stdin.read()
"""


def process(folder: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "made\n"
    return started


def run(folder: Path) -> None:
    with process(folder) as started:
        started.communicate(timeout=30)
    assert started.returncode == 0


def folders(where: Path) -> list[str]:
    return sorted(path.name for path in where.glob("pymp-*"))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder that a killed process left."""
    with process(tmp_path) as started:
        started.send_signal(signal.SIGKILL)
    (name,) = folders(tmp_path)
    return tmp_path / name


def test_what_a_killed_process_left_goes_and_all_else_stays(tmp_path: Path, killed: Path) -> None:
    (tmp_path / "pymp-foreign").mkdir()
    (tmp_path / "pymp-damaged").mkdir()
    (tmp_path / "pymp-damaged" / OWNER).write_text("{")
    with process(tmp_path) as alive:
        assert not killed.exists()
        (ours,) = set(folders(tmp_path)) - {"pymp-foreign", "pymp-damaged"}
        run(tmp_path)
        assert (tmp_path / ours / OWNER).exists()
        alive.communicate(timeout=30)
    assert folders(tmp_path) == ["pymp-damaged", "pymp-foreign"]


@pytest.mark.parametrize("fact", ["boot", "namespace"])
def test_what_cannot_be_seen_from_here_is_left_alone(tmp_path: Path, killed: Path, fact: str) -> None:
    owner = json.loads((killed / OWNER).read_text())
    (killed / OWNER).write_text(json.dumps({**owner, fact: "another"}))
    run(tmp_path)
    assert killed.exists()


def test_what_somebody_still_listens_in_is_left_alone(tmp_path: Path, killed: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(killed / "listener"))
        listener.listen()
        run(tmp_path)
        assert killed.exists()
    run(tmp_path)
    assert not killed.exists()


def test_a_number_that_another_process_has_now_does_not_count(tmp_path: Path, killed: Path) -> None:
    owner = json.loads((killed / OWNER).read_text())
    (killed / OWNER).write_text(json.dumps({**owner, "pid": os.getpid()}))
    run(tmp_path)
    assert not killed.exists()


def test_workers_are_started_with_a_folder_that_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(workers, "claim_multiprocessing_folder", lambda: called.append(1))
    workers._context("forkserver")
    assert called == [1]
