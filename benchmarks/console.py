"""What the terminal shows while something lasts: one bar, gone when it is over; and how a program ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_INTERRUPTED = 130  # as a shell reports SIGINT


class Bar:
    """A progress bar that can be pushed by one or to a count."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def reach(self, count: int) -> None:
        """So many are done."""
        self._progress.update(self._task, completed=count)


@contextlib.contextmanager
def bar(console: Console, name: str, total: int) -> Iterator[Bar]:
    """Shows a bar during the block, on a terminal; elsewhere nothing."""
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, name, total)


def ends_with_one_line(run: Callable[[], object]) -> int:
    """Runs a program so that Ctrl-C and SIGTERM unwind it and leave one line instead of a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run()
    except KeyboardInterrupt:
        Console(stderr=True).print("\ninterrupted: what was started has been stopped")
        return _INTERRUPTED
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
