"""Runs the processes that a demo or benchmark needs, so that none of them outlives it; and the words between the two.

Every epoch is timed in a fresh process: imports, memory and client state are then comparable, and what one side leaves
behind can neither help nor hurt the next. A child runs in a session of its own, so that Ctrl-C reaches the parent
alone, which then ends the child with all its workers. The task (credentials included) goes through the child's standard
input, which stays open: if the parent is killed, the child sees it close and ends too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import msgspec

Side = Literal["folder", "objects", "shards"]
Step = Literal["train", "decoded", "raw"]

# OpenMP's threads spin while they wait and so take cores from those that decode. Passive, torch's DataLoader trains 17%
# faster on two cores (293 → 346 images/s), the loader, which has no worker processes, as fast as before.
ENVIRONMENT = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
_EXIT_S = 30.0  # a child that is done must let go of threads, workers and files by then
_KILL_S = 5.0


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One epoch to time; see `benchmarks.side`."""

    side: Side  # where the images come from
    step: Step  # what is done with them: trained on, only decoded and augmented, or taken as bytes
    location: str  # folder or URL
    num_classes: int
    storage_options: dict[str, str] = {}  # for the two sides in a bucket
    client: str = "auto"  # for shards
    cache_dir: str | None = None  # for shards
    batch_size: int = 64
    num_workers: int = 2  # worker processes of torch's DataLoader
    seed: int = 0  # of order and weights
    limit: int | None = None  # for objects: only so many of them
    resident_bytes: int = 0  # page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`


class Epoch(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it."""

    num_samples: int
    build_s: float  # to make the loader, before the epoch
    epoch_s: float  # from the request for the first batch to the end of the last step
    first_batch_s: float  # from the same start
    waiting_s: float  # part of the epoch that the consumer spent waiting for batches
    num_gets: int  # from making the loader on
    num_bytes: int  # bodies of these GETs
    dataset_bytes: int  # in the bucket; 0 for the folder
    cpu_s: float  # of the process and its workers, without imports
    peak_rss_mb: float  # of the process, plus its workers' proportional share
    rss_added_mb: float  # by which the process without workers grew since the imports, at its highest
    first_loss: float | None  # mean over the first tenth of the steps; None without training
    last_loss: float | None  # mean over the last tenth
    accuracy: float | None  # over the last quarter, before learning from it
    class_counts: list[int]
    digest: str | None  # of all files whatever their order; None unless they were delivered as bytes
    client: str | None  # store or client class; None for the folder
    timeline: list[tuple[float, int]]  # seconds since the start and images done, after each step

    @property
    def samples_per_s(self) -> float:
        """Images per second over the whole epoch, its slow start included."""
        return self.num_samples / self.epoch_s

    @property
    def waiting_share(self) -> float:
        """Share of the epoch spent waiting for data, 0 … 1."""
        return self.waiting_s / self.epoch_s

    @property
    def cpu_s_per_1000(self) -> float:
        """Processor seconds per thousand images."""
        return 1000 * self.cpu_s / self.num_samples


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line from the process that times an epoch: its progress, or the result."""

    num_samples: int = 0
    epoch: Epoch | None = None


class CommandError(RuntimeError):
    """A child failed; the message has the end of its output."""


# -- the parent --------------------------------------------------------------------------------------------------------


def run_epoch(request: Request, *, on_progress: Callable[[int], object] = lambda done: None) -> Epoch:
    """Times an epoch in a fresh process; raises CommandError if it gives no result or does not end after it."""
    epoch = None
    what = f"the side {request.side!r} (step {request.step!r})"
    command = [sys.executable, "-m", "benchmarks.side"]
    for line in converse(command, msgspec.json.encode(request), what=what):
        message = msgspec.json.decode(line, type=Message)
        if message.epoch is None:
            on_progress(message.num_samples)
        epoch = message.epoch
    assert epoch is not None
    return epoch


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
    with (
        tempfile.TemporaryFile() as errors,
        child_process(command, errors=errors.fileno(), env={**ENVIRONMENT, **(env or {})}) as process,
        watching(process.pid),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(deadline_s or threading.TIMEOUT_MAX, process.kill)
        late.start()
        try:
            process.stdin.write(task + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                num_lines += 1
                yield line
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
        finally:
            late.cancel()
            late.join()
        if num_lines and (process.returncode == 0 or deadline_s is not None):
            return
        status = "did not end" if process.returncode is None else f"ended with status {process.returncode}"
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    raise CommandError(f"{what} {status}\n{said}")


def run_command(command: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Runs a command whose output goes to the terminal; raises CommandError if its exit status is not 0."""
    with child_process(command, env=env, captured=False) as process:
        if process.wait() != 0:
            raise CommandError(f"{' '.join(command)} ended with status {process.returncode}")


@contextlib.contextmanager
def child_process(
    command: Sequence[str], *, errors: int | None = None, env: Mapping[str, str] | None = None, captured: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process in a session of its own; it and all that it started are gone when the block ends.

    It keeps compiled modules as an installed package has them, even where this process must not write any: otherwise
    every fresh process compiles this tree's modules again, some of them while its clock is running.
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_S)
            os.killpg(process.pid, signal.SIGKILL)  # it, or workers that outlived it
        process.wait()


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
