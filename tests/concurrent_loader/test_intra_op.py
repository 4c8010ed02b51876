"""One thread alone, and all others as before."""

from __future__ import annotations

import threading

import torch

from concurrent_loader.decode_threads import DecodeThreads
from concurrent_loader.intra_op import stay_on_this_thread


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_this_thread_and_no_other():
    here, there = torch.get_num_threads(), in_a_thread(torch.get_num_threads)

    def alone():
        stay_on_this_thread()
        return torch.get_num_threads()

    assert in_a_thread(alone) == 1
    assert torch.get_num_threads() == here
    assert in_a_thread(torch.get_num_threads) == there


def test_decode_threads_do(no_leaks):
    here, there = torch.get_num_threads(), in_a_thread(torch.get_num_threads)
    threads = DecodeThreads(3)
    meeting = threading.Barrier(3, timeout=20)
    futures = [threads.submit(lambda: (meeting.wait(), torch.get_num_threads())[1]) for _ in range(3)]
    assert [future.result() for future in futures] == [1, 1, 1]
    threads.shutdown()
    assert torch.get_num_threads() == here
    assert in_a_thread(torch.get_num_threads) == there
