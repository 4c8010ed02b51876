"""Decides by measurement whether a torch dataset's items wait or compute: between the clocks and a worker's fetcher.

Items that wait, for a network or a drive, are worth threads. Items that compute are not: threads only share the
interpreter's lock. They are got in the caller's thread, as torch does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

import torch

__all__ = ["COMPUTES", "SLICE_ITEMS", "UNKNOWN", "WAITS", "WAIT_S", "Findings", "InlineHeuristic", "Reading"]

# What is known of a dataset's items; values of one byte, because processes share them.
UNKNOWN: Final = 0
COMPUTES: Final = 1
WAITS: Final = 2

SLICE_ITEMS: Final = 32  # items that a caller gets between two looks at the clock
WAIT_S: Final = 250e-6  # an item that waits for less gains too little: handing it to a thread costs 30 to 60 µs
_WAIT_SHARE = 0.5  # of the wall time; with less, the processor is what items need
_TRIAL_ITEMS = 8  # items measured one by one before a decision
_FIRST_TRIAL_S = 0.5  # after threads were first used
_TRIAL_COST_SHARE = 0.01  # of the time that threads run, trials in the caller's thread may take
_SCHEDULER_FILE = "/proc/thread-self/schedstat"


@dataclass(frozen=True, slots=True)
class Reading:
    """Clocks of the calling thread.

    Attributes:
        wall_s: Wall time.
        cpu_s: Processor time of the thread.
        queued_s: Time that the thread was ready to run while other threads had the processors; 0 if it is not known.
    """

    wall_s: float
    cpu_s: float
    queued_s: float


def _read_thread(*, with_queue: bool) -> Reading:
    """Reads the clocks of the calling thread: in 0.5 µs, and with the time in the queue for a processor in 10 µs."""
    if not with_queue:
        return Reading(perf_counter(), thread_time(), 0.0)
    try:
        file = os.open(_SCHEDULER_FILE, os.O_RDONLY)
        try:
            queued_s = int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):  # not Linux, or a kernel without these figures
        queued_s = 0.0
    return Reading(perf_counter(), thread_time(), queued_s)


class InlineHeuristic:
    """Chooses between the caller's thread and other threads, again and again.

    A caller that gets items in its own thread brackets each part of them with `begin` and `end`. At the start and
    whenever a part was slow, parts are single items: two of them that wait before eight in a row that do not, and the
    items wait. While items are got in threads, the caller tries single items in its own thread every now and then, when
    nothing else is under way; the first one that waits ends this trial.

    Args:
        known: `UNKNOWN`, or what an earlier iteration found.
        clock: Reads the wall clock, in seconds.
        read: Reads the clocks of the calling thread; its wall time is that of ``clock``. Called with ``with_queue=``.

    Attributes:
        clock: As given.
        known: `UNKNOWN`, `COMPUTES` or `WAITS`.
        is_quick: Whether parts are so quick that `suspect` after a slow one is enough, without `begin` and `end`.

    Thread-safety: One thread.
    """

    def __init__(
        self,
        known: int,
        *,
        clock: Callable[[], float] | None = None,
        read: Callable[..., Reading] | None = None,
    ) -> None:
        self.known = known
        self.is_quick = False
        self.clock = clock or perf_counter
        self._read = read or _read_thread
        self._began: Reading | None = None
        self._trial_s = self.clock() + _FIRST_TRIAL_S  # when threads are left for the next trial
        self._num_singles = 0 if known == COMPUTES else _TRIAL_ITEMS  # left to be measured one by one
        self._num_waits_needed = 2

    def uses_threads(self) -> bool:
        """Whether the next items go to threads: they wait, and no trial is due."""
        return self.known == WAITS and self.clock() < self._trial_s

    @property
    def part_items(self) -> int:
        """Number of items that the caller gets before it calls `end`."""
        return 1 if self._num_singles else SLICE_ITEMS

    def begin(self) -> None:
        """Starts the measurement of a part, got in this thread."""
        self._began = self._read(with_queue=self._num_singles > 0)

    def end(self, num_items: int) -> bool:
        """Ends the measurement of a part, and decides what it means; returns whether the decision is a new one."""
        before, began, ended = self.known, self._began, self._read(with_queue=self._num_singles > 0)
        assert began is not None
        wall_s, cpu_s = ended.wall_s - began.wall_s, ended.cpu_s - began.cpu_s
        waited_s = wall_s - cpu_s - (ended.queued_s - began.queued_s)
        waits = waited_s >= WAIT_S * num_items and waited_s >= _WAIT_SHARE * wall_s
        if not self._num_singles:
            self.is_quick = wall_s < WAIT_S * num_items
            if waits:
                self._measure_singles()
        elif waits:
            self._num_singles = _TRIAL_ITEMS
            self._num_waits_needed -= 1
            if self.known == WAITS or not self._num_waits_needed:
                self._wait(ended.wall_s, wall_s)
        else:
            self._num_singles = max(0, self._num_singles - num_items)  # a dataset may get whole batches only
            if not self._num_singles:
                self.known = COMPUTES
        return self.known != before

    def suspect(self) -> None:
        """Tells that a part was slow which was not measured."""
        self._measure_singles()

    def _measure_singles(self) -> None:
        self.is_quick = False
        self._num_singles, self._num_waits_needed = _TRIAL_ITEMS, 2

    def _wait(self, now_s: float, item_s: float) -> None:
        self.known = WAITS
        # A trial costs about two items: one while nothing else is under way, and one until threads are busy again.
        self._trial_s = now_s + max(_FIRST_TRIAL_S, 2 * item_s / _TRIAL_COST_SHARE)


class Findings:
    """What each process has found out, one byte a process: shared by all, read where batches are named ahead.

    It pickles where processes are started.

    Args:
        num_processes: Number of bytes.
        is_shared: Whether processes are to see each other's.
        known: What they hold at first.

    Attributes:
        bytes: `UNKNOWN`, `COMPUTES` or `WAITS` for each process.
    """

    def __init__(self, num_processes: int, *, is_shared: bool, known: int = UNKNOWN) -> None:
        found = torch.full((num_processes,), known, dtype=torch.uint8)
        self.__setstate__(found.share_memory_() if is_shared else found)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> torch.Tensor:
        return self._found

    def __setstate__(self, found: torch.Tensor) -> None:
        self._found = found
        self.bytes = memoryview(found.numpy())  # type: ignore[arg-type]
