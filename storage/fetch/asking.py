"""How a GET is sent and its first byte awaited: under a deadline, with a double if it is late, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from storage.errors import DeadlineExceeded
from storage.fetch.endpoint import Endpoint
from storage.fetch.first_bytes import FirstByteTimes
from storage.fetch.hedging import HedgeBudget, HedgePolicy, Late
from storage.fetch.race import Race
from storage.fetch.stats import Counters
from storage.stores.pieces import OpenRange
from storage.stores.protocol import GetResult

__all__ = ["Asker"]

AnswerT = TypeVar("AnswerT", GetResult, OpenRange)


class Asker:
    """Sends GETs for one engine; decides about doubles and counts them.

    Args:
        endpoint: Where doubles take their places: beyond the limit if need be, because they have a budget.
        counters: Of the engine.
        policy: Of doubles; None for none.
        clock: Monotonic seconds.
    """

    def __init__(
        self, endpoint: Endpoint, counters: Counters, policy: HedgePolicy | None, clock: Callable[[], float]
    ) -> None:
        self._endpoint = endpoint
        self._counters = counters
        self._policy = policy
        self._clock = clock
        self._budget = HedgeBudget(policy) if policy is not None else None

    async def whole(self, send: Callable[[], Awaitable[GetResult]], *, within_s: float) -> GetResult:
        """Sends a request whose answer comes in one piece.

        Raises:
            DeadlineExceeded: It did not come in time.
            StorageError: What the store says.
        """
        return await self._first(send, self._waste, self._counters.small, within_s)

    async def opened(self, send: Callable[[], Awaitable[OpenRange]], *, within_s: float) -> OpenRange:
        """Sends a request and returns with the first byte of its answer; raises as `whole`."""
        return await self._first(send, OpenRange.aclose, self._counters.streams, within_s)

    async def _first(
        self,
        send: Callable[[], Awaitable[AnswerT]],
        discard: Callable[[AnswerT], Awaitable[None]],
        times: FirstByteTimes,
        within_s: float,
    ) -> AnswerT:
        self._counters.num_gets += 1
        began_s = self._clock()
        policy = self._policy
        if self._budget is not None:
            self._budget.deposit(quiet=self._is_quiet())
        try:
            async with asyncio.timeout(within_s):
                if policy is None or len(times) < policy.min_observations:
                    answer = await send()
                else:
                    late_after_s = max(times.percentile(policy.percentile), policy.floor_s)
                    answer = await Race(
                        send,
                        discard=discard,
                        late_after_s=late_after_s,
                        max_doubles=policy.max_hedges,
                        stewards=self,
                    ).run()
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {within_s:.3g} s") from error
        times.add(self._clock() - began_s)
        return answer

    async def _waste(self, result: GetResult) -> None:
        self._counters.num_bytes += len(result.data)
        self._counters.wasted_bytes += len(result.data)

    def _is_quiet(self) -> bool:
        return self._policy is None or self._endpoint.is_throttled(self._clock(), within_s=self._policy.quiet_s)

    # -- for `Race` ------------------------------------------------------------------------------------------------

    def allows(self, late: Late, *, again: bool) -> bool:
        """Whether there is a token for it, and the store is not throttling."""
        return self._budget is not None and not self._is_quiet() and self._budget.take(again=again)

    def wants_line(self, late: Late) -> None:
        """It gets the next token."""
        if self._budget is not None:
            self._budget.wait(late)

    def leaves(self, late: Late) -> None:
        """It needs none any more."""
        if self._budget is not None:
            self._budget.leave(late)

    def doubled(self) -> None:
        """Counts a double, and its place in flight."""
        self._counters.num_gets += 1
        self._counters.num_hedges += 1
        self._endpoint.enter_extra()

    def double_ended(self, *, won: bool) -> None:
        """Gives its place back."""
        self._counters.num_hedges_won += won
        self._endpoint.leave_extra()
