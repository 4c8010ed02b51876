"""Lets the thread of an importer wait for coroutines on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from concurrent_loader.storage.errors import StoreClosed

__all__ = ["LoopCalls"]

T = TypeVar("T")


class LoopCalls:
    """Coroutines that run on one event loop and are awaited on another thread.

    Args:
        loop: Event loop of the store.

    Thread-safety: `submit` and `wait` may be called from any thread except the loop's; `stop` from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self._stopped = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine on the loop.

        Raises:
            StoreClosed: `stop` was called.
        """
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise StoreClosed("the import was cancelled")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._running.add(future)
        future.add_done_callback(self._forget)
        return future

    def wait(self, future: Future[T]) -> T:
        """Returns the result of a coroutine.

        Raises:
            StoreClosed: The coroutine was cancelled.
        """
        try:
            return future.result()
        except CancelledError:
            raise StoreClosed("the import was cancelled") from None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, and returns its result."""
        return self.wait(self.submit(coroutine))

    def stop(self) -> None:
        """Cancels the running coroutines, and refuses new ones, so that the waiting thread continues."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for future in running:
            future.cancel()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._running.discard(future)
