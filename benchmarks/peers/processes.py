"""Runs a peer's process, in a virtual environment of its own, and watches what it and its workers keep in memory.

Each peer has an environment because their dependencies exclude each other's and ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.harness import converse, output_of
from benchmarks.machine import resident_bytes
from benchmarks.peers.job import Job, Outcome

_INSTALL_S = 1800
_WATCH_S = 0.05


def requirements_file(environment: str) -> Path:
    """Returns the file with the pinned packages of an environment."""
    return Path(__file__).parent / "requirements" / f"{environment}.txt"


def python_of(environment: str | None, folder: Path) -> str:
    """Returns the interpreter of an environment (None for the project's own), made now unless an earlier run did.

    With uv, all environments share the files of what they have in common (torch: 5 GB). Raises CommandError if packages
    cannot be installed.
    """
    if environment is None:
        return sys.executable
    file = requirements_file(environment)
    digest = hashlib.sha256(file.read_bytes() + sys.version.encode()).hexdigest()[:12]
    final = folder / f"{environment}-{digest}"
    python = str(final / "bin" / "python")
    if (final / "finished").exists():
        return python
    shutil.rmtree(final, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--requirement", str(file)]
    for command in ([*uv, "venv", "--quiet", "--python", sys.executable, str(final)], install):
        output_of(command, what=" ".join(command), timeout_s=_INSTALL_S)
    (final / "finished").touch()
    return python


def run_job(python: str, job: Job, *, deadline_s: float, watch_memory: bool = False) -> tuple[Outcome, int]:
    """Does a job in a process of the peer's environment, which is ended after the deadline.

    Returns the outcome, and the highest memory of process and workers in bytes (pages that they share counted once), 0
    without ``watch_memory``, which takes processor time from the peer. Raises CommandError if there is no outcome.
    """
    outcome = Outcome()
    peak_bytes = [0]
    watching = partial(_watching, peak_bytes) if watch_memory else contextlib.nullcontext
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        command, what = [python, "-m", "benchmarks.peers.side"], f"{job.peer} ({job.task})"
        options: dict[str, Any] = {"env": {"TMPDIR": scratch}, "deadline_s": deadline_s, "watching": watching}
        for line in converse(command, msgspec.json.encode(job), what=what, **options):
            outcome = msgspec.json.decode(line, type=Outcome)
    return outcome, peak_bytes[0]


@contextlib.contextmanager
def _watching(peak_bytes: list[int], pid: int) -> Iterator[None]:
    root, over = psutil.Process(pid), threading.Event()

    def watch() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not over.wait(_WATCH_S):
                peak_bytes[0] = max(peak_bytes[0], resident_bytes([root, *root.children(recursive=True)]))

    thread = threading.Thread(target=watch, name="watch-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
