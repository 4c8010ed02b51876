"""Drives the processes that a demo or benchmark needs, so that none of them outlives it.

Every epoch is timed in a fresh process (`benchmarks.side`): imports, memory and client state are then comparable, and
what one side leaves behind can neither help nor hurt the next. A child runs in a session of its own, so that Ctrl-C
reaches the parent alone, which then ends the child with all its workers. The request (credentials included) goes
through the child's standard input, and that stays open: should the parent be killed, the child sees it close and ends
too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.measurement import Epoch, Message, Request

# OpenMP's threads spin while they wait and so take cores from those that decode. Passive, torch's DataLoader trains 17%
# faster on two cores (293 → 346 images/s), the loader, which has no worker processes, as fast as before.
ENVIRONMENT = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
_EXIT_S = 30.0  # a side that is done must let go of threads, workers and files by then
_KILL_S = 5.0


class CommandError(RuntimeError):
    """A child ended badly; the message has the end of what it said."""


def run_epoch(request: Request, *, on_progress: Callable[[int], object] | None = None) -> Epoch:
    """Times an epoch in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.side"]
    epoch = None
    with tempfile.TemporaryFile() as errors, child_process(command, errors=errors.fileno(), env=ENVIRONMENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            message = msgspec.json.decode(line, type=Message)
            if message.epoch is not None:
                epoch = message.epoch
            elif on_progress is not None:
                on_progress(message.num_samples)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S)
        if epoch is not None and process.returncode == 0:
            return epoch
        status = "did not end" if process.returncode is None else f"ended with status {process.returncode}"
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    raise CommandError(f"the side {request.side!r} (step {request.step!r}) {status}\n{said}")


def run_command(command: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Runs a command whose output goes to the terminal."""
    with child_process(command, env=env, captured=False) as process:
        if process.wait() != 0:
            raise CommandError(f"{' '.join(command)} ended with status {process.returncode}")


@contextlib.contextmanager
def child_process(
    command: Sequence[str], *, errors: int | None = None, env: Mapping[str, str] | None = None, captured: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; it and all that it started are gone when the block ends.

    It keeps compiled modules as an installed package has them, even where this process is told not to write any:
    otherwise every fresh process compiles this tree's modules again, some of them while its clock is running.
    """
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **(env or {}), "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if captured else None,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
        os.killpg(process.pid, signal.SIGKILL)  # it, or workers that outlived it
    process.wait()
