"""Time that passes only while everybody waits: minutes of latency in milliseconds of test, and the same every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """Waits for no timer: the time that the loop wants to sleep has passed at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing is left to do.

    For code that waits for timers and for other tasks only: a socket or a thread would be overtaken by the clock.
    """

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6  # asyncio's own is too fine for large numbers: a timer would never be due

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run` does, in virtual time; its clock is ``asyncio.get_running_loop().time``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
