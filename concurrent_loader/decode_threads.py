"""The threads that read, decode, transform and collate: the pool of one iteration, which can be left in a bounded time.

They do what has the lowest turn first: of batches that are made at once, the one that is delivered first.

`concurrent.futures.ThreadPoolExecutor` waits for its threads: at the end, and once more when the interpreter ends. A
transform that never returns would keep both from ending. A thread cannot be killed, so these are daemons, and whoever
leaves waits for them for so long and no longer.
"""

from __future__ import annotations

import asyncio
import atexit
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
from functools import partial
from typing import Any, ParamSpec, TypeVar

from concurrent_loader.one_core import keep_to_one_core

__all__ = ["DecodeThreads"]

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_S = 5.0

_log = logging.getLogger(__name__)

_Work = tuple[int, int, Future[Any], Callable[[], Any]]  # (its turn, its number, …): they sort in this order


class DecodeThreads(Executor):
    """A fixed number of daemon threads, started by the first work.

    Args:
        num_threads: How many.
        name: Of each, with its number.

    Thread-safety: All methods may be called from any thread; `leave` is the loop's.
    """

    def __init__(self, num_threads: int, *, name: str = "decode") -> None:
        self._num_threads = num_threads
        self._name = name
        self._work: list[_Work] = []  # that no thread has begun; a heap
        self._numbers = itertools.count()
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether there is work, or the end of it
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._num_running = 0
        self._closed = False
        self._gone: Future[None] = Future()
        self._gone.set_running_or_notify_cancel()  # nobody who waits for it may cancel it

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Has a thread make a call, after all that were submitted before; as `submit_at` with turn 0.

        Raises:
            RuntimeError: The threads have been told to end.
        """
        return self.submit_at(0, partial(call, *args, **kwargs))

    def submit_at(self, turn: int, call: Callable[[], T]) -> Future[T]:
        """Has a thread make a call when it has its turn.

        Args:
            turn: Calls with a lower number are made first, whenever they were submitted; of those with the same, the
                one that was submitted first.
            call: What to do.

        Raises:
            RuntimeError: The threads have been told to end.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("these threads have been told to end")
            if not self._threads:
                self._start()
            heapq.heappush(self._work, (turn, next(self._numbers), future, call))
        self._signals.put(True)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Tells the threads to end after what they are doing; what has not begun is cancelled, whatever is asked for.

        Args:
            wait: For their end, however long that takes; `leave` is the one with a bound.
            cancel_futures: As for `Executor`.
        """
        self._close()
        if wait:
            for thread in self._threads:
                thread.join()

    def join(self, patience_s: float) -> bool:
        """Tells the threads to end and waits until they have; as `leave`, for those who have no loop.

        Returns:
            Whether they are gone.
        """
        self._close()
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    async def leave(self, patience_s: float) -> bool:
        """Tells the threads to end and waits until they have.

        Args:
            patience_s: For how long at most.

        Returns:
            Whether they are gone. If not, they end with what they are doing, and nobody waits for its result.

        Cancellation: It is raised when the wait is over.
        """
        self._close()
        loop = asyncio.get_running_loop()
        deadline, cancelled = loop.time() + patience_s, None
        gone = asyncio.wrap_future(self._gone)
        while not gone.done() and loop.time() < deadline:
            try:
                await asyncio.wait({gone}, timeout=deadline - loop.time())
            except asyncio.CancelledError as error:
                cancelled = error
        if gone.done():
            for thread in self._threads:
                thread.join()  # they have said that they end, and have nothing left to do
        gone.cancel()
        if cancelled is not None:
            raise cancelled
        return self.gone

    def when_gone(self, call: Callable[[], object]) -> None:
        """Has the last thread make a call as it ends."""
        self._gone.add_done_callback(lambda _: call())

    @property
    def gone(self) -> bool:
        """Whether they have ended."""
        return self._gone.done()

    def _start(self) -> None:
        _pools.add(self)
        for number in range(self._num_threads):
            thread = threading.Thread(target=self._serve, name=f"{self._name}_{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:  # otherwise those that there are do the work
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
                self._gone.set_result(None)
            work, self._work = self._work, []
        for _, _, future, _ in work:
            future.cancel()
        for _ in self._threads:
            self._signals.put(False)

    def _serve(self) -> None:
        keep_to_one_core()
        while (work := self._next()) is not None:
            _, _, future, call = work
            _do(future, call)
            del work, future, call  # the thread waits for more; meanwhile it must not keep a batch alive
        with self._lock:
            self._num_running -= 1
            last = not self._num_running
        if last:
            self._gone.set_result(None)

    def _next(self) -> _Work | None:
        """Waits for the work whose turn it is; None: there will be no more."""
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
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)


_pools: weakref.WeakSet[DecodeThreads] = weakref.WeakSet()


def _end_at_exit() -> None:
    """Lets threads finish before the interpreter takes itself apart, as a pool of the standard library would."""
    deadline = time.monotonic() + _EXIT_S
    for pool in list(_pools):
        pool._close()
        for thread in pool._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork
