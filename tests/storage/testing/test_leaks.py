import asyncio
import os
import socket
import threading

import pytest

from storage.testing import no_leaks

SOON_S = 0.05


def test_nothing_left_is_no_error():
    with no_leaks(), socket.socket():
        thread = threading.Thread(target=lambda: None)
        thread.start()


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


def test_an_open_file_is_named(tmp_path):
    kept = []
    try:
        with pytest.raises(AssertionError, match="left-open"), no_leaks(deadline_s=SOON_S):
            kept.append((tmp_path / "left-open").open("w"))
    finally:
        kept[0].close()


def test_a_second_descriptor_of_an_open_file_counts(tmp_path):
    with (tmp_path / "shared").open("w") as file:
        kept = []
        try:
            with pytest.raises(AssertionError, match="shared"), no_leaks(deadline_s=SOON_S):
                kept.append(os.dup(file.fileno()))
        finally:
            os.close(kept[0])


async def test_a_pending_task_is_named():
    kept = []
    with pytest.raises(AssertionError, match="orphan"), no_leaks(deadline_s=SOON_S):
        kept.append(asyncio.create_task(asyncio.Event().wait(), name="orphan"))
    kept[0].cancel()


async def test_finished_tasks_are_no_leak():
    with no_leaks():
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(10)))


def test_the_error_of_the_block_comes_through():
    with pytest.raises(KeyError, match="mine"), no_leaks(deadline_s=SOON_S):
        raise KeyError("mine")
