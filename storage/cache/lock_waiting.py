"""Waiting for another process's lock: as long as that process gets on, and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["LockWaiter"]

_MAX_WAITERS = 64


class LockWaiter:
    """Waits for locks in threads of their own: those who wait never keep from working those who hold what they want.

    A lock whose holder dies is free at once. A holder that hangs (stopped, stuck in the kernel) keeps it: whoever waits
    gives up when there was no sign of life for ``patience_s``. The system has no way to end such a wait, so its thread
    stays, alone, until the holder goes on or ends; it then gives the lock straight back. It is a daemon, and keeps no
    process from ending; and nobody waits again for what a thread still waits for in vain.

    Args:
        patience_s: How long a holder may show no sign of life.

    Usable from one event loop.
    """

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._places = asyncio.Semaphore(_MAX_WAITERS)
        self._given_up: dict[str, Future[int | None]] = {}

    async def wait(
        self,
        name: str,
        take: Callable[[], int | None],
        give_back: Callable[[int], None],
        pulse: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Waits for a lock.

        Args:
            name: Of the lock.
            take: Blocks until the lock is there, and returns it.
            give_back: What becomes of it when nobody wants it any more; called from any thread.
            pulse: Something that changes while the holder makes progress.

        Returns:
            The lock, or None if its holder seems to hang.

        Cancellation: At any time; the thread gives the lock back when it gets it.
        """
        stuck = self._given_up.get(name)
        if stuck is not None:
            if not stuck.done():
                return None
            del self._given_up[name]
        try:
            async with asyncio.timeout(self._patience_s):
                await self._places.acquire()
        except TimeoutError:
            return None
        try:
            return await self._wait(name, take, give_back, pulse)
        finally:
            self._places.release()

    async def _wait(
        self, name: str, take: Callable[[], int | None], give_back: Callable[[int], None], pulse: Callable[[], object]
    ) -> int | None:
        waiting = _in_daemon(take)
        taken = asyncio.wrap_future(waiting)

        def discard(done: Future[int | None]) -> None:
            lock = None if done.cancelled() or done.exception() else done.result()
            if lock is not None:
                give_back(lock)

        try:
            seen = pulse()
            while True:
                await asyncio.wait({taken}, timeout=self._patience_s)
                if taken.done():
                    return taken.result()
                last, seen = seen, pulse()
                if seen == last:
                    break
        except BaseException:
            taken.cancel()
            waiting.add_done_callback(discard)
            raise
        self._given_up[name] = waiting
        taken.cancel()
        waiting.add_done_callback(discard)
        return None


def _in_daemon(call: Callable[[], int | None]) -> Future[int | None]:
    future: Future[int | None] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="cache-lock", daemon=True).start()
    return future
