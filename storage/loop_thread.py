"""The event loop's thread: the only bridge between synchronous callers and the asyncio code below them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from storage.errors import StorageError, StoreClosed
from storage.forking import keep_for_ever, tell_after_fork
from storage.secrets import shortened

__all__ = ["LoopThread", "hold"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_JOIN_S = 60.0

_held: set[asyncio.Task[Any]] = set()


def hold(task: asyncio.Task[Any]) -> None:
    """Keeps a task alive until it ends.

    An event loop has weak references to its tasks only. A task that waits for something that only it and an abandoned
    iterator refer to would be destroyed with the iterator by the garbage collector, instead of being cancelled.
    """
    _held.add(task)
    task.add_done_callback(_held.discard)


class LoopThread:
    """An asyncio event loop that runs on a thread of its own, started by the first call.

    Thread-safety: every method may be called from any thread but the loop's own. A process forked from the one that
    started the thread gets `StoreClosed`, never a hang: threads do not survive a fork.

    Args:
        name: Of the thread, as debuggers show it.
    """

    def __init__(self, name: str = "storage-loop") -> None:
        self._name = name
        # The garbage collector may run while this thread holds the lock, and end something that needs the lock, too.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False
        tell_after_fork(self)

    def after_fork_in_child(self) -> None:
        """The loop is the parent's, whose epoll set it would change by so much as ending."""
        self._lock = threading.RLock()
        keep_for_ever((self._loop, self._thread))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine on the loop; cancelling the future cancels it there.

        Raises:
            StoreClosed: After `close`, in a forked process, or while the interpreter ends.
            RuntimeError: The system allows this process no further thread; a later call tries again.
            OSError: Nor a further descriptor.
        """
        with self._lock:  # whatever is submitted before `close` is run, or cancelled by it
            try:
                loop = self._running_loop()
            except BaseException:
                coroutine.close()
                raise
            future: Future[T] = Future()
            loop.call_soon_threadsafe(_begin, loop, coroutine, future)
            return future

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Runs a coroutine to its end and returns its result; a KeyboardInterrupt or a time-out cancels it.

        Raises:
            StoreClosed: As for `submit`.
            TimeoutError: It took longer than ``timeout_s``.
        """
        if self._thread is threading.current_thread():
            coroutine.close()
            raise RuntimeError("LoopThread.run was called from its own loop; await the coroutine instead")
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException as error:
            future.cancel()
            if isinstance(error, StorageError):
                shortened(error, num_frames=2)
            raise

    async def reach(self, coroutine: Coroutine[Any, Any, T], dispose: Callable[[T], object] = lambda result: None) -> T:
        """Awaits, on whatever loop this is called from, a coroutine that runs on this thread's loop.

        Args:
            coroutine: What to run there.
            dispose: Called there with a result that came too late for a caller that had been cancelled.

        Raises:
            StoreClosed: As for `submit`, or the loop is closed meanwhile.

        Cancellation: It is handed on, and raised when the coroutine has ended.
        """
        if self._loop is asyncio.get_running_loop():
            return await coroutine
        visit = _Visit(coroutine)
        try:
            waiting = asyncio.wrap_future(self.submit(visit.run()))
        except StoreClosed:
            coroutine.close()
            raise
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            asked = asyncio.current_task()
            if waiting.cancelled() and (asked is None or not asked.cancelling()):
                raise StoreClosed("the event loop was closed meanwhile") from None
            self.call_soon(visit.cancel)
            while not waiting.done():
                try:
                    await asyncio.wait({waiting})
                except asyncio.CancelledError:
                    continue  # once is enough; it is raised below
            if not waiting.cancelled() and waiting.exception() is None:
                self.call_soon(dispose, waiting.result())
            raise
        finally:
            coroutine.close()  # it has ended, or was cancelled before it began

    def call_soon(self, function: Any, *args: Any) -> None:
        """Calls a plain function on the loop; a loop that has closed meanwhile is no error: nobody is left to tell."""
        with self._lock:
            if self._loop is not None and not self._closed and self._pid == os.getpid():
                self._loop.call_soon_threadsafe(function, *args)

    def close(self, patience_s: float = _JOIN_S) -> None:
        """Cancels what still runs, waits for it to unwind, and joins the thread. Idempotent.

        Args:
            patience_s: Longest wait, 60 s by default. A thread that takes longer (a drive hangs, a task computes) is
                left behind with a warning. It is a daemon: it does not keep the process from ending.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            already, self._closed = self._closed, True
        if already or loop is None or thread is None or self._pid != os.getpid() or sys.is_finalizing():
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(patience_s)
            if thread.is_alive():
                _log.warning("the event loop %r does not end; its thread is left behind", self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise StoreClosed("the event loop is closed")
        if sys.is_finalizing():
            raise StoreClosed("the interpreter is ending, and the event loop's thread with it")
        if self._loop is not None and self._pid != os.getpid():
            raise StoreClosed(
                "opened before a fork; open it again in the child, or start workers by 'spawn' or 'forkserver'"
            )
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            # Noted first: an interrupt while the thread starts must not leave behind a loop that nobody knows.
            self._loop, self._thread, self._pid = loop, thread, os.getpid()
            try:
                thread.start()
            except RuntimeError:  # none was started
                self._loop = self._thread = None
                loop.close()
                raise
        return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _begin(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Starts a coroutine as a task, and gives its outcome to a future.

    `asyncio.run_coroutine_threadsafe` does the same, except for a future that was cancelled: it then leaves the task's
    exception to asyncio, which reports at some later time that it was never retrieved.
    """
    task = loop.create_task(coroutine)
    hold(task)

    def cancel(future: Future[T]) -> None:
        if future.cancelled():
            with suppress(RuntimeError):  # the loop has ended, and the task with it
                loop.call_soon_threadsafe(task.cancel)

    def hand_over(task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    task.add_done_callback(hand_over)
    future.add_done_callback(cancel)


class _Visit(Generic[T]):
    """A coroutine on another loop that can be cancelled there, even before it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    async def run(self) -> T:
        if self._cancelled:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()
