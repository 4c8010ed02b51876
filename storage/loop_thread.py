"""Runs an event loop on its own thread: the only bridge from synchronous callers to the asyncio code."""

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

from concurrent_loader.storage.errors import StorageError, StoreClosed
from concurrent_loader.storage.fork_safety import leak_reference, register_fork_handler
from concurrent_loader.storage.redaction import shorten_traceback

__all__ = ["LoopThread", "hold"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_JOIN_S = 60.0

_held: set[asyncio.Task[Any]] = set()


def hold(task: asyncio.Task[Any]) -> None:
    """Keeps a task alive until it ends.

    An event loop has only weak references to its tasks. The garbage collector would destroy a task, instead of
    cancelling it, if only the task itself and an abandoned iterator refer to the object that it waits for.
    """
    _held.add(task)
    task.add_done_callback(_held.discard)


class LoopThread:
    """An asyncio event loop on its own thread, which the first call starts.

    Thread-safety: All methods may be called from any thread except the loop's own. In a forked process they raise
    `StoreClosed` instead of hanging, because threads do not survive a fork.

    Args:
        name: Name of the thread in debuggers.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import LoopThread
        >>> with LoopThread() as loop:
        ...     loop.run(asyncio.sleep(0, result=5))
        5
    """

    def __init__(self, name: str = "storage-loop") -> None:
        self._name = name
        # Re-entrant, because the garbage collector may finalize objects that need the lock while this thread holds it.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Leaks the parent's loop, because closing it would change the parent's epoll set."""
        self._lock = threading.RLock()
        leak_reference((self._loop, self._thread))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine on the loop; cancelling the future cancels it there.

        Raises:
            StoreClosed: The loop was closed, this process was forked, or the interpreter is exiting.
            RuntimeError: The system cannot start another thread; a later call tries again.
            OSError: The system has no descriptors left.
        """
        with self._lock:  # a coroutine submitted before `close` either runs or is cancelled
            try:
                loop = self._running_loop()
            except BaseException:
                coroutine.close()
                raise
            future: Future[T] = Future()
            loop.call_soon_threadsafe(_begin, loop, coroutine, future)
            return future

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Runs a coroutine and returns its result; a KeyboardInterrupt or a timeout cancels the coroutine.

        Raises:
            StoreClosed: The loop was closed, this process was forked, or the interpreter is exiting.
            TimeoutError: The coroutine took longer than ``timeout_s``.
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
                shorten_traceback(error, num_frames=2)
            raise

    async def reach(self, coroutine: Coroutine[Any, Any, T], dispose: Callable[[T], object] = lambda result: None) -> T:
        """Runs a coroutine on this thread's loop, and awaits it on the caller's loop.

        Args:
            coroutine: Coroutine to run.
            dispose: Function that releases a result that arrived after the caller was cancelled; called on this
                thread's loop.

        Raises:
            StoreClosed: The loop is closed, was closed meanwhile, or belongs to the parent of a fork.

        Cancellation: Is passed to the coroutine, and raised after the coroutine has ended.
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
                    continue  # the first cancellation is raised below
            if not waiting.cancelled() and waiting.exception() is None:
                self.call_soon(dispose, waiting.result())
            raise
        finally:
            coroutine.close()  # it has ended, or was cancelled before it started

    def call_soon(self, function: Any, *args: Any) -> None:
        """Calls a function on the loop; does nothing if the loop is closed."""
        with self._lock:
            if self._loop is not None and not self._closed and self._pid == os.getpid():
                self._loop.call_soon_threadsafe(function, *args)

    def close(self, timeout_s: float = _JOIN_S) -> None:
        """Cancels running tasks, waits for them to end, and joins the thread. Idempotent.

        Args:
            timeout_s: Longest wait, 60 s by default. A slower thread (a drive hangs, a task computes) is abandoned with
                a warning. It is a daemon thread, which does not prevent the process from exiting.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            already, self._closed = self._closed, True
        if already or loop is None or thread is None or self._pid != os.getpid() or sys.is_finalizing():
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                _log.warning("the event loop %r does not end; its thread is abandoned", self._name)

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
            raise StoreClosed("the interpreter is exiting, and the event loop's thread with it")
        if self._loop is not None and self._pid != os.getpid():
            raise StoreClosed(
                "opened before a fork; open it again in the child, or start workers by 'spawn' or 'forkserver'"
            )
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            # Stored first, so that an interrupt during the start of the thread cannot leak the loop.
            self._loop, self._thread, self._pid = loop, thread, os.getpid()
            try:
                thread.start()
            except RuntimeError:  # the thread was not started
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
    """Starts a coroutine as a task, and passes its outcome to a future.

    `asyncio.run_coroutine_threadsafe` is not used, because it ignores the exception of a task whose future was
    cancelled; asyncio then reports later that the exception was never retrieved.
    """
    task = loop.create_task(coroutine)
    hold(task)

    def cancel(future: Future[T]) -> None:
        if future.cancelled():
            with suppress(RuntimeError):  # the loop has ended, and with it the task
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
    """A coroutine on another loop, which can be cancelled even before it starts."""

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
