from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from concurrent_loader.map_style.thread_pool import ItemThreads
from concurrent_loader.pipeline import thread_pool
from concurrent_loader.pipeline.thread_pool import DecodeThreads, limit_to_one_thread


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_a_thread(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def native_threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.usefixtures("three_threads")
def test_only_the_thread_that_asks_keeps_to_one_core() -> None:
    def ask() -> int:
        limit_to_one_thread()
        return torch.get_num_threads()

    assert in_a_thread(torch.get_num_threads) == 3
    assert in_a_thread(ask) == 1
    assert torch.get_num_threads() == 3
    assert in_a_thread(torch.get_num_threads) == 3


@pytest.mark.usefixtures("three_threads")
def test_threads_of_the_loader_do() -> None:
    decoding = DecodeThreads(2)
    try:
        assert {decoding.submit(torch.get_num_threads).result() for _ in range(8)} == {1}
    finally:
        decoding.shutdown()
    fetching = ItemThreads(2)
    try:
        assert {fetching.submit(torch.get_num_threads).result() for _ in range(8)} == {1}
    finally:
        fetching.stop(timeout_s=10)
    assert torch.get_num_threads() == 3


def test_threads_without_a_descriptor_to_look_work_all_the_same_and_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_descriptor() -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/self/maps")

    monkeypatch.setattr(thread_pool, "_controller", no_descriptor)
    decoding = DecodeThreads(2)
    with caplog.at_level(logging.WARNING):
        assert decoding.submit(int, "7").result(timeout=10) == 7
        assert decoding.join(grace_period_s=10)
    assert decoding.has_exited
    assert "Too many open files" in caplog.text
    fetching = ItemThreads(2)
    assert fetching.submit(int, "8").result(timeout=10) == 8
    fetching.stop(timeout_s=10)


@pytest.mark.usefixtures("three_threads")
def test_an_operator_in_such_a_thread_starts_no_team() -> None:
    values = torch.rand(4_000_000)
    new: list[set[str]] = []

    def work() -> None:
        limit_to_one_thread()
        before = native_threads()
        torch.add(values, 1)
        new.append(native_threads() - before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert new == [set()]
