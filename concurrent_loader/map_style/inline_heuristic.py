"""Decides by measurement whether a torch dataset's items wait or compute.

Items that wait, for a network or a drive, are read in threads. Items that compute are read in the caller's thread, as
torch does, because threads would only share the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

import torch

__all__ = [
    "COMPUTES",
    "FINDING_NAMES",
    "SLICE_ITEMS",
    "UNKNOWN",
    "WAITS",
    "WAIT_S",
    "Findings",
    "InlineHeuristic",
    "Reading",
]

# Findings about a dataset's items: one byte each, because processes share them.
UNKNOWN: Final = 0
COMPUTES: Final = 1
WAITS: Final = 2
FINDING_NAMES: Final = {UNKNOWN: "not measured yet", COMPUTES: "compute", WAITS: "wait"}

SLICE_ITEMS: Final = 32  # items read between two looks at the clock
WAIT_S: Final = 250e-6  # shorter waits are not worth a thread: handing an item over costs 30 to 60 µs
_WAIT_SHARE = 0.5  # share of the wall time from which on items count as waiting
_TRIAL_ITEMS = 8  # items measured one by one before a decision
_FIRST_TRIAL_S = 0.5  # from the first use of threads to the first trial
_TRIAL_COST_SHARE = 0.01  # largest share of the time spent on trials in the caller's thread
_SCHEDULER_FILE = "/proc/thread-self/schedstat"


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of the calling thread's clocks.

    Attributes:
        wall_s: Wall time.
        cpu_s: Processor time of the thread.
        queued_s: Time that the thread waited for a processor; 0 if it is not known.
    """

    wall_s: float
    cpu_s: float
    queued_s: float


def _read_thread(*, with_queue: bool) -> Reading:
    """Reads the clocks of the calling thread. This takes 0.5 µs, or 10 µs with the wait for a processor."""
    if not with_queue:
        return Reading(perf_counter(), thread_time(), 0.0)
    try:
        file = os.open(_SCHEDULER_FILE, os.O_RDONLY)
        try:
            queued_s = int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):  # not Linux, or a kernel without these counters
        queued_s = 0.0
    return Reading(perf_counter(), thread_time(), queued_s)


class InlineHeuristic:
    """Chooses between the caller's thread and a thread pool, again and again.

    A caller that reads items in its own thread calls `begin` before and `end` after each part of a batch. At the start,
    and after a slow part, a part is a single item. If two such items wait before eight in a row do not, the items count
    as waiting. While items are read in threads, the caller sometimes tries single items in its own thread, when nothing
    else is in flight. The first one that waits ends the trial.

    Args:
        known: `UNKNOWN`, or the finding of an earlier iteration.
        clock: Function that returns the wall time, in seconds.
        read: Function that reads the clocks of the calling thread, called with ``with_queue=``. Its wall time is that
            of ``clock``.

    Attributes:
        clock: Function that returns the wall time, in seconds.
        known: `UNKNOWN`, `COMPUTES` or `WAITS`.
        is_quick: Whether parts are so quick that `suspect` after a slow one replaces `begin` and `end`.

    Thread-safety: Use it from one thread.
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
        self._trial_s = self.clock() + _FIRST_TRIAL_S  # time of the next trial
        self._num_singles = 0 if known == COMPUTES else _TRIAL_ITEMS  # items still to be measured one by one
        self._num_waits_needed = 2

    def uses_threads(self) -> bool:
        """Returns whether the next items are read in threads: they wait, and no trial is due."""
        return self.known == WAITS and self.clock() < self._trial_s

    @property
    def part_items(self) -> int:
        """Number of items that the caller reads before it calls `end`."""
        return 1 if self._num_singles else SLICE_ITEMS

    def begin(self) -> None:
        """Starts the measurement of a part that is read in this thread."""
        self._began = self._read(with_queue=self._num_singles > 0)

    def end(self, num_items: int) -> bool:
        """Ends the measurement of a part; returns whether the finding has changed."""
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
            self._num_singles = max(0, self._num_singles - num_items)  # a dataset may read whole batches only
            if not self._num_singles:
                self.known = COMPUTES
        return self.known != before

    def suspect(self) -> None:
        """Reports that an unmeasured part was slow."""
        self._measure_singles()

    def _measure_singles(self) -> None:
        self.is_quick = False
        self._num_singles, self._num_waits_needed = _TRIAL_ITEMS, 2

    def _wait(self, now_s: float, item_s: float) -> None:
        self.known = WAITS
        # A trial costs about two items: one while nothing else is in flight, and one until threads are busy again.
        self._trial_s = now_s + max(_FIRST_TRIAL_S, 2 * item_s / _TRIAL_COST_SHARE)


class Findings:
    """Findings of all processes about the items: one byte per process, read where batches are announced ahead.

    An object can be pickled while a process is being started.

    Args:
        num_processes: Number of processes.
        is_shared: Whether the bytes are in memory that processes share.
        known: Initial value of each byte.

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
