"""Threads that wait for a torch data set's items, many at once: below the drop-in loader, in each of its processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

from concurrent_loader.one_core import keep_to_one_core

__all__ = ["ItemThreads"]


class ItemThreads:
    """Calls functions in threads, in the order in which they were given.

    Unlike those of `concurrent.futures`, the threads never keep a process from ending: a torch worker that is told to
    end does not first fetch what was to be fetched ahead.

    Args:
        max_threads: As many calls are under way at once. Threads start as they are needed.

    Thread-safety: All methods may be called from any thread of the process that made it.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._wake = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()  # bounded by the caller
        self._threads: set[threading.Thread] = set()
        self._num_idle = 0
        self._resting = self._stopped = False
        self._pid = os.getpid()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has a function called; a future that is cancelled before its turn is never begun.

        Raises:
            RuntimeError: After `stop`, or where not one thread can be started.
        """
        future: Future[Any] = Future()
        with self._wake:
            if self._stopped:
                raise RuntimeError("these threads have been stopped")
            self._resting = False
            self._work.append((future, function, args))
            if len(self._work) <= self._num_idle:
                self._wake.notify()
            elif len(self._threads) < self._max_threads:
                self._start_thread()
        return future

    def rest(self) -> None:
        """Lets the threads end as soon as nothing is left to do; the next `submit` starts new ones."""
        with self._wake:
            self._resting = True
            self._wake.notify_all()

    def stop(self, *, timeout_s: float) -> None:
        """Cancels what has not begun, and waits for what has, up to a limit. Idempotent; does nothing after a fork."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            self._stopped = True
            left, threads = list(self._work), list(self._threads)
            self._work.clear()
            self._wake.notify_all()
        for future, _, _ in left:
            future.cancel()
        deadline = monotonic() + timeout_s
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="dataset-item", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.discard(thread)
            if not self._threads:  # otherwise those that there are do the work
                self._work.pop()
                raise

    def _serve(self) -> None:
        keep_to_one_core()
        while (work := self._next()) is not None:
            future, function, args = work
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:  # noqa: BLE001 - raised again where the item is waited for
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del work, future, function, args  # an idle thread must keep no item alive

    def _next(self) -> tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None:
        with self._wake:
            while not self._work:
                if self._stopped or self._resting:
                    self._threads.discard(threading.current_thread())
                    return None
                self._num_idle += 1
                try:
                    self._wake.wait()
                finally:
                    self._num_idle -= 1
            return self._work.popleft()
