"""Runs a peer's process, so that nothing of it is left, and watches what it and its workers keep in memory."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Iterator

import msgspec
import psutil

from benchmarks.harness import ENVIRONMENT, CommandError, child_process
from benchmarks.peers.messages import Job, Outcome

_EXIT_S = 30.0
_WATCH_S = 0.05


def run_job(python: str, job: Job, *, deadline_s: float, watch_memory: bool = False) -> tuple[Outcome, int]:
    """Does a job in a process of the peer's environment."""
    command = [python, "-m", "benchmarks.peers.side"]
    outcome = None
    with (
        tempfile.TemporaryDirectory(prefix="peer-") as scratch,
        tempfile.TemporaryFile() as errors,
        child_process(command, errors=errors.fileno(), env={**ENVIRONMENT, "TMPDIR": scratch}) as process,
        _watching(process.pid, watch_memory) as watched,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(deadline_s, process.kill)
        late.start()
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                outcome = msgspec.json.decode(line, type=Outcome)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
        finally:
            late.cancel()
            late.join()
        if outcome is not None:
            return outcome, watched.peak_bytes
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    raise CommandError(f"{job.peer} ({job.task}) ended with status {process.returncode}\n{said}")


class _Watched:
    """Looks at a process's memory, and its workers', until told to stop."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-memory", daemon=True)
        self.peak_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_WATCH_S):
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, tree)))


def _resident_bytes(process: psutil.Process) -> int:
    """Its memory, what it shares with others divided by their number; 0 if it has ended meanwhile."""
    try:
        info = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return int(getattr(info, "pss", info.rss))


@contextlib.contextmanager
def _watching(pid: int, wanted: bool) -> Iterator[_Watched]:
    watched = _Watched(pid)
    if wanted:
        watched.start()
    try:
        yield watched
    finally:
        if wanted:
            watched.stop()
