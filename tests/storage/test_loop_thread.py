from __future__ import annotations

import asyncio
import os
import threading

import pytest

from storage.errors import StoreClosed
from storage.loop_thread import LoopThread


async def _double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def test_runs_coroutines_on_a_thread_of_its_own_and_leaves_none_behind() -> None:
    before = set(threading.enumerate())
    with LoopThread("mine") as loop:
        assert loop.run(_double(21)) == 42
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"mine"}
    assert set(threading.enumerate()) == before


def test_starts_no_thread_before_it_is_used() -> None:
    before = threading.active_count()
    LoopThread().close()
    assert threading.active_count() == before


def test_close_cancels_what_still_runs_and_lets_it_unwind() -> None:
    unwound = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            unwound.set()

    loop = LoopThread()
    future = loop.submit(wait_for_ever())
    loop.run(_double(1))
    loop.close()
    assert unwound.is_set()
    assert future.cancelled() or future.done()


def test_a_closed_loop_refuses_work() -> None:
    loop = LoopThread()
    loop.run(_double(1))
    loop.close()
    loop.close()
    with pytest.raises(StoreClosed):
        loop.run(_double(1))
    loop.call_soon(print)


def test_errors_reach_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("as it is")

    with LoopThread() as loop, pytest.raises(ValueError, match="as it is"):
        loop.run(fail())


def test_a_time_out_cancels_the_coroutine() -> None:
    cancelled = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with LoopThread() as loop:
        with pytest.raises(TimeoutError):
            loop.run(wait_for_ever(), timeout_s=0.01)
        assert cancelled.wait(10)


def test_a_call_from_the_loop_itself_is_refused_instead_of_hanging() -> None:
    with LoopThread() as loop:

        async def from_inside() -> None:
            loop.run(_double(1))

        with pytest.raises(RuntimeError, match="own loop"):
            loop.run(from_inside())


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_hanging() -> None:
    with LoopThread() as loop:
        loop.run(_double(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                loop.run(_double(1))
            except StoreClosed as error:
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
