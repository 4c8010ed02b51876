"""The counters as a table, and the waits by size."""

from __future__ import annotations

import pytest

from concurrent_loader.stats.loader_stats import WAIT_BOUNDS_S, LoaderStats, StageClock, WallTime
from concurrent_loader.storage.fetch import FetchStats


def test_a_table_for_print() -> None:
    stats = LoaderStats(
        num_batches=4, num_samples=640, total_s=2.0, wait_s=0.5, wait_store_s=0.5, consumer_s=1.5,
        fetch=FetchStats(num_bytes=4 << 20, num_gets=3), batch_waits=(3, *[0] * 14, 1),
    )  # fmt: skip
    lines = str(stats).splitlines()
    assert max(map(len, lines)) < 80
    table = {line[:20].rstrip(): line[20:].strip() for line in lines}
    assert table["delivered"] == "4 batches, 640 samples"
    assert table["rates"] == "320 samples/s, 2.0 MiB/s fetched"
    assert table["wait for store"] == "0.50 s"
    assert table["wait for a batch"] == "median at most 0.001 s, 95 % at most inf s"
    assert str(LoaderStats()).startswith("delivered")
    assert repr(stats).startswith("LoaderStats(")


def test_waits_are_counted_by_size() -> None:
    now = [0.0]
    clock = StageClock(lambda: now[0])
    for seconds in (0.0005, 0.001, 0.0011, 0.7, 61.0):
        wall = WallTime(clock)
        assert wall.pending == ("wait", 0.0)
        now[0] += seconds
        assert wall.pending == ("wait", pytest.approx(seconds))
        wall.count_batch(wall.count_wait(()))
        assert wall.pending[0] == "device"
        wall.count("device")
        assert wall.pending[0] == "consumer"
    stats = clock.stats()
    assert len(stats.batch_waits) == len(WAIT_BOUNDS_S) + 1
    assert stats.batch_waits[0] in (1, 2)  # 0.001 s is on the bound, give or take a rounding
    assert sum(stats.batch_waits) == 5
    assert stats.batch_waits[-1] == 1
    assert stats.batch_wait_s(0.5) == 0.0025
    assert stats.batch_wait_s(0.75) == 1.0
    assert stats.batch_wait_s(1) == float("inf")
    assert LoaderStats().batch_wait_s(0.5) == 0.0
