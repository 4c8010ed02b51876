"""Runs an iteration's work in threads, in order of priority, and shuts down within a bounded time.

Decode threads read, decode, transform and collate. Work for the batch that is delivered first has priority.

`concurrent.futures.ThreadPoolExecutor` waits for its threads on shutdown and at interpreter exit. A transform that
never returns would block both. A thread cannot be killed, so these threads are daemons, and shutdown has a timeout.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import heapq
import itertools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["DecodeThreads", "limit_to_one_thread"]

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_S = 5.0

_log = logging.getLogger(__name__)

_Work = tuple[int, int, Future[Any], Callable[[], Any]]  # (priority, number, …), sorted in this order


class DecodeThreads(Executor):
    """A fixed number of daemon threads, which start with the first work, or by `start`.

    Args:
        num_threads: Number of threads.
        name: Prefix of the threads' names, ``"decode"`` by default.

    Thread-safety: All methods may be called from any thread, except `join_async`, which is for the event loop.
    """

    def __init__(self, num_threads: int, *, name: str = "decode") -> None:
        self._num_threads = num_threads
        self._name = name
        self._work: list[_Work] = []  # work that no thread has begun; a heap
        self._numbers = itertools.count()
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is work; False: a thread ends
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._num_running = 0
        self._closed = False
        self._exited: Future[None] = Future()
        self._exited.set_running_or_notify_cancel()  # so that no waiter can cancel it

    def start(self) -> None:
        """Starts the threads ahead of the first work, which would wait 20 ms for them.

        If no thread can be started, the first work tries again, and has the error.
        """
        with self._lock, suppress(RuntimeError):
            if not self._closed and not self._threads:
                self._start()

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a call; equivalent to `submit_with_priority` with priority 0.

        Raises:
            RuntimeError: The pool has been shut down.
        """
        return self.submit_with_priority(0, partial(call, *args, **kwargs))

    def submit_with_priority(self, priority: int, call: Callable[[], T]) -> Future[T]:
        """Submits a call with a priority.

        Args:
            priority: Calls with a lower number run first. Calls with the same number run in the order of submission.
            call: Function to call in a thread.

        Raises:
            RuntimeError: The pool has been shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the thread pool has been shut down and takes no more work")
            if not self._threads:
                self._start()
            heapq.heappush(self._work, (priority, next(self._numbers), future, call))
        self._signals.put(True)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after their current work. Work that has not begun is always cancelled.

        Args:
            wait: Whether to wait for the threads without a timeout, True by default. `join` has a timeout.
            cancel_futures: Ignored; work that has not begun is cancelled in any case.
        """
        self._close()
        if wait:
            for thread in self._threads:
                thread.join()

    def join(self, grace_period_s: float) -> bool:
        """Ends the threads after their current work, and waits for them.

        Args:
            grace_period_s: Maximum wait in seconds.

        Returns:
            Whether all threads have ended.
        """
        self._close()
        deadline = time.monotonic() + grace_period_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    async def join_async(self, grace_period_s: float) -> bool:
        """Ends the threads after their current work, and waits for them on the event loop.

        Cancellation is raised only after the wait.

        Args:
            grace_period_s: Maximum wait in seconds.

        Returns:
            Whether all threads have ended. The others end after their current work, whose results are discarded.
        """
        self._close()
        loop = asyncio.get_running_loop()
        deadline, cancelled = loop.time() + grace_period_s, None
        exited = asyncio.wrap_future(self._exited)
        while not exited.done() and loop.time() < deadline:
            try:
                await asyncio.wait({exited}, timeout=deadline - loop.time())
            except asyncio.CancelledError as error:
                cancelled = error
        if exited.done():
            for thread in self._threads:
                thread.join()  # returns at once: the threads have nothing left to do
        exited.cancel()
        if cancelled is not None:
            raise cancelled
        return self.has_exited

    def add_exit_callback(self, call: Callable[[], object]) -> None:
        """Registers a function that the last thread calls as it ends."""
        self._exited.add_done_callback(lambda _: call())

    @property
    def has_exited(self) -> bool:
        """Whether all threads have ended."""
        return self._exited.done()

    def _start(self) -> None:
        _pools.add(self)
        for number in range(self._num_threads):
            thread = threading.Thread(target=self._serve, name=f"{self._name}_{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:  # otherwise the threads started so far do the work
                    raise
                _log.warning("only %d of %d threads can be started", number, self._num_threads)
                return
            self._threads.append(thread)
            self._num_running += 1

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._threads:
                self._exited.set_result(None)
            work, self._work = self._work, []
        for _, _, future, _ in work:
            future.cancel()
        for _ in self._threads:
            self._signals.put(False)

    def _serve(self) -> None:
        limit_to_one_thread()
        while (work := self._next()) is not None:
            _, _, future, call = work
            _do(future, call)
            del work, future, call  # so that a waiting thread does not keep a batch alive
        with self._lock:
            self._num_running -= 1
            last = not self._num_running
        if last:
            self._exited.set_result(None)

    def _next(self) -> _Work | None:
        """Waits for the work with the highest priority. Returns None if the pool has been shut down."""
        while self._signals.get():
            with self._lock:
                if self._work:  # otherwise it was cancelled
                    return heapq.heappop(self._work)
        return None


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - passed to the future's waiter
        future.set_exception(error)
    else:
        future.set_result(result)


_pools: weakref.WeakSet[DecodeThreads] = weakref.WeakSet()


def _end_at_exit() -> None:
    """Lets threads finish before the interpreter shuts down, as a pool of the standard library does."""
    deadline = time.monotonic() + _EXIT_S
    for pool in list(_pools):
        pool._close()
        for thread in pool._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def limit_to_one_thread() -> None:
    """Makes torch's operators run on the calling thread alone. Other threads keep their settings.

    If the user has called `torch.set_num_threads`, operators that torch passes to MKL still use that many threads:
    matrix products, `sin` and similar functions. MKL keeps a number for the whole process, too.

    If the process has no file descriptor left to look up its libraries, a warning is logged. The thread then shares
    its work with other threads, which is slower but correct.
    """
    torch.get_num_threads()  # torch sets a thread's number on the first call, which must not come after ours
    try:
        controller = _controller()
    except OSError as error:
        _log.warning("cannot look up the libraries of this process, so operators use several threads: %s", error)
        return
    # OpenMP keeps the number per thread (omp_set_num_threads).
    controller.limit(limits=1, user_api="openmp")


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
