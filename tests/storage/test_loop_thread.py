from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import threading

import pytest

from concurrent_loader.storage.errors import StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread


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


def test_close_takes_no_longer_than_its_bound_when_the_loop_computes(caplog: pytest.LogCaptureFixture) -> None:
    go, stuck = threading.Event(), threading.Event()

    def compute() -> None:
        stuck.set()
        go.wait()

    loop = LoopThread("computing")
    loop.run(_double(1))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "computing")
    loop.call_soon(compute)
    assert stuck.wait(10)
    loop.close(0.01)
    assert thread.is_alive()
    assert "'computing' does not end; its thread is abandoned" in caplog.text
    go.set()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_that_comes_after_a_cancellation_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()

    async def fail_when_cancelled() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it unwinds")

    loop = LoopThread()
    future = loop.submit(fail_when_cancelled())
    assert begun.wait(10)
    future.cancel()
    loop.run(_double(1))
    loop.run(_double(1))  # the task has ended
    del future
    gc.collect()
    loop.close()
    assert not caplog.records


def test_a_call_while_the_lock_is_held_does_not_hang() -> None:
    # The garbage collector may finalize an iterator between any two instructions of the thread that holds the lock.
    loop = LoopThread()
    with loop._lock:
        assert loop.run(_double(1), timeout_s=10) == 2
        loop.call_soon(print)
    loop.close()


def test_a_closed_loop_refuses_work() -> None:
    loop = LoopThread()
    loop.run(_double(1))
    loop.close()
    loop.close()
    with pytest.raises(StoreClosed):
        loop.run(_double(1))
    loop.call_soon(print)


def test_where_no_thread_can_be_started_each_call_says_so_and_a_later_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = LoopThread()
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refused)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                loop.run(_double(1), timeout_s=10)
    assert loop.run(_double(1), timeout_s=10) == 2
    loop.close()


def test_an_interrupt_while_the_thread_starts_leaves_no_loop_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    loop = LoopThread("mine")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        loop.run(_double(1), timeout_s=10)
    assert loop.run(_double(1), timeout_s=10) == 2
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"mine"}
    loop.close()
    assert set(threading.enumerate()) == before


def test_a_loop_that_never_got_a_thread_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    loop = LoopThread()
    monkeypatch.setattr(asyncio, "new_event_loop", refused)
    with pytest.raises(OSError, match="Too many open files"):
        loop.run(_double(1), timeout_s=10)
    loop.close()


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


@pytest.mark.processes
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


# -- from another loop -------------------------------------------------------------------------------------------------


async def test_a_coroutine_on_another_loop_is_awaited() -> None:
    async def there() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    with LoopThread() as loop:
        assert await loop.reach(there()) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await loop.reach(fail())


async def fail() -> None:
    raise ZeroDivisionError


async def test_on_its_own_loop_it_is_simply_awaited() -> None:
    with LoopThread() as loop:

        async def there() -> int:
            async def inner() -> int:
                return 7

            return await loop.reach(inner())

        assert await asyncio.wrap_future(loop.submit(there())) == 7


async def test_cancelling_the_caller_cancels_the_visit_and_waits_for_it() -> None:
    began, ended = threading.Event(), threading.Event()

    async def there() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.set()

    with LoopThread() as loop:
        visit = asyncio.ensure_future(loop.reach(there()))
        await asyncio.to_thread(began.wait)
        visit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit
        assert ended.is_set()


async def test_a_result_that_comes_too_late_is_disposed_of() -> None:
    began, disposed = threading.Event(), []

    async def there() -> str:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "too late"
        raise AssertionError

    with LoopThread() as loop:
        visit = asyncio.ensure_future(loop.reach(there(), disposed.append))
        await asyncio.to_thread(began.wait)
        visit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit
        await loop.reach(asyncio.sleep(0))
        assert disposed == ["too late"]


async def test_a_visit_that_has_not_begun_never_does() -> None:
    begun = []

    async def there() -> None:
        begun.append(True)

    release = threading.Event()
    with LoopThread() as loop:
        loop.call_soon(lambda: None)
        await loop.reach(asyncio.sleep(0))
        loop.call_soon(release.wait)  # so that nothing begins before the cancellation is there
        visit = asyncio.ensure_future(loop.reach(there()))
        await asyncio.sleep(0)
        visit.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await visit
        assert begun == []


async def test_a_loop_that_is_closed_is_an_error_not_a_cancellation() -> None:
    began = threading.Event()

    async def there() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    loop = LoopThread()
    visit = asyncio.ensure_future(loop.reach(there()))
    await asyncio.to_thread(began.wait)
    await asyncio.to_thread(loop.close)
    with pytest.raises(StoreClosed):
        await visit
    with pytest.raises(StoreClosed):
        await loop.reach(there())


async def test_a_visit_to_a_loop_that_closes_before_it_begins_leaves_nothing_behind() -> None:
    begun: list[bool] = []

    async def there() -> None:
        begun.append(True)

    loop = LoopThread()
    await loop.reach(asyncio.sleep(0))
    release = threading.Event()
    loop.call_soon(release.wait)
    visit = asyncio.ensure_future(loop.reach(there()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(loop.close))
    while not loop._closed:
        await asyncio.sleep(0)
    release.set()
    with contextlib.suppress(StoreClosed):
        await visit
    await closing
    gc.collect()  # a coroutine that was never awaited would say so now
