"""Threads that read items of a torch dataset, many at once, in each process of the drop-in."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

from concurrent_loader.pipeline.thread_pool import limit_to_one_thread

__all__ = ["ItemThreads"]


class ItemThreads:
    """Calls functions in threads, in the order of submission.

    Unlike the threads of `concurrent.futures`, these never keep a process from ending: a torch worker that is told to
    end does not first read the items submitted ahead.

    Args:
        max_threads: Largest number of calls in flight. Threads start when they are needed.

    Thread-safety: All methods may be called from any thread of the process that created the pool.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._wake = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()  # bounded by the caller
        self._threads: set[threading.Thread] = set()
        self._num_idle = 0
        self._releasing = self._stopped = False
        self._pid = os.getpid()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Submits a function call. A future that is cancelled before its turn is never started.

        Raises:
            RuntimeError: The pool is stopped, or no thread can be started.
        """
        future: Future[Any] = Future()
        with self._wake:
            if self._stopped:
                raise RuntimeError("the thread pool is stopped")
            self._releasing = False
            self._work.append((future, function, args))
            if len(self._work) <= self._num_idle:
                self._wake.notify()
            elif len(self._threads) < self._max_threads:
                self._start_thread()
        return future

    def release_idle(self) -> None:
        """Lets idle threads exit; the next `submit` starts new ones."""
        with self._wake:
            self._releasing = True
            self._wake.notify_all()

    def stop(self, *, timeout_s: float) -> None:
        """Cancels pending calls and waits for running ones, up to a limit. Idempotent; does nothing after a fork."""
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
            if not self._threads:  # otherwise the existing threads do the work
                self._work.pop()
                raise

    def _serve(self) -> None:
        limit_to_one_thread()
        while (work := self._next()) is not None:
            future, function, args = work
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del work, future, function, args  # an idle thread must keep no item alive

    def _next(self) -> tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None:
        with self._wake:
            while not self._work:
                if self._stopped or self._releasing:
                    self._threads.discard(threading.current_thread())
                    return None
                self._num_idle += 1
                try:
                    self._wake.wait()
                finally:
                    self._num_idle -= 1
            return self._work.popleft()
