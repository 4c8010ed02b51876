"""Gives observers a snapshot of a loader every few seconds and at the end of each iteration, on a separate thread."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from types import TracebackType
from typing import Any, Protocol, Self

from concurrent_loader.metrics.running import Listener, Place, RunningIteration, iterations
from concurrent_loader.metrics.snapshot import Snapshot, take_snapshot
from concurrent_loader.storage.errors import ConfigurationError, StoreClosed
from concurrent_loader.storage.fork_safety import register_fork_handler

__all__ = ["Observation", "Observer", "observe"]

_log = logging.getLogger(__name__)

_JOIN_S = 5.0


class Observer(Protocol):
    """What receives a loader's snapshots: an adapter of this package, or an object of your own."""

    def observe(self, snapshot: Snapshot) -> None:
        """Receives a snapshot, on a thread that may wait. After an exception the observer gets no more."""


class Observation(Listener):
    """A loader that is being observed. Ends with `close`, as a context manager, with the loader, or with the process.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, loader: Any, observers: tuple[Observer, ...], *, every_s: float, name: str) -> None:
        self._loader = weakref.ref(loader, lambda _: self._wake())
        self._observers = list(observers)
        self._every_s = every_s
        self._name = name
        self._before = take_snapshot(loader, name)
        self._changed = threading.Condition()
        self._closing = self._has_told = False
        self._woken = False
        self._place: Place | None = None  # where an iteration ended
        self._thread = threading.Thread(target=self._run, name=f"observe-{name}", daemon=True)
        register_fork_handler(self)
        iterations.listeners.append(self)
        _open.add(self)
        self._thread.start()

    def after_fork_in_child(self) -> None:
        """Replaces the lock. The child has no thread of this observation, and observes nothing."""
        self._changed = threading.Condition()

    def ended(self, iteration: RunningIteration) -> None:
        """Takes a snapshot now, because an iteration of the loader has ended."""
        if iteration.loader is self._loader():
            with self._changed:
                self._place = iteration.place()
            self._wake()

    def close(self) -> None:
        """Gives the observers a last snapshot, and ends. Idempotent. Waits for a slow observer, but at most 5 s."""
        with self._changed:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._observers:
                with self._changed:
                    if not self._woken:
                        self._changed.wait(self._every_s)
                    self._woken = False
                    place, self._place = self._place, None
                    closing = self._closing
                loader = self._loader()
                if loader is not None:
                    self._tell(loader, place, is_last=closing)
                if closing or loader is None:
                    return
                del loader  # or it would live as long as the wait
        finally:
            iterations.listeners.remove(self)

    def _tell(self, loader: Any, place: Place | None, *, is_last: bool) -> None:
        try:
            snapshot = take_snapshot(loader, self._name, before=self._before, place=place)
        except StoreClosed:
            return
        if is_last and snapshot.stats.total_s == self._before.stats.total_s and self._has_told:
            return  # told at the end of the last iteration
        self._before, self._has_told = snapshot, True
        for observer in list(self._observers):
            try:
                observer.observe(snapshot)
            except Exception:  # noqa: BLE001 - code of others, which must not end the training
                _log.warning("an observer of loader %r failed and gets no more snapshots", self._name, exc_info=True)
                self._observers.remove(observer)


def observe(loader: Any, *observers: Observer, every_s: float = 10.0, name: str = "loader") -> Observation:
    """Gives observers a snapshot of a loader at intervals, and at the end of each iteration.

    Snapshots are taken on a separate thread. An observer that fails is dropped with a warning, and never stops the
    training.

    Args:
        loader: Native loader or drop-in, which is not kept alive.
        *observers: Adapters such as `PrometheusMetrics`, or your own objects with ``observe(snapshot)``.
        every_s: Seconds between two snapshots; default 10.
        name: Name of the loader, which tells several loaders apart in one observer; default ``"loader"``.

    Returns:
        The observation. ``close()``, or the end of a ``with`` block, ends it after a last snapshot.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, LoggedMetrics, ShardDataset, observe
        >>> loader = ConcurrentDataLoader(ShardDataset("photos"), batch_size=4)
        >>> rows = []
        >>> with observe(loader, LoggedMetrics(rows.append), name="train"):
        ...     num_batches = len(list(loader))
        >>> rows[-1]["train/samples"]
        20.0
    """
    if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not every_s > 0:
        raise ConfigurationError("every_s must be a positive number of seconds", got=every_s)
    if not isinstance(name, str) or not name:
        raise ConfigurationError("name must be a text", got=name)
    for observer in observers:
        if not callable(getattr(observer, "observe", None)):
            raise ConfigurationError("an observer needs a method observe(snapshot)", got=type(observer).__name__)
    return Observation(loader, observers, every_s=float(every_s), name=name)


_open: weakref.WeakSet[Observation] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for observation in list(_open):
        observation.close()
