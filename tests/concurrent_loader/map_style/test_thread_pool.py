"""Threads that wait for items: order, bound, end."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from concurrent_loader.map_style.thread_pool import ItemThreads


@pytest.fixture
def threads(no_leaks):
    made = []

    def make(max_threads):
        made.append(ItemThreads(max_threads))
        return made[-1]

    yield make
    for one in made:
        one.stop(timeout_s=30)


def names():
    return [thread for thread in threading.enumerate() if thread.name == "dataset-item"]


def test_begun_in_order_and_no_more_at_once_than_allowed(threads):
    begun, lock, now, most = [], threading.Lock(), 0, 0

    def work(number):
        nonlocal now, most
        with lock:
            begun.append(number)
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return number * 2

    one = threads(1)
    assert [future.result(30) for future in [one.submit(work, number) for number in range(50)]] == list(
        range(0, 100, 2)
    )
    assert begun == list(range(50))
    three = threads(3)
    assert max(future.result(30) for future in [three.submit(work, number) for number in range(50)]) == 98
    assert most <= 3


def test_threads_start_as_they_are_needed(threads):
    pool = threads(10)
    assert names() == []
    for _ in range(5):
        pool.submit(int).result(30)
    assert len(names()) <= 5


@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyboardInterrupt, SystemExit])
def test_errors_of_all_kinds(threads, error):
    def fail():
        raise error("so")

    pool = threads(2)
    with pytest.raises(error, match="so"):
        pool.submit(fail).result(30)
    assert pool.submit(int).result(30) == 0  # the thread lives on


def test_an_idle_thread_keeps_nothing_alive(threads):
    class Item:
        pass

    pool = threads(1)
    item = pool.submit(Item).result(30)
    kept = weakref.ref(item)
    del item
    pool.submit(int).result(30)
    gc.collect()
    assert kept() is None


def test_resting_threads_end_and_others_come(threads):
    pool = threads(4)
    pool.submit(int).result(30)
    (thread,) = names()
    pool.release_idle()
    thread.join(30)
    assert not thread.is_alive()
    assert pool.submit(int).result(30) == 0


def test_stopping_cancels_what_has_not_begun_and_waits_for_what_has(threads):
    pool = threads(1)
    begun, resume = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert resume.wait(30)
        return "done"

    first, second = pool.submit(work), pool.submit(int)
    assert begun.wait(30)
    threading.Timer(0.01, resume.set).start()
    pool.stop(timeout_s=30)
    assert first.result(0) == "done"
    with pytest.raises(CancelledError):
        second.result(0)
    assert names() == []
    with pytest.raises(RuntimeError, match="stopped"):
        pool.submit(int)
    pool.stop(timeout_s=30)


def test_stopping_has_an_end_though_an_item_has_none(threads):
    pool = threads(1)
    begun, for_ever = threading.Event(), threading.Event()

    def wait():
        begun.set()
        return for_ever.wait()

    waiting = pool.submit(wait)
    assert begun.wait(30)
    pool.stop(timeout_s=0.01)
    for_ever.set()
    assert waiting.result(30)


def test_stopping_from_one_of_the_threads(threads):
    pool = threads(2)
    pool.submit(lambda: pool.stop(timeout_s=30)).result(30)


def test_few_threads_are_enough_where_more_cannot_be_started(threads, monkeypatch):
    pool = threads(4)
    resume = threading.Event()
    first = pool.submit(resume.wait)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(int)
    resume.set()
    assert first.result(30)
    assert second.result(30) == 0
    with pytest.raises(RuntimeError, match="can't start"):
        ItemThreads(2).submit(int)


def test_a_forked_child_does_not_wait_for_threads_that_it_does_not_have(threads):
    pool = threads(1)
    pool.submit(int).result(30)
    pool._pid += 1  # as in a child
    pool.stop(timeout_s=30)
    assert len(names()) == 1
    pool._pid = os.getpid()
