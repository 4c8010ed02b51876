"""The near end of a pipe to a benchmark's main process: a task comes in, results go out, and the end is noticed.

Only the standard library is imported, for the environments of `benchmarks.peers` have little else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from io import FileIO


def take_task() -> tuple[bytes, FileIO]:
    """Reads the task; from then on the process, and the group that it leads, ends when its parent does."""
    results = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    line = _first_line()
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    return line, results


def _first_line() -> bytes:
    """Unbuffered: a forked worker closes `sys.stdin`, and needs its lock free for that."""
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        part = os.read(0, 1 << 20)
        if not part:
            sys.exit("no task on standard input")
        parts.append(part)
    return b"".join(parts)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        continue
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
