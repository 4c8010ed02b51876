"""Sends a GET and waits for its first byte: under a deadline, hedged if it is late, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from concurrent_loader.storage.errors import DeadlineExceeded, Throttled
from concurrent_loader.storage.fetch.endpoint import Endpoint
from concurrent_loader.storage.fetch.hedged_call import HedgedCall
from concurrent_loader.storage.fetch.hedging import HedgeBudget, HedgePolicy, SlowRequest
from concurrent_loader.storage.fetch.stats import Counters, FirstByteTimes
from concurrent_loader.storage.stores.body_stream import OpenRange
from concurrent_loader.storage.stores.objects import GetResult

__all__ = ["RequestSender"]

ResponseT = TypeVar("ResponseT", GetResult, OpenRange)


class RequestSender:
    """Sends the GETs of one engine, hedges late ones, and counts all of them.

    Args:
        endpoint: Endpoint in which hedged requests take their places; they may exceed its limit, as their budget is
            small.
        counters: Counters of the engine.
        policy: Rules for hedged requests; None to send none.
        clock: Source of monotonic seconds.
    """

    def __init__(
        self, endpoint: Endpoint, counters: Counters, policy: HedgePolicy | None, clock: Callable[[], float]
    ) -> None:
        self._endpoint = endpoint
        self._counters = counters
        self._policy = policy
        self._clock = clock
        self._budget = HedgeBudget(policy) if policy is not None else None

    async def get(self, send: Callable[[], Awaitable[GetResult]], *, within_s: float) -> GetResult:
        """Sends a request and returns its whole response.

        Raises:
            DeadlineExceeded: The response did not arrive in time.
            StorageError: The store reported an error.
        """
        return await self._send(send, self._waste, self._counters.small, within_s)

    async def open_stream(self, send: Callable[[], Awaitable[OpenRange]], *, within_s: float) -> OpenRange:
        """Sends a request and returns at the first byte of its body; raises the errors of `get`."""
        return await self._send(send, OpenRange.aclose, self._counters.streams, within_s)

    async def _send(
        self,
        send: Callable[[], Awaitable[ResponseT]],
        discard: Callable[[ResponseT], Awaitable[None]],
        times: FirstByteTimes,
        within_s: float,
    ) -> ResponseT:
        self._counters.num_gets += 1
        began_s = self._clock()
        policy = self._policy
        if self._budget is not None:
            self._budget.deposit(quiet=self._is_quiet())
        try:
            async with asyncio.timeout(within_s):
                if policy is None or len(times) < policy.min_observations:
                    response = await send()
                else:
                    late_after_s = max(times.percentile(policy.percentile), policy.floor_s)
                    response = await HedgedCall(
                        send,
                        discard=discard,
                        late_after_s=late_after_s,
                        max_hedges=policy.max_hedges,
                        hooks=self,
                    ).run()
        except TimeoutError as error:
            raise DeadlineExceeded(f"no response within {within_s:.3g} s") from error
        times.add(self._clock() - began_s)
        return response

    async def _waste(self, result: GetResult) -> None:
        self._counters.num_bytes += len(result.data)
        self._counters.wasted_bytes += len(result.data)

    def _is_quiet(self) -> bool:
        return self._policy is None or self._endpoint.is_throttled(self._clock(), within_s=self._policy.quiet_s)

    # -- for `HedgedCall` ------------------------------------------------------------------------------------------

    def may_hedge(self, *, again: bool) -> bool:
        """Takes a token, unless the store is throttling; returns whether a late request may be hedged."""
        return self._budget is not None and not self._is_quiet() and self._budget.take(again=again)

    def queue_for_token(self, request: SlowRequest) -> None:
        """Queues a late request for the next token."""
        if self._budget is not None:
            self._budget.enqueue(request)

    def leave_queue(self, request: SlowRequest) -> None:
        """Removes a completed request from the queue."""
        if self._budget is not None:
            self._budget.leave_queue(request)

    def hedge_sent(self) -> None:
        """Counts a hedged request, and takes its place in flight."""
        self._counters.num_gets += 1
        self._counters.num_hedges += 1
        self._endpoint.enter_extra()

    def hedge_ended(self, *, won: bool, error: BaseException | None) -> None:
        """Releases the place of a hedged request, and notes whether the store throttled it."""
        if isinstance(error, Throttled):
            self._counters.num_throttled += 1
            self._endpoint.throttled(self._clock())
        self._counters.num_hedges_won += won
        self._endpoint.leave_extra()
