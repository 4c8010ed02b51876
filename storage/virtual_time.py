"""Virtual time: the clock advances only while all tasks wait, so that long waits are replayed at once and exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """A selector that advances the clock instead of sleeping."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when no task is ready.

    It suits code that waits only for timers and other tasks, because the clock would overtake sockets and threads.
    """

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6  # asyncio's resolution is too fine for large numbers: a timer might never be due

    def time(self) -> float:
        """Returns the virtual seconds since the loop was created."""
        return self._virtual.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`, in virtual time; the clock is ``asyncio.get_running_loop().time``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
