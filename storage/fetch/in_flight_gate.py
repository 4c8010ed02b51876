"""Limits the requests and bytes in flight, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["InFlightGate"]


class InFlightGate:
    """Admits requests in order of arrival while both their number and their bytes stay within limits.

    A request larger than the byte limit is admitted alone: it runs slowly instead of waiting forever.

    Args:
        max_requests: Upper bound of the requests in flight.
        max_bytes: Upper bound of the announced bytes in flight.

    Cancellation: A cancelled waiter leaves the queue, and releases a place that it was just granted.
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
        """Upper bound of the requests in flight."""
        return self._max_requests

    @property
    def num_requests(self) -> int:
        """Number of requests in flight."""
        return self._num_requests

    @property
    def num_bytes(self) -> int:
        """Number of bytes announced by the requests in flight."""
        return self._num_bytes

    def _fits(self, num_bytes: int) -> bool:
        if self._num_requests == 0:
            return True
        return self._num_requests < self._max_requests and self._num_bytes + num_bytes <= self._max_bytes

    def try_enter(self, num_bytes: int) -> bool:
        """Takes a place if one is free and no request waits; returns whether `leave` must be called."""
        if self._waiting or not self._fits(num_bytes):
            return False
        self._take(num_bytes)
        return True

    async def enter(self, num_bytes: int) -> None:
        """Waits for a place, which `leave` releases."""
        if self.try_enter(num_bytes):
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
                if entry in self._waiting:  # absent if its turn came between the cancellation and this line
                    self._waiting.remove(entry)
                self._wake()
            raise

    def _take(self, num_bytes: int) -> None:
        self._num_requests += 1
        self._num_bytes += num_bytes

    def leave(self, num_bytes: int) -> None:
        """Releases a place."""
        self._num_requests -= 1
        self._num_bytes -= num_bytes
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            place, num_bytes = self._waiting.popleft()
            if not place.cancelled():
                self._take(num_bytes)
                place.set_result(None)
