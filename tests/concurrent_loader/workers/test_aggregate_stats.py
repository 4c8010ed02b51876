from __future__ import annotations

from dataclasses import dataclass

from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.pipeline_status import MAX_SLOW, PipelineStatus, SlowRequest
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.workers.aggregate_stats import WorkerReports, sum_stats
from concurrent_loader.workers.messages import Report


def test_workers_are_added_up_while_they_live_and_afterwards() -> None:
    clock = StageClock()
    reports = WorkerReports(clock)
    reports.add(1, Report({"read": 1.0}, FetchStats(num_gets=5, in_flight=2), CacheStats(num_misses=5)))
    reports.add(2, Report({"read": 2.0}, FetchStats(num_gets=1, limit=9), CacheStats(num_hits=3)))
    reports.add(1, Report({"read": 0.5}, FetchStats(num_gets=6, in_flight=1, limit=4), CacheStats(num_misses=6)))
    assert clock["read"] == 3.5
    own = FetchStats(num_gets=10, limit=3, first_byte_p50_s=0.5)
    assert reports.fetch(own) == FetchStats(num_gets=17, in_flight=1, limit=9, first_byte_p50_s=0.5)
    assert reports.cache(CacheStats()) == CacheStats(num_hits=3, num_misses=6)
    for pid in (1, 2, 2):
        reports.ended(pid)
    assert reports.fetch(own) == FetchStats(num_gets=17, limit=3, first_byte_p50_s=0.5)
    assert reports.cache(CacheStats()) == CacheStats(num_hits=3, num_misses=6)
    reports.add(1, Report({}, FetchStats(num_gets=1)))  # a new process with an old number
    assert reports.fetch(own).num_gets == 18


def test_the_slowest_requests_of_all_workers_are_known() -> None:
    reports = WorkerReports(StageClock())
    for worker in range(2):
        slow = tuple(SlowRequest(f"{worker}-{place}", place + worker / 2, worker) for place in range(MAX_SLOW))
        reports.add(worker + 1, Report(status=PipelineStatus(num_making=1, slow=slow)))
    status = reports.pipeline_status()
    assert status.num_making == 2
    assert [(each.key, each.worker) for each in status.slow] == [
        ("1-4", 1), ("0-4", 0), ("1-3", 1), ("0-3", 0), ("1-2", 1),
    ]  # fmt: skip


def test_a_report_that_was_written_earlier_and_comes_later_takes_nothing_back() -> None:
    clock = StageClock()
    reports = WorkerReports(clock)
    reports.add(1, Report({"read": 1.0}, FetchStats(num_gets=6), CacheStats(num_misses=6), number=2))
    reports.add(1, Report({"read": 0.5}, FetchStats(num_gets=5), CacheStats(num_misses=5), number=1))
    assert clock["read"] == 1.5
    assert reports.fetch(FetchStats()).num_gets == 6
    assert reports.cache(CacheStats()).num_misses == 6


def test_what_is_no_number_is_the_first_ones() -> None:
    @dataclass(frozen=True)
    class Figures:
        count: int
        name: str

    assert sum_stats([Figures(1, "own"), Figures(2, "other")]) == Figures(3, "own")
