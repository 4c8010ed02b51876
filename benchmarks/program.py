"""Runs a benchmark as a program of its own for those that run many, and keeps what it said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SAID_BYTES = 16_000
_ERROR_LINES = 40
_UNWIND_S = 30.0  # a benchmark that is stopped ends servers and processes of its own first


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
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
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
