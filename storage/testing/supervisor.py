"""A server's guardian, run by its path as a process of its own: when the parent is gone, so is the server.

Started by `storage.testing.processes` as ``python -I -S supervisor.py '<settings as JSON>'``, with the standard library
alone, so that it is up in milliseconds. It runs the server in a session of its own (Ctrl-C in the terminal reaches
neither of them) and ends it, SIGTERM first, SIGKILL after a grace, as soon as one of these happens:

* standard input, a pipe from the parent, has a byte or ends: the parent asks, or has died, by SIGKILL even;
* the parent's pidfd says that it has died: children that it forked may still hold the pipe open;
* SIGTERM, SIGINT or SIGHUP;
* the server has ended by itself.

Then it removes the server's folder (unless the server has ended by itself: the parent will want to read its log) and
exits with the server's status. If the supervisor itself is killed, the kernel kills the server (Linux).

Settings: ``command``, ``log`` (path), ``grace_s``, ``remove`` (path or null), ``parent`` (pid, or null: nobody is
watched, and the supervisor detaches from the process that started it, prints its own pid and lives on).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CANNOT_RUN = 127  # as shells have it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(settings: dict[str, Any]) -> int:
    """Runs the server until it ends or has to end; returns its exit status, 128 + n after signal n."""
    if settings["parent"] is None:
        _detach()
    elif os.getppid() != settings["parent"]:
        return 1  # the parent was gone before it could be watched
    woken = _wake_on_signals()
    watched = _watch(settings["parent"])
    with Path(settings["log"]).open("wb") as log:
        try:
            server = subprocess.Popen(
                settings["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_death_wish(),  # safe: this process has one thread
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return _CANNOT_RUN
    asked = True
    try:
        asked = _wait(server, woken, watched)
    finally:
        _end(server, settings["grace_s"])
        if asked and settings["remove"] is not None:
            shutil.rmtree(settings["remove"], ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _detach() -> None:
    """Lets go of the starting process: an own session, an own parent, no terminal, no pipe."""
    if pid := os.fork():
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _wake_on_signals() -> socket.socket:
    """Turns signals into bytes on a socket, so that one wait covers them and the parent."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reading


def _watch(parent: int | None) -> list[int]:
    """The descriptors that become readable when the parent asks for the end or has died."""
    if parent is None:
        return []
    watched = [sys.stdin.fileno()]
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # old kernels and strict sandboxes have no pidfd: the pipe remains
            watched.append(os.pidfd_open(parent))
        if os.getppid() != parent:  # it died meanwhile, and the pid may be somebody else's
            raise SystemExit(1)
    return watched


def _death_wish() -> Callable[[], None] | None:
    """What the server does between fork and exec: asks the kernel to kill it when the supervisor dies."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(server: subprocess.Popen[bytes], woken: socket.socket, watched: list[int]) -> bool:
    """Waits for a reason to end the server; False if it has ended by itself."""
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        for descriptor in watched:
            selector.register(descriptor, selectors.EVENT_READ)
        while server.poll() is None:
            for key, _ in selector.select():
                if key.fileobj is not woken or any(number in _STOP_SIGNALS for number in woken.recv(64)):
                    return True
    return False


def _end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ends the server's whole process group; its leader may be gone already, its children may not."""
    if server.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
