"""One request and, when it is late, its doubles: the first answer wins, the others are cancelled and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from storage.fetch.hedging import Late

__all__ = ["Race", "Stewards"]

T = TypeVar("T")


class Stewards(Protocol):
    """Who decides about doubles and counts them."""

    def allows(self, late: Late, *, again: bool) -> bool:
        """Whether a late request may be doubled now."""

    def wants_line(self, late: Late) -> None:
        """It was refused twice: double it as soon as there is a token."""

    def leaves(self, late: Late) -> None:
        """It is over."""

    def doubled(self) -> None:
        """A double is sent."""

    def double_ended(self, *, won: bool) -> None:
        """A double is over."""


class Race(Generic[T]):
    """Sends one request, and doubles of it when it is late.

    The request itself runs in the caller's task, because nearly all of them are never late and a task each would cost
    them a tenth of their time. A double that wins cancels it as `asyncio.timeout` would.

    Args:
        send: Makes the request; called once more for every double.
        discard: Lets go of an answer that came second.
        late_after_s: When it is late, and late again after as much.
        max_doubles: How many.
        stewards: Budget and counters.

    Cancellation: Ends the request and its doubles before it goes on.
    """

    def __init__(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        discard: Callable[[T], Awaitable[None]],
        late_after_s: float,
        max_doubles: int,
        stewards: Stewards,
    ) -> None:
        self._send = send
        self._discard = discard
        self._late_after_s = late_after_s
        self._max_doubles = max_doubles
        self._stewards = stewards
        self._doubles: list[asyncio.Task[T]] = []
        self._winner: asyncio.Task[T] | None = None
        self._is_over = False
        self._interrupts = False
        self._is_in_line = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> T:
        """Returns the first good answer; if there is none, raises what the request itself ended with."""
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        cancelling = owner.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._late_after_s, self._late, False)
        self._interrupts = True
        try:
            answer = await self._send()
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
            if owner.uncancel() > cancelling:  # somebody else cancelled, too
                self._winner = None
                raise
        except Exception:
            if self._was_interrupted():
                owner.uncancel()
            elif not await self._any_double():
                raise
        else:
            if self._was_interrupted():  # it answered all the same
                owner.uncancel()
                self._winner = None
        finally:
            self._interrupts = False
            self._is_over = True
            self._timer.cancel()
            if self._is_in_line:
                self._stewards.leaves(self)
            if self._doubles:
                await self._end_doubles()
        return answer if self._winner is None else self._winner.result()

    def _was_interrupted(self) -> bool:
        """Whether a double has won; from now on none can."""
        self._interrupts = False
        return self._winner is not None

    def double(self) -> None:
        """Sends the request once more."""
        if self._is_over or len(self._doubles) >= self._max_doubles:
            return
        self._stewards.doubled()
        task = self._loop.create_task(self._send_double())
        task.add_done_callback(self._answered)
        self._doubles.append(task)
        if len(self._doubles) < self._max_doubles:
            self._timer = self._loop.call_later(self._late_after_s, self._late, False)

    async def _send_double(self) -> T:
        return await self._send()

    def _late(self, again: bool) -> None:
        if self._is_over:
            return
        if self._stewards.allows(self, again=again):
            self.double()
        elif again:
            self._is_in_line = True
            self._stewards.wants_line(self)
        else:
            self._timer = self._loop.call_later(self._late_after_s, self._late, True)

    def _answered(self, task: asyncio.Task[T]) -> None:
        if self._winner is not None or task.cancelled() or task.exception() is not None or not self._interrupts:
            return
        self._winner = task
        self._interrupts = False
        self._owner.cancel()

    async def _any_double(self) -> bool:
        """The request itself has failed: perhaps a double does better."""
        pending = set(self._doubles)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    self._winner = task
                    return True
        return False

    async def _end_doubles(self) -> None:
        for task in self._doubles:
            task.cancel()
        cancelled: asyncio.CancelledError | None = None
        pending = {task for task in self._doubles if not task.done()}
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                # They are being cancelled themselves, so this is not for long; leaving them behind would be a leak.
                cancelled = error
                pending = {task for task in pending if not task.done()}
        for task in self._doubles:
            self._stewards.double_ended(won=task is self._winner)
            if task is not self._winner and not task.cancelled() and task.exception() is None:
                await self._discard(task.result())
        if cancelled is not None:
            if self._winner is not None:
                await self._discard(self._winner.result())
            raise cancelled
