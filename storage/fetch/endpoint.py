"""State shared by all readers of one endpoint in this process: the limit of requests in flight, the retry budget."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from weakref import WeakSet, WeakValueDictionary

from concurrent_loader.storage.fetch.concurrency_control import LimitController
from concurrent_loader.storage.fetch.retry import RetryBudget

__all__ = ["Endpoint", "Member"]


class Member:
    """A reader's membership in an endpoint, which ends when this object is deleted.

    Attributes:
        bound: Number of requests that the reader wants in flight; None to leave the number to the endpoint.
    """

    __slots__ = ("__weakref__", "bound")

    def __init__(self, bound: int | None) -> None:
        self.bound = bound


class _Waiter:
    """A request that waits for a place, on any event loop."""

    __slots__ = ("future", "generation", "granted", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.granted = False
        self.generation = 0

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Endpoint:
    """Places in flight at one endpoint, first come, first served, and the retry budget.

    An endpoint lives as long as a reader holds it; see `of`.

    Thread-safety: All methods may be called from any thread, because readers run on event loops of several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control = LimitController()
        self._budget = RetryBudget()
        self._members: WeakSet[Member] = WeakSet()
        self._num_members = 0
        self._active = 0
        self._waiting: deque[_Waiter] = deque()
        self._throttled_s: float | None = None
        self._last_activity_s = -math.inf

    @classmethod
    def of(cls, name: str) -> Endpoint:
        """Returns the endpoint of a name, one per process."""
        with _registry.lock:
            found = _registry.endpoints.get(name)
            if found is None:
                found = _registry.endpoints[name] = cls()
            return found

    @property
    def limit(self) -> int:
        """Number of requests that may be in flight now."""
        return self._control.limit

    @property
    def num_active(self) -> int:
        """Number of requests in flight now."""
        return self._active

    @property
    def last_activity_s(self) -> float:
        """Time of the last bytes, or of the last complete or final response, by the readers' clock."""
        return self._last_activity_s

    def record_activity(self, now_s: float) -> None:
        """Records that the endpoint has sent something."""
        self._last_activity_s = now_s  # called for every piece; assigning one attribute needs no lock

    def join(self, bound: int | None) -> Member:
        """Adds a reader, which leaves when it drops the result."""
        member = Member(bound)
        with self._lock:
            self._members.add(member)
            self._count_members()
            woken = self._admit_waiting()
        self._wake(woken)
        return member

    def try_enter(self) -> int | None:
        """Takes a place if one is free and no request waits; returns the generation for `leave`, or None."""
        with self._lock:
            return self._take()

    async def enter(self) -> int:
        """Waits for a place.

        Returns:
            Generation of the limit, for `leave`.

        Cancellation: A cancelled waiter leaves the queue, and releases a place that it was just granted.
        """
        with self._lock:
            generation = self._take()
            if generation is not None:
                return generation
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            with self._lock:
                if waiter.granted:
                    self._active -= 1
                else:
                    self._waiting.remove(waiter)
                woken = self._admit_waiting()
            self._wake(woken)
            raise
        return waiter.generation

    def enter_extra(self) -> None:
        """Takes a place for a hedged request, without waiting; it may exceed the limit, as hedging has a budget."""
        with self._lock:
            self._active += 1

    def leave_extra(self) -> None:
        """Releases the place of a hedged request."""
        with self._lock:
            self._active -= 1
            woken = self._admit_waiting()
        self._wake(woken)

    def leave(self, generation: int, *, now_s: float, num_bytes: int, answer_s: float) -> None:
        """Releases a place and reports the outcome of its request; see `LimitController.finished`."""
        with self._lock:
            bound = self._active >= self._control.limit
            self._active -= 1
            if num_bytes:
                self._budget.deposit()
            if len(self._members) != self._num_members:
                self._count_members()
            self._control.finished(now_s, generation=generation, num_bytes=num_bytes, answer_s=answer_s, bound=bound)
            woken = self._admit_waiting()
        self._wake(woken)

    def throttled(self, now_s: float) -> None:
        """Reports that the store asked for fewer requests, or did not respond in time."""
        with self._lock:
            self._throttled_s = now_s
            self._control.throttled(now_s)

    def is_throttled(self, now_s: float, *, within_s: float) -> bool:
        """Returns whether the store throttled within the last ``within_s`` seconds."""
        return self._throttled_s is not None and now_s - self._throttled_s < within_s

    def withdraw(self) -> bool:
        """Takes a token from the retry budget; returns False if no token is left."""
        with self._lock:
            return self._budget.withdraw()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _count_members(self) -> None:
        bounds = [member.bound for member in self._members]
        self._num_members = len(bounds)
        fixed = sum(bound for bound in bounds if bound is not None)
        self._control.configure(fixed=fixed, num_auto=sum(bound is None for bound in bounds))

    def _take(self) -> int | None:
        if self._waiting or self._active >= self._control.limit:
            return None
        self._active += 1
        return self._control.generation

    def _admit_waiting(self) -> list[_Waiter]:
        woken: list[_Waiter] = []
        while self._waiting and self._active < self._control.limit:
            waiter = self._waiting.popleft()
            waiter.granted = True
            waiter.generation = self._control.generation
            self._active += 1
            woken.append(waiter)
        return woken

    # -- without the lock ------------------------------------------------------------------------------------------

    def _wake(self, woken: list[_Waiter]) -> None:
        for waiter in woken:
            if waiter.loop is _running_loop():
                waiter.wake()
                continue
            try:
                waiter.loop.call_soon_threadsafe(waiter.wake)
            except RuntimeError:
                # The waiter's event loop was closed, so the place would stay taken forever.
                self.leave_extra()


class _Registry:
    """Endpoints by name. An entry disappears with the last reader that holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.endpoints: WeakValueDictionary[str, Endpoint] = WeakValueDictionary()


_registry = _Registry()


def _forget() -> None:
    # A forked child has no requests in flight, and a thread of the parent may have held a lock.
    global _registry
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
