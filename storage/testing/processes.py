"""Server processes and their ends: supervised ones stop with this process, detached ones outlive it."""

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

from storage.testing.failures import ServerFailed

__all__ = ["DetachedProcess", "ServerProcess", "SupervisedProcess", "process_birth"]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_GRACE_S = 5.0
_SUPERVISOR_MARGIN_S = 5.0
_TAIL_BYTES = 4096


class ServerProcess(ABC):
    """A server that has been started, with the file that its output goes to."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end by itself; says whether it has."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the process and all that it started; returns when they are gone. Idempotent."""

    def log_text(self) -> str:
        """The end of what the server has written, a few kilobytes at most."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


class SupervisedProcess(ServerProcess):
    """Stops with this process, however it ends; see `storage.testing.supervisor`.

    Args:
        command: Program and arguments.
        environment: All of it; nothing is inherited.
        log: Where its output goes.
        remove: A folder that is deleted after the server's end, this process being dead or alive.
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
        """Of the supervisor; the server is its only child."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end by itself; says whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def stop(self) -> None:
        """Ends the server; does nothing in a forked child, whose parent still uses it."""
        if os.getpid() != self._owner:
            return
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            # A byte, not only the end of the pipe: forked children may hold copies of it.
            with contextlib.suppress(BrokenPipeError), pipe:
                pipe.write(b"\n")
        if not self.wait(_GRACE_S + _SUPERVISOR_MARGIN_S):
            self._process.kill()
            self._process.wait()


class DetachedProcess(ServerProcess):
    """Outlives this process; another one finds it again by its pid and the moment of its birth.

    Args:
        pid: Of the supervisor.
        birth: What `process_birth` said when it was started.
        log: Where its output goes.
    """

    def __init__(self, pid: int, birth: str, log: Path) -> None:
        super().__init__(log)
        self.pid = pid
        self.birth = birth

    @classmethod
    def start(cls, command: list[str], *, environment: dict[str, str], log: Path) -> DetachedProcess:
        """Starts a server in the background.

        Raises:
            ServerFailed: It ended at once.
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
        """Waits for the process to end; says whether it has."""
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as stack:
            descriptor = self._pidfd(stack)
            if not self.is_alive():  # asked after the pidfd is held: it is this process's or nobody's
                return True
            if descriptor is not None:
                watch = select.poll()
                watch.register(descriptor, select.POLLIN)
                watch.poll(timeout_s * 1000)
            else:
                while self.is_alive() and time.monotonic() < deadline:
                    time.sleep(min(0.02, timeout_s))  # no pidfd on this system: nothing to wait on but the clock
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Whether the process that was started still runs; never mistakes another with the same pid for it."""
        return process_birth(self.pid) == self.birth

    def stop(self) -> None:
        """Ends the server; a process that has taken its pid meanwhile is left alone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._send(number)
            if self.wait(_GRACE_S + _SUPERVISOR_MARGIN_S):
                return
        raise ServerFailed("the server does not end, SIGKILL notwithstanding", got=self.pid)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
            descriptor = self._pidfd(stack)
            if not self.is_alive():  # asked after the pidfd is held, so the signal reaches no other process
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
        except OSError:  # gone already, or a sandbox without pidfds
            return None
        stack.callback(os.close, descriptor)
        return descriptor


def process_birth(pid: int) -> str | None:
    """What tells a process from all others that had or will have its pid; None if it does not run (any more)."""
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
