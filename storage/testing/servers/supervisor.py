"""Supervises a server as a separate process, and ends the server when the parent has died.

`concurrent_loader.storage.testing.servers.processes` starts it as ``python -I -S supervisor.py '<settings as JSON>'``,
with only the standard library, so that it starts in milliseconds. It runs the server in a new session, which Ctrl-C in
the terminal does not reach. It ends the server, by SIGTERM and after a grace period by SIGKILL, on any of these events:

* standard input, a pipe from the parent, has a byte or ends: the parent asks for it or has died, even by SIGKILL;
* the parent's pidfd reports its death, because children that it forked may hold the pipe open;
* SIGTERM, SIGINT or SIGHUP;
* the server ends by itself.

Then it removes the server's folder and exits with the server's status. If the server ended by itself, the folder stays,
because the parent needs the log. If the supervisor itself is killed, the kernel kills the server (Linux).

Settings: ``command``, ``log`` (path), ``grace_s``, ``remove`` (path or null), ``parent`` (pid or null). With a null
parent, the supervisor detaches from the process that started it, prints its own pid and keeps running.
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
_CANNOT_RUN = 127  # the status that shells use
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(settings: dict[str, Any]) -> int:
    """Runs the server until it ends or must end; returns its exit status, 128 + n after signal n."""
    if settings["parent"] is None:
        _detach()
    elif os.getppid() != settings["parent"]:
        return 1  # the parent died before it could be watched
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
                preexec_fn=_die_with_supervisor(),  # safe: this process has one thread
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
    """Detaches from the starting process: new session, new parent, no terminal, no pipe."""
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
    """Turns signals into bytes on a socket, so that one wait covers signals and the parent."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reading


def _watch(parent: int | None) -> list[int]:
    """Returns descriptors that become readable when the parent asks for the end or has died."""
    if parent is None:
        return []
    watched = [sys.stdin.fileno()]
    if sys.platform == "linux":
        with contextlib.suppress(
            OSError
        ):  # old kernels and strict sandboxes have no pidfd; then only the pipe is watched
            watched.append(os.pidfd_open(parent))
        if os.getppid() != parent:  # the parent died, and another process may have its pid
            raise SystemExit(1)
    return watched


def _die_with_supervisor() -> Callable[[], None] | None:
    """Returns the function to run between fork and exec, which makes the kernel kill the server with the supervisor."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(server: subprocess.Popen[bytes], woken: socket.socket, watched: list[int]) -> bool:
    """Waits for an event that must end the server; returns False if it has ended by itself."""
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
    """Ends the server's process group, whose children may outlive its leader."""
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
