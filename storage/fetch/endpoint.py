"""What all readers of one endpoint in this process share: the limit of requests in flight and the retry budget."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from weakref import WeakSet, WeakValueDictionary

from storage.fetch.limit_control import LimitController
from storage.fetch.retry import RetryBudget

__all__ = ["Endpoint", "Member"]


class Member:
    """A reader's stake in an endpoint; it ends with the object.

    Attributes:
        bound: Requests that the reader wants in flight; None if it leaves the number to the endpoint.
    """

    __slots__ = ("__weakref__", "bound")

    def __init__(self, bound: int | None) -> None:
        self.bound = bound


class _Waiter:
    """Somebody who waits for a place, on any event loop."""

    __slots__ = ("future", "generation", "granted", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.granted = False
        self.generation = 0

    def tell(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Endpoint:
    """Places in flight at one endpoint, first come, first served, and its retry budget.

    It lives as long as a reader holds it: see `of`.

    Thread-safety: All methods; readers live on event loops of several threads.
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
        self._heard_s = -math.inf

    @classmethod
    def of(cls, name: str) -> Endpoint:
        """The one of that name in this process."""
        with _registry.lock:
            found = _registry.endpoints.get(name)
            if found is None:
                found = _registry.endpoints[name] = cls()
            return found

    @property
    def limit(self) -> int:
        """Requests that may be in flight at the moment."""
        return self._control.limit

    @property
    def num_active(self) -> int:
        """Requests in flight."""
        return self._active

    @property
    def heard_s(self) -> float:
        """When anything last came from it, by its readers' clock: bytes, or an answer that was complete or final."""
        return self._heard_s

    def heard(self, now_s: float) -> None:
        """Something has come from it: it is alive."""
        self._heard_s = now_s  # one store of one word: threads need no lock for it, bytes come often

    def join(self, bound: int | None) -> Member:
        """Adds a reader; it leaves when it drops the result."""
        member = Member(bound)
        with self._lock:
            self._members.add(member)
            self._count_members()
            woken = self._admit_waiting()
        self._tell(woken)
        return member

    def enter_at_once(self) -> int | None:
        """Takes a place if there is one and nobody waits for it; returns the generation to `leave` with, or None."""
        with self._lock:
            return self._take()

    async def enter(self) -> int:
        """Waits for a place.

        Returns:
            The generation to `leave` with.

        Cancellation: A cancelled waiter leaves the queue, and gives back what it had just been granted.
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
            self._tell(woken)
            raise
        return waiter.generation

    def enter_extra(self) -> None:
        """Takes a place without waiting, beyond the limit if need be: for hedges, which have a budget of their own."""
        with self._lock:
            self._active += 1

    def leave_extra(self) -> None:
        """Gives that place back."""
        with self._lock:
            self._active -= 1
            woken = self._admit_waiting()
        self._tell(woken)

    def leave(self, generation: int, *, now_s: float, num_bytes: int, answer_s: float) -> None:
        """Gives a place back, and says what came of it; see `LimitController.finished`."""
        with self._lock:
            bound = self._active >= self._control.limit
            self._active -= 1
            if num_bytes:
                self._budget.deposit()
            if len(self._members) != self._num_members:
                self._count_members()
            self._control.finished(now_s, generation=generation, num_bytes=num_bytes, answer_s=answer_s, bound=bound)
            woken = self._admit_waiting()
        self._tell(woken)

    def throttled(self, now_s: float) -> None:
        """The store asked for fewer requests, or did not answer in time."""
        with self._lock:
            self._throttled_s = now_s
            self._control.throttled(now_s)

    def is_throttled(self, now_s: float, *, within_s: float) -> bool:
        """Whether that happened within the last seconds."""
        return self._throttled_s is not None and now_s - self._throttled_s < within_s

    def withdraw(self) -> bool:
        """Whether the retry budget allows one more."""
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

    # -- without it ------------------------------------------------------------------------------------------------

    def _tell(self, woken: list[_Waiter]) -> None:
        for waiter in woken:
            if waiter.loop is _running_loop():
                waiter.tell()
                continue
            try:
                waiter.loop.call_soon_threadsafe(waiter.tell)
            except RuntimeError:
                # That loop has been closed over its waiter's head: nobody is left to use the place.
                self.leave_extra()


class _Registry:
    """Endpoints by name. An entry is gone with the last reader that holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.endpoints: WeakValueDictionary[str, Endpoint] = WeakValueDictionary()


_registry = _Registry()


def _forget() -> None:
    # A forked child has none of its parent's requests in flight, and the parent may have held a lock.
    global _registry
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
