"""Keeps the list of iterations that run in this process. Loaders add theirs; metrics and the live view read it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.storage.fork_safety import register_fork_handler

__all__ = ["Iterations", "Place", "RunningIteration", "iterations"]


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an iteration.

    Attributes:
        epoch: Epoch.
        step: Number of batches of the epoch that were delivered.
        num_steps: Number of batches of the epoch; None if it is unknown.
    """

    epoch: int = 0
    step: int = 0
    num_steps: int | None = None


class RunningIteration:
    """One iteration of a loader.

    Args:
        loader: Loader, which this object does not keep alive.
        place: Function that returns the position.
        status: Function that returns the fill levels.
        pending: Function that returns what the present moment counts for, and the seconds not yet counted.

    Thread-safety: The functions are called from any thread.
    """

    def __init__(
        self,
        loader: Any,
        *,
        place: Callable[[], Place],
        status: Callable[[], PipelineStatus],
        pending: Callable[[], tuple[str, float]],
    ) -> None:
        self._loader = weakref.ref(loader)
        self.place = place
        self.status = status
        self.pending = pending

    @property
    def loader(self) -> Any:
        """Loader; None if it no longer exists."""
        return self._loader()


class Listener:
    """What wants to know that iterations begin and end. The calls come from any thread, and must not block for long."""

    def began(self, iteration: RunningIteration) -> None:
        """Is called when an iteration has begun."""

    def ended(self, iteration: RunningIteration) -> None:
        """Is called when an iteration has ended."""


class Iterations:
    """Running iterations of this process.

    Thread-safety: All methods may be called from any thread, also by the garbage collector.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: list[RunningIteration] = []
        self.listeners: list[Listener] = []
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Forgets the parent's iterations, whose threads do not exist here."""
        self._lock = threading.RLock()
        self._running = []

    def begin(self, iteration: RunningIteration) -> RunningIteration:
        """Adds an iteration."""
        with self._lock:
            self._running.append(iteration)
        for listener in list(self.listeners):
            listener.began(iteration)
        return iteration

    def end(self, iteration: RunningIteration) -> None:
        """Removes an iteration. Idempotent."""
        with self._lock:
            if iteration not in self._running:
                return
            self._running.remove(iteration)
        for listener in list(self.listeners):
            listener.ended(iteration)

    def running(self) -> list[RunningIteration]:
        """Returns the running iterations, the oldest first."""
        with self._lock:
            return list(self._running)

    def of(self, loader: Any) -> RunningIteration | None:
        """Returns the newest running iteration of a loader."""
        return next((each for each in reversed(self.running()) if each.loader is loader), None)


iterations = Iterations()
