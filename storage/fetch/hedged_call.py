"""Sends a request and, if it is late, hedges it: the first response wins, the others are cancelled and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from concurrent_loader.storage.fetch.hedging import SlowRequest

__all__ = ["HedgeHooks", "HedgedCall"]

T = TypeVar("T")


class HedgeHooks(Protocol):
    """Callbacks of a `HedgedCall`, which decide about hedged requests and count them."""

    def may_hedge(self, *, again: bool) -> bool:
        """Takes a token for a late request; returns whether it may be hedged now."""

    def queue_for_token(self, request: SlowRequest) -> None:
        """Queues a request that was refused twice; it is hedged as soon as there is a token."""

    def leave_queue(self, request: SlowRequest) -> None:
        """Removes a completed request from the queue."""

    def hedge_sent(self) -> None:
        """Counts a hedged request that is sent."""

    def hedge_ended(self, *, won: bool, error: BaseException | None) -> None:
        """Counts a hedged request that ended; ``error`` is its own failure, if any."""


class HedgedCall(Generic[T]):
    """Sends one request, and hedges it while it is late.

    The first request runs in the caller's task, because nearly all requests are never late, and a task for each would
    cost a tenth of their time. A hedged request that wins cancels the first one as `asyncio.timeout` would.

    Args:
        send: Function that sends the request; called again for each hedged request.
        discard: Function that releases the response that arrived second.
        late_after_s: Seconds after which the request is late; it is late again after as many more.
        max_hedges: Upper bound of hedged requests.
        hooks: Budget and counters.

    Cancellation: Ends all requests before it propagates.
    """

    def __init__(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        discard: Callable[[T], Awaitable[None]],
        late_after_s: float,
        max_hedges: int,
        hooks: HedgeHooks,
    ) -> None:
        self._send = send
        self._discard = discard
        self._late_after_s = late_after_s
        self._max_hedges = max_hedges
        self._hooks = hooks
        self._hedges: list[asyncio.Task[T]] = []
        self._winner: asyncio.Task[T] | None = None
        self._first: list[T] = []  # the first request's answer
        self._is_over = False
        self._may_interrupt = False
        self._is_queued = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> T:
        """Returns the first successful response; if all fail, raises the error of the first request."""
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        cancelling = owner.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._late_after_s, self._on_late, False)
        self._may_interrupt = True
        try:
            answer = await self._send()
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
            if owner.uncancel() > cancelling:  # the caller was cancelled as well
                self._winner = None
                raise
        except Exception:
            if self._was_interrupted():
                owner.uncancel()
            elif not await self._wait_for_hedge():
                raise
        else:
            self._first.append(answer)
            if self._was_interrupted():  # the first request succeeded nevertheless
                owner.uncancel()
                self._winner = None
        finally:
            self._may_interrupt = False
            self._is_over = True
            self._timer.cancel()
            if self._is_queued:
                self._hooks.leave_queue(self)
            if self._hedges:
                await self._end_hedges()
        return answer if self._winner is None else self._winner.result()

    def _was_interrupted(self) -> bool:
        """Returns whether a hedged request has won; from now on none can."""
        self._may_interrupt = False
        return self._winner is not None

    def hedge(self) -> None:
        """Sends the request again."""
        if self._is_over or len(self._hedges) >= self._max_hedges:
            return
        self._hooks.hedge_sent()
        task = self._loop.create_task(self._send_hedge())
        task.add_done_callback(self._on_response)
        self._hedges.append(task)
        if len(self._hedges) < self._max_hedges:
            self._timer = self._loop.call_later(self._late_after_s, self._on_late, False)

    async def _send_hedge(self) -> T:
        return await self._send()

    def _on_late(self, again: bool) -> None:
        if self._is_over:
            return
        if self._hooks.may_hedge(again=again):
            self.hedge()
        elif again:
            self._is_queued = True
            self._hooks.queue_for_token(self)
        else:
            self._timer = self._loop.call_later(self._late_after_s, self._on_late, True)

    def _on_response(self, task: asyncio.Task[T]) -> None:
        if self._winner is not None or task.cancelled() or task.exception() is not None or not self._may_interrupt:
            return
        self._winner = task
        self._may_interrupt = False
        self._owner.cancel()

    async def _wait_for_hedge(self) -> bool:
        """Waits for a hedged request after the first one failed; returns whether one succeeded."""
        pending = set(self._hedges)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    self._winner = task
                    return True
        return False

    async def _end_hedges(self) -> None:
        for task in self._hedges:
            task.cancel()
        cancelled: asyncio.CancelledError | None = None
        pending = {task for task in self._hedges if not task.done()}
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                # The tasks are being cancelled and end soon; leaving them behind would be a leak.
                cancelled = error
                pending = {task for task in pending if not task.done()}
        for task in self._hedges:
            failure = None if task.cancelled() else task.exception()
            self._hooks.hedge_ended(won=task is self._winner, error=failure)
            if task is not self._winner and not task.cancelled() and failure is None:
                await self._discard(task.result())
        if cancelled is not None:
            for answer in self._first if self._winner is None else [self._winner.result()]:
                await self._discard(answer)
            raise cancelled
