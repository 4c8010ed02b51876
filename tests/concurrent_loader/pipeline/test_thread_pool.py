from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial

import pytest

from concurrent_loader.pipeline.thread_pool import DecodeThreads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Busy:
    """Keeps a thread busy until it is told to go."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self) -> bool:
        self.inside.set()
        return self.go.wait(10)


def fail() -> None:
    raise ZeroDivisionError("oh")


async def test_calls_are_made_in_threads_of_the_pool() -> None:
    threads = DecodeThreads(2)
    loop = asyncio.get_running_loop()
    names = await asyncio.gather(
        *(loop.run_in_executor(threads, lambda: threading.current_thread().name) for _ in range(20))
    )
    assert set(names) <= {"decode_0", "decode_1"}
    assert [await loop.run_in_executor(threads, divmod, 7, number) for number in (1, 2, 3)] == [(7, 0), (3, 1), (2, 1)]
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(threads, fail)
    assert await threads.join_async(10)
    assert threads.has_exited


async def test_a_pool_that_was_never_used_starts_no_thread() -> None:
    before = threading.active_count()
    threads = DecodeThreads(4)
    assert threading.active_count() == before
    assert await threads.join_async(0)


async def test_threads_may_start_ahead_of_the_first_work() -> None:
    before = threading.active_count()
    threads = DecodeThreads(3)
    for _ in range(2):
        threads.start()
        assert threading.active_count() == before + 3
    assert await asyncio.get_running_loop().run_in_executor(threads, divmod, 7, 2) == (3, 1)
    assert await threads.join_async(10)
    threads.start()
    assert threading.active_count() == before


def scarce(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    """Has the system refuse further threads of a pool."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name in {f"decode_{number}" for number in range(num_threads, 9)}:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)


async def test_where_only_some_threads_can_be_started_these_do_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scarce(monkeypatch, 1)
    threads = DecodeThreads(4)
    loop = asyncio.get_running_loop()
    assert [await loop.run_in_executor(threads, divmod, 7, number) for number in (1, 2)] == [(7, 0), (3, 1)]
    assert "only 1 of 4 threads can be started" in caplog.text
    assert await threads.join_async(10)


async def test_where_no_thread_can_be_started_that_is_said_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scarce(monkeypatch, 0)
    threads = DecodeThreads(2)
    for _ in range(2):
        threads.start()  # no work has been lost yet
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.submit(fail)
    assert await threads.join_async(10)
    assert threads.join(0)


async def test_the_lowest_turn_comes_first_and_the_earliest_call_among_equals() -> None:
    threads, busy = DecodeThreads(1), Busy()
    threads.submit_with_priority(7, busy)
    assert busy.inside.wait(10)
    made: list[str] = []
    turns = [(2, "a"), (1, "b"), (2, "c"), (0, "d"), (1, "e")]
    waiting = [threads.submit_with_priority(turn, partial(made.append, name)) for turn, name in turns]
    busy.go.set()
    await asyncio.gather(*map(asyncio.wrap_future, waiting))
    assert made == ["d", "b", "e", "a", "c"]
    assert await threads.join_async(10)


async def test_what_has_not_begun_is_cancelled() -> None:
    threads, busy = DecodeThreads(1), Busy()
    running, waiting = threads.submit(busy), threads.submit(divmod, 1, 1)
    assert busy.inside.wait(10)
    assert not await threads.join_async(0)
    with pytest.raises(CancelledError):
        waiting.result(0)
    with pytest.raises(RuntimeError):
        threads.submit(divmod, 1, 1)
    called = threading.Event()
    threads.add_exit_callback(called.set)
    assert not called.is_set()
    busy.go.set()
    assert await threads.join_async(10)
    assert running.result(0)
    assert called.wait(10)


async def test_leaving_goes_on_when_it_is_cancelled_and_is_cancelled_at_last() -> None:
    threads, busy = DecodeThreads(1), Busy()
    threads.submit(busy)
    assert busy.inside.wait(10)
    leaving = asyncio.ensure_future(threads.join_async(10))
    for _ in range(3):
        await asyncio.sleep(0)
        leaving.cancel()
    await asyncio.sleep(0)
    assert not leaving.done()
    busy.go.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert threads.has_exited


def test_a_thread_that_outlives_its_loop_disturbs_nobody() -> None:
    threads, busy = DecodeThreads(1), Busy()

    async def use() -> None:
        asyncio.get_running_loop().run_in_executor(threads, busy)
        assert busy.inside.wait(10)
        assert not await threads.join_async(0)

    asyncio.run(use())
    busy.go.set()
    threads.shutdown()
    assert threads.has_exited


@pytest.mark.processes
def test_a_thread_that_never_returns_does_not_keep_the_process() -> None:
    program = """
        import threading
        from concurrent_loader.pipeline import thread_pool
        thread_pool._EXIT_S = 0.1
        threads, inside = thread_pool.DecodeThreads(2), threading.Event()
        threads.submit(lambda: (inside.set(), threading.Event().wait()))
        assert inside.wait(10)
        print("bye")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")
