"""Waits for another process's lock for as long as that process makes progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["LockWaiter"]

_MAX_WAITERS = 64


class LockWaiter:
    """Waits for locks on separate threads, so that waiting never blocks the threads that holders need.

    The system releases the lock of a holder that dies. A holder that hangs (stopped, or stuck in the kernel) keeps the
    lock, so the caller gives up after ``timeout_s`` without a heartbeat. Such a wait cannot be cancelled: its daemon
    thread stays until the holder continues or ends, and then releases the lock at once. Meanwhile, further calls for
    the same lock return immediately.

    Args:
        timeout_s: Longest time without a heartbeat of the holder, in seconds.

    Usable from one event loop.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(_MAX_WAITERS)
        self._given_up: dict[str, Future[int | None]] = {}

    async def wait(
        self,
        name: str,
        acquire: Callable[[], int | None],
        release: Callable[[int], None],
        heartbeat: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Waits for a lock.

        Args:
            name: Name of the lock.
            acquire: Function that blocks until it holds the lock, and returns it.
            release: Function that releases a lock that is no longer wanted; called on any thread.
            heartbeat: Function whose result changes while the holder makes progress.

        Returns:
            The lock, or None if its holder hangs.

        Cancellation: At any time; the thread releases the lock as soon as it gets it.
        """
        stuck = self._given_up.get(name)
        if stuck is not None:
            if not stuck.done():
                return None
            del self._given_up[name]
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._places.acquire()
        except TimeoutError:
            return None
        try:
            return await self._wait(name, acquire, release, heartbeat)
        finally:
            self._places.release()

    async def _wait(
        self,
        name: str,
        acquire: Callable[[], int | None],
        release: Callable[[int], None],
        heartbeat: Callable[[], object],
    ) -> int | None:
        waiting = _in_daemon(acquire)
        acquired = asyncio.wrap_future(waiting)

        def discard(done: Future[int | None]) -> None:
            lock = None if done.cancelled() or done.exception() else done.result()
            if lock is not None:
                release(lock)

        try:
            seen = heartbeat()
            while True:
                await asyncio.wait({acquired}, timeout=self.timeout_s)
                if acquired.done():
                    return acquired.result()
                last, seen = seen, heartbeat()
                if seen == last:
                    break
        except BaseException:
            acquired.cancel()
            waiting.add_done_callback(discard)
            raise
        self._given_up[name] = waiting
        acquired.cancel()
        waiting.add_done_callback(discard)
        return None


def _in_daemon(call: Callable[[], int | None]) -> Future[int | None]:
    future: Future[int | None] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="cache-lock", daemon=True).start()
    return future
