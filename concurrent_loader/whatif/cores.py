"""Cores that several threads share, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["Cores"]

_SAME = 1e-9  # seconds of work


class Cores:
    """Divides the cores evenly among all work under way, at most one core each. All methods are for one event loop.

    Args:
        num_cores: Number of cores.

    Attributes:
        busy_s: Core-seconds used.
    """

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._loop = asyncio.get_running_loop()
        self._jobs: list[tuple[float, int, asyncio.Future[None]]] = []  # (share at its end, number, future); a heap
        self._numbers = itertools.count()
        self._share = 0.0  # seconds that each job under way since the start has had
        self._since_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.busy_s = 0.0

    async def work(self, cpu_s: float) -> None:
        """Returns when work of so many core-seconds has been done."""
        if cpu_s <= _SAME:
            return
        self._advance()
        future = self._loop.create_future()
        heapq.heappush(self._jobs, (self._share + cpu_s, next(self._numbers), future))
        self._set_timer()
        await future

    @property
    def _rate(self) -> float:
        return min(1.0, self._num_cores / max(1, len(self._jobs)))

    def _advance(self) -> None:
        now_s = self._loop.time()
        passed_s = now_s - self._since_s
        self._share += passed_s * self._rate
        self.busy_s += passed_s * min(len(self._jobs), self._num_cores)
        self._since_s = now_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._jobs:
            self._timer = self._loop.call_later((self._jobs[0][0] - self._share) / self._rate, self._end_jobs)

    def _end_jobs(self) -> None:
        self._advance()
        while self._jobs and self._jobs[0][0] <= self._share + _SAME:
            future = heapq.heappop(self._jobs)[2]
            if not future.done():
                future.set_result(None)
        self._set_timer()
