"""Runs the processes that a demo or benchmark needs, so that none of them outlives it; and the words between the two.

Every epoch is timed in a fresh process: imports, memory and client state are then comparable, and what one side leaves
behind can neither help nor hurt the next. A child runs in a session of its own, so that Ctrl-C reaches the parent
alone, which then ends the child with all its workers. The task (credentials included) goes through the child's standard
input, which stays open: if the parent is killed, the child sees it close and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

# OpenMP's threads spin while they wait and so take cores from those that decode. Passive, torch's DataLoader trains 17%
# faster on two cores (293 → 346 images/s), the loader, which has no worker processes, as fast as before.
ENVIRONMENT = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
_EXIT_S = 30.0  # a child that is done must let go of threads, workers and files by then
_KILL_S = 5.0
_UNWIND_S = 30.0  # a benchmark that is stopped ends servers and processes of its own first
_SAID_BYTES = 16_000
_ERROR_LINES = 40
ROOT = Path(__file__).resolve().parent.parent


class CommandError(RuntimeError):
    """A child failed; the message has the end of its output."""


# -- the parent --------------------------------------------------------------------------------------------------------


def converse(
    command: Sequence[str],
    task: bytes,
    *,
    what: str,
    env: Mapping[str, str] | None = None,
    deadline_s: float | None = None,
    watching: Callable[[int], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Iterator[bytes]:
    """Gives a child its task and yields its lines; ``watching`` gets its process id and is open meanwhile.

    Raises CommandError if it ends without a line, or badly. With a deadline, its last line counts however it ends.
    """
    num_lines = 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            env={**_environment(), **ENVIRONMENT, **(env or {})},
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(deadline_s or threading.TIMEOUT_MAX, process.kill)
        late.daemon = True  # Ctrl-C before `try` must not leave a thread that the program waits for at its end
        late.start()
        try:
            with watching(process.pid):
                process.stdin.write(task + b"\n")
                process.stdin.flush()
                for line in process.stdout:
                    num_lines += 1
                    yield line
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_S)
            status = process.returncode
        finally:
            late.cancel()
            late.join()
            _end(process)
        if num_lines and (status == 0 or deadline_s is not None):
            return
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    raise CommandError(f"{what} {'did not end' if status is None else f'ended with status {status}'}\n{said}")


def _environment() -> dict[str, str]:
    """Returns the environment of a child, which finds this tree's modules from any folder.

    It keeps compiled modules as an installed package has them, even where this process must not write any: otherwise
    every fresh process compiles this tree's modules again, some of them while its clock is running.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a child and all that it started."""
    for pipe in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
        os.killpg(process.pid, signal.SIGKILL)  # it, or workers that outlived it
    process.wait()


def ask(python: str, module: str, task: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Gives a module a task as JSON on standard input; returns its answer, the last line of its standard output."""
    command = [python, "-m", f"benchmarks.{module}"]
    output = output_of(command, what=module, timeout_s=timeout_s, task=json.dumps(task) + "\n")
    return dict(json.loads(output.splitlines()[-1]))


def output_of(command: Sequence[str], *, what: str, timeout_s: float, task: str = "") -> str:
    """Runs a command in the tree's folder and returns its standard output; raises CommandError if it ends badly."""
    done = subprocess.run(
        command, input=task, capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, **ENVIRONMENT}, timeout=timeout_s,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:].strip()
        raise CommandError(f"{what} ended with status {done.returncode}\n{said}")
    return done.stdout


# -- a benchmark as a program of its own, for those that run many ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended."""

    status: int | None  # its exit status; None if it was stopped for being late
    said: str  # the end of what it wrote, without the names of this machine's folders

    @property
    def failure(self) -> str:
        """How it failed, with its last lines; empty if it did not."""
        if self.status == 0:
            return ""
        how = "not done in time" if self.status is None else f"ended with status {self.status}"
        return "\n".join([how, *self.said.splitlines()[-_ERROR_LINES:]])


async def run_program(arguments: Sequence[str], *, folder: Path, timeout_s: float) -> Ended:
    """Runs Python with these arguments, its output kept.

    Cancellation: it is stopped, too, and has ended when this raises.
    """
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=folder,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.fileno(),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    status = await process.wait()
        finally:
            await _stop(process)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _SAID_BYTES))
        said = output.read().decode(errors="replace").strip()
    for place, name in ((str(folder), "."), (str(ROOT), "."), (str(Path.home()), "~"), (tempfile.gettempdir(), "TMP")):
        said = said.replace(place, name)
    return Ended(status, said)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends it and what it has left in its session."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNWIND_S):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


# -- the child ---------------------------------------------------------------------------------------------------------


def take_task() -> tuple[bytes, FileIO]:
    """Reads the task, the first line of standard input; returns it, and where results are written, unbuffered.

    From then on the process, and the group that it leads, ends when its parent does. Standard output becomes standard
    error: whatever libraries print is no result.
    """
    results = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    line = b""
    # Unbuffered: a forked worker closes `sys.stdin`, and needs its lock free for that.
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 20)
        if not part:
            sys.exit("no task on standard input")
        line += part
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    return line, results


def _end_with_parent() -> None:
    while os.read(0, 4096):
        continue
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
