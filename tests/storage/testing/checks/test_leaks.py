import asyncio
import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from concurrent_loader.storage.testing import no_leaks

SOON_S = 0.05


def test_nothing_left_is_no_error():
    with no_leaks(), socket.socket():
        thread = threading.Thread(target=lambda: None)
        thread.start()


@pytest.mark.slow
def test_a_thread_that_stays_is_named():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="the-culprit")
    try:
        with pytest.raises(AssertionError, match="the-culprit"), no_leaks(deadline_s=SOON_S):
            thread.start()
    finally:
        stop.set()
        thread.join()


def test_a_thread_that_is_ending_may_end():
    stop = threading.Event()
    with no_leaks():
        threading.Thread(target=stop.wait).start()
        threading.Timer(0.02, stop.set).start()


@pytest.mark.slow
def test_an_open_file_is_named(tmp_path):
    kept = []
    try:
        with pytest.raises(AssertionError, match="left-open"), no_leaks(deadline_s=SOON_S):
            kept.append((tmp_path / "left-open").open("w"))
    finally:
        kept[0].close()


@pytest.mark.slow
def test_a_second_descriptor_of_an_open_file_counts(tmp_path):
    with (tmp_path / "shared").open("w") as file:
        kept = []
        try:
            with pytest.raises(AssertionError, match="shared"), no_leaks(deadline_s=SOON_S):
                kept.append(os.dup(file.fileno()))
        finally:
            os.close(kept[0])


@pytest.mark.slow
async def test_a_pending_task_is_named():
    kept = []
    with pytest.raises(AssertionError, match="orphan"), no_leaks(deadline_s=SOON_S):
        kept.append(asyncio.create_task(asyncio.Event().wait(), name="orphan"))
    kept[0].cancel()


@pytest.mark.slow
async def test_a_pending_task_of_a_block_inside_another_is_named_by_both():
    before = asyncio.create_task(asyncio.Event().wait(), name="before")
    kept = []
    with pytest.raises(AssertionError, match="orphan") as caught, no_leaks(deadline_s=SOON_S):
        with pytest.raises(AssertionError, match="orphan") as inner, no_leaks(deadline_s=SOON_S):
            kept.append(asyncio.create_task(asyncio.Event().wait(), name="orphan"))
        kept.append(asyncio.create_task(asyncio.Event().wait(), name="second"))
    assert "second" not in str(inner.value)
    assert "second" in str(caught.value)
    assert "before" not in f"{inner.value} {caught.value}"
    for task in (before, *kept):
        task.cancel()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Undoes the suite's own freezing of older objects during a test."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_only_objects_of_the_block_are_looked_at(monkeypatch, unfrozen):
    walks = []
    found = gc.get_objects

    def get_objects():
        walks.append(found())
        return walks[-1]

    monkeypatch.setattr(gc, "get_objects", get_objects)
    older = [[number] for number in range(10_000)]
    with no_leaks():
        newer = [[number] for number in range(100)]
    assert [len(walk) < len(older) for walk in walks] == [True, True]
    assert any(each is newer for each in walks[1])
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_garbage_that_holds_older_objects_is_no_leak(tmp_path):
    """The older object is part of the cycle, so that a collection without the older objects leaves the file open."""

    class Node:
        pass

    older = Node()
    with no_leaks(deadline_s=SOON_S):
        older.newer = Node()
        older.newer.older = older
        weakref.finalize(older.newer, os.close, os.open(tmp_path, os.O_RDONLY))
        del older


async def test_finished_tasks_are_no_leak():
    with no_leaks():
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(10)))


def test_the_error_of_the_block_comes_through():
    with pytest.raises(KeyError, match="mine"), no_leaks(deadline_s=SOON_S):
        raise KeyError("mine")
