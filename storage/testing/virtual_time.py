"""Time that passes only while everybody waits: minutes of latency in milliseconds of test, and the same every time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing is left to do.

    For code that waits for timers and for other tasks only: a socket or a thread would be overtaken by the clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-6  # asyncio's own is too fine for large numbers: a timer would never be due

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self._now_s = max(self._now_s, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run` does, in virtual time; its clock is ``asyncio.get_running_loop().time``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
