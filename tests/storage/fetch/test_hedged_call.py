"""A late request and its doubles, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.fetch.hedged_call import HedgedCall
from concurrent_loader.storage.fetch.hedging import SlowRequest
from concurrent_loader.storage.virtual_time import run_in_virtual_time

Answer = tuple[float, str | Exception]


class Sender:
    """Answers after so many seconds, the first request first."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.num_sent = self.num_open = 0
        self.discarded: list[str] = []

    async def send(self) -> str:
        seconds, answer = self.answers[self.num_sent]
        self.num_sent += 1
        self.num_open += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.num_open -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def discard(self, answer: str) -> None:
        self.discarded.append(answer)


class Hooks:
    """Allows what the test says."""

    def __init__(self, *allowed: bool) -> None:
        self.allowed = list(allowed)
        self.line: list[SlowRequest] = []
        self.ended: list[bool] = []
        self.num_hedges = 0

    def may_hedge(self, *, again: bool) -> bool:
        return self.allowed.pop(0) if self.allowed else True

    def queue_for_token(self, request: SlowRequest) -> None:
        self.line.append(request)

    def leave_queue(self, request: SlowRequest) -> None:
        self.line.remove(request)

    def hedge_sent(self) -> None:
        self.num_hedges += 1

    def hedge_ended(self, *, won: bool, error: BaseException | None) -> None:
        self.ended.append(won)


def race(sender: Sender, hooks: Hooks, *, max_hedges: int = 2) -> HedgedCall[str]:
    return HedgedCall(sender.send, discard=sender.discard, late_after_s=1.0, max_hedges=max_hedges, hooks=hooks)


def timed(main: Callable[[], Awaitable[object]]) -> tuple[object, float]:
    async def run() -> tuple[object, float]:
        try:
            outcome: object = await main()
        except (ConnectionFailed, TimeoutError) as error:
            outcome = error
        assert len(asyncio.all_tasks()) == 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return outcome, asyncio.get_running_loop().time()

    return run_in_virtual_time(run())


RESET = ConnectionFailed("reset")


@pytest.mark.parametrize(
    ("answers", "allowed", "outcome", "seconds", "num_sent", "ended"),
    [
        pytest.param([(0.5, "a")], [], "a", 0.5, 1, [], id="in time"),
        pytest.param([(9, "a"), (0.5, "b")], [], "b", 1.5, 2, [True], id="a double wins"),
        pytest.param([(1.2, "a"), (0.5, "b")], [], "a", 1.2, 2, [False], id="a double loses"),
        pytest.param([(9, "a"), (9, "b"), (0.5, "c")], [], "c", 2.5, 3, [False, True], id="the second double wins"),
        pytest.param([(1.2, RESET), (0.5, "b")], [], "b", 1.5, 2, [True], id="the request fails, its double answers"),
        pytest.param([(1.6, "a"), (0.5, RESET)], [], "a", 1.6, 2, [False], id="a double that fails does not matter"),
        pytest.param([(1.2, RESET), (0.5, RESET)], [], RESET, 1.5, 2, [False], id="both fail"),
        pytest.param([(9, "a"), (0.5, "b")], [False, True], "b", 2.5, 2, [True], id="allowed the second time"),
        pytest.param([(9, "a")], [False, False], "a", 9, 1, [], id="never allowed"),
        pytest.param([(0.5, RESET)], [], RESET, 0.5, 1, [], id="fails in time"),
    ],
)
def test_the_first_good_answer_wins(
    answers: list[Answer],
    allowed: list[bool],
    outcome: object,
    seconds: float,
    num_sent: int,
    ended: list[bool],
) -> None:
    sender, hooks = Sender(*answers), Hooks(*allowed)
    assert timed(lambda: race(sender, hooks).run()) == (outcome, pytest.approx(seconds))
    assert (sender.num_sent, sender.num_open) == (num_sent, 0)
    assert (hooks.ended, hooks.num_hedges, hooks.line) == (ended, num_sent - 1, [])


def test_two_answers_at_once_are_one_answer_and_one_thing_to_discard() -> None:
    for first_s in (1.5, 1.5 + 1e-12, 1.5 - 1e-12):
        sender, hooks = Sender((first_s, "a"), (0.5, "b")), Hooks()
        outcome, _ = timed(lambda sender=sender, hooks=hooks: race(sender, hooks).run())  # type: ignore[misc]
        assert outcome in ("a", "b")
        assert sender.discarded in ([], ["b"] if outcome == "a" else [])
        assert sender.num_open == 0


def test_who_waits_in_line_is_doubled_when_told() -> None:
    sender, hooks = Sender((9, "a"), (0.5, "b")), Hooks(False, False)

    async def main() -> str:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(race(sender, hooks).run())
            await asyncio.sleep(3)
            hooks.line[0].hedge()
        return task.result()

    assert timed(main) == ("b", pytest.approx(3.5))


@pytest.mark.parametrize("cancel_s", [0.5, 1.2, 1.5, 2.2])
def test_cancelling_ends_all_of_them(cancel_s: float) -> None:
    sender, hooks = Sender((9, "a"), (9, "b"), (9, "c")), Hooks()

    async def main() -> None:
        task = asyncio.create_task(race(sender, hooks).run())
        await asyncio.sleep(cancel_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    assert timed(main) == (None, pytest.approx(cancel_s))
    assert sender.num_open == 0


def test_cancelling_just_as_a_double_wins_is_a_cancellation() -> None:
    sender, hooks = Sender((9, "a"), (0.5, "b")), Hooks()

    async def main() -> None:
        task = asyncio.create_task(race(sender, hooks).run())
        asyncio.get_running_loop().call_at(1.5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    assert timed(main) == (None, pytest.approx(1.5))
    assert sender.num_open == 0
    assert sender.discarded in ([], ["b"])


def test_a_timeout_around_it_is_a_timeout() -> None:
    sender, hooks = Sender((9, "a"), (9, "b"), (9, "c")), Hooks()

    async def main() -> None:
        async with asyncio.timeout(1.5):
            await race(sender, hooks).run()

    outcome, seconds = timed(main)
    assert isinstance(outcome, TimeoutError)
    assert (seconds, sender.num_open) == (pytest.approx(1.5), 0)


def test_a_double_that_is_slow_to_end_is_waited_for_even_when_cancelled() -> None:
    """The first request's answer, which nobody gets, is given back."""
    ended, discarded = False, []

    async def send() -> str:
        nonlocal ended
        try:
            await asyncio.sleep(1.2)
            return "a"
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            ended = True
            raise

    async def main() -> None:
        hooks = Hooks()

        async def discard(answer: str) -> None:
            discarded.append(answer)

        running: Coroutine[object, object, str] = HedgedCall(
            send, discard=discard, late_after_s=1.0, max_hedges=1, hooks=hooks
        ).run()
        task = asyncio.create_task(running)
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert timed(main) == (None, pytest.approx(3.2))
    assert (ended, discarded) == (True, ["a"])
