"""Server processes: supervised ones end with this process, detached ones outlive it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from concurrent_loader.storage.testing.servers.errors import ServerFailed

__all__ = ["DetachedProcess", "ServerProcess", "SupervisedProcess", "process_birth"]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_GRACE_S = 5.0
_SUPERVISOR_MARGIN_S = 5.0
_TAIL_BYTES = 4096


class ServerProcess(ABC):
    """A started server and its log file."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end by itself; returns whether it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the process and its children, and waits for them. Idempotent."""

    def log_text(self) -> str:
        """Returns the last few kilobytes of the server's log."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


class SupervisedProcess(ServerProcess):
    """A server that always ends with this process; see `concurrent_loader.storage.testing.servers.supervisor`.

    Args:
        command: Program and arguments.
        environment: Complete environment; nothing is inherited.
        log: Path of the log file.
        remove: Folder that is deleted after the server has ended, even if this process has died.
    """

    def __init__(
        self, command: list[str], *, environment: dict[str, str], log: Path, remove: Path | None = None
    ) -> None:
        super().__init__(log)
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            _supervise(command, log=log, remove=remove, parent=self._owner),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the supervisor; the server is its only child."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end by itself; returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def stop(self) -> None:
        """Ends the server; does nothing in a forked child, because the parent still uses the server."""
        if os.getpid() != self._owner:
            return
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            # Closing the pipe is not enough, because forked children may hold copies of it.
            with contextlib.suppress(BrokenPipeError), pipe:
                pipe.write(b"\n")
        if not self.wait(_GRACE_S + _SUPERVISOR_MARGIN_S):
            self._process.kill()
            self._process.wait()


class DetachedProcess(ServerProcess):
    """A server that outlives this process; others find it by its pid and start time.

    Args:
        pid: Process id of the supervisor.
        birth: Result of `process_birth` when it was started.
        log: Path of the log file.
    """

    def __init__(self, pid: int, birth: str, log: Path) -> None:
        super().__init__(log)
        self.pid = pid
        self.birth = birth

    @classmethod
    def start(cls, command: list[str], *, environment: dict[str, str], log: Path) -> DetachedProcess:
        """Starts a server in the background.

        Raises:
            ServerFailed: The server ended at once.
        """
        said = subprocess.run(
            _supervise(command, log=log, remove=None, parent=None),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            start_new_session=True,
        ).stdout
        pid = int(said)
        birth = process_birth(pid)
        if birth is None:
            raise ServerFailed("the server ended at once", got=log.read_text() if log.exists() else "")
        return cls(pid, birth, log)

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end; returns whether it has ended."""
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as stack:
            descriptor = self._pidfd(stack)
            if not self.is_alive():  # checked while holding the pidfd, which cannot belong to another process then
                return True
            if descriptor is not None:
                watch = select.poll()
                watch.register(descriptor, select.POLLIN)
                watch.poll(timeout_s * 1000)
            else:
                while self.is_alive() and time.monotonic() < deadline:
                    time.sleep(min(0.02, timeout_s))  # this system has no pidfd, so poll
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Returns whether the process still runs; recognizes another process with the same pid."""
        return process_birth(self.pid) == self.birth

    def stop(self) -> None:
        """Ends the server; leaves another process with the same pid alone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._send(number)
            if self.wait(_GRACE_S + _SUPERVISOR_MARGIN_S):
                return
        raise ServerFailed("the server does not end, even after SIGKILL", got=self.pid)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
            descriptor = self._pidfd(stack)
            if not self.is_alive():  # checked while holding the pidfd, so the signal cannot reach another process
                return
            if descriptor is not None and sys.platform == "linux":
                signal.pidfd_send_signal(descriptor, number)
            else:
                os.kill(self.pid, number)

    def _pidfd(self, stack: contextlib.ExitStack) -> int | None:
        if sys.platform != "linux":
            return None
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # the process has ended, or a sandbox has no pidfds
            return None
        stack.callback(os.close, descriptor)
        return descriptor


def process_birth(pid: int) -> str | None:
    """Returns a value that identifies a process among all that ever have its pid; None if it does not run."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _birth_by_ps(pid)
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started_ticks = fields[0], fields[19]  # proc(5): fields 3 and 22
    return None if state in "ZX" else f"{boot}/{started_ticks}"


def _birth_by_ps(pid: int) -> str | None:
    ps = shutil.which("ps")
    if ps is None:
        return None
    said = subprocess.run(
        [ps, "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    state, _, born = said.strip().partition(" ")
    return None if not born or state.startswith("Z") else born.strip()


def _supervise(command: list[str], *, log: Path, remove: Path | None, parent: int | None) -> list[str]:
    settings = {
        "command": command,
        "log": str(log),
        "remove": None if remove is None else str(remove),
        "parent": parent,
        "grace_s": _GRACE_S,
    }
    return [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(settings)]
