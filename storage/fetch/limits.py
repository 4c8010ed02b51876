"""How many requests and bytes may be in flight: a first-come, first-served gate."""

from __future__ import annotations

import asyncio
from collections import deque

from storage.errors import ConfigurationError

__all__ = ["InFlightGate"]


class InFlightGate:
    """Admits requests in order of arrival while both their number and their bytes stay within bounds.

    A request larger than the byte bound is admitted alone: it works, slowly, instead of waiting for ever.

    Args:
        max_requests: At most this many at once.
        max_bytes: At most this many announced bytes at once.

    Cancellation: A cancelled waiter leaves the queue, and gives back what it had just been granted.
    """

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        if max_requests < 1 or max_bytes < 1:
            raise ConfigurationError("in_flight and bytes_in_flight must be positive", got=(max_requests, max_bytes))
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_requests = 0
        self._num_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def max_requests(self) -> int:
        """As given."""
        return self._max_requests

    @property
    def num_requests(self) -> int:
        """Requests admitted and not yet done."""
        return self._num_requests

    @property
    def num_bytes(self) -> int:
        """Bytes announced by them."""
        return self._num_bytes

    def _fits(self, num_bytes: int) -> bool:
        if self._num_requests == 0:
            return True
        return self._num_requests < self._max_requests and self._num_bytes + num_bytes <= self._max_bytes

    def enter_at_once(self, num_bytes: int) -> bool:
        """Takes a place if there is one and nobody waits for it; whoever got one gives it back by `leave`."""
        if self._waiting or not self._fits(num_bytes):
            return False
        self._take(num_bytes)
        return True

    async def enter(self, num_bytes: int) -> None:
        """Waits for a place; whoever got one gives it back by `leave`."""
        if self.enter_at_once(num_bytes):
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (place, num_bytes)
        self._waiting.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(num_bytes)
            else:
                if entry in self._waiting:  # not if its turn came between being cancelled and running again
                    self._waiting.remove(entry)
                self._wake()
            raise

    def _take(self, num_bytes: int) -> None:
        self._num_requests += 1
        self._num_bytes += num_bytes

    def leave(self, num_bytes: int) -> None:
        """Gives a place back."""
        self._num_requests -= 1
        self._num_bytes -= num_bytes
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            place, num_bytes = self._waiting.popleft()
            if not place.cancelled():
                self._take(num_bytes)
                place.set_result(None)
