"""A measurement in a process of its own: its result, its processor time, and how it fails."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks.fresh_process import cpu_of_fresh_processes_s, in_fresh_process

pytestmark = pytest.mark.processes


def in_its_own(function, *arguments, timeout_s=30.0):
    return in_fresh_process(
        function, arguments, what="a test", preload=("benchmarks.fresh_process",), timeout_s=timeout_s
    )


def test_it_is_another_process_each_time():
    first, second = in_its_own(os.getpid), in_its_own(os.getpid)
    assert len({os.getpid(), first, second}) == 3


def test_arguments_and_results_cross():
    assert in_its_own(divmod, 7, 2) == (3, 1)


def test_its_processor_time_is_known():
    before_s = cpu_of_fresh_processes_s()
    assert in_its_own(sum, range(3_000_000)) > 0
    assert cpu_of_fresh_processes_s() > before_s


def test_a_failure_is_told():
    with pytest.raises(RuntimeError, match="a test: the measurement failed"):
        in_its_own(int, "no number")


def test_a_hang_ends():
    with pytest.raises(TimeoutError, match="a test: nothing after 0 s"):
        in_its_own(time.sleep, 60, timeout_s=0.2)
