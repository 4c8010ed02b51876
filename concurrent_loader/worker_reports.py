"""What all workers of a loader have done, added up: clocks by stage, requests, hits and misses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from concurrent_loader.stats import StageClock
from concurrent_loader.worker_job import Report
from storage.cache import CacheStats
from storage.fetch import FetchStats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["WorkerReports", "added_up"]

S = TypeVar("S", bound="DataclassInstance")

# Of several engines' figures the highest says most; a sum would say nothing.
_HIGHEST = ("limit", "_p50_s", "_p95_s", "_p99_s")
_NOW = ("in_flight", "limit", "goodput_bytes_per_s")  # of a worker that has ended they are nothing


class WorkerReports:
    """Keeps the newest report of each worker that lives, and the sum of those that have ended.

    Args:
        clock: The loader's; the workers' seconds are counted there.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._newest: dict[int, Report] = {}  # pid → report
        self._past = Report()

    def add(self, pid: int, report: Report) -> None:
        """Takes a report."""
        for stage, seconds in report.seconds.items():
            self._clock.add(stage, seconds)
        newest = self._newest.get(pid)
        if newest is None or report.number >= newest.number:
            self._newest[pid] = report

    def ended(self, pid: int) -> None:
        """Notes that a worker has ended; what it did is kept."""
        report = self._newest.pop(pid, None)
        if report is not None:
            self._past = Report(
                fetch=added_up((self._past.fetch, _over(report.fetch))),
                cache=added_up((self._past.cache, _over(report.cache))),
            )

    def fetch(self, own: FetchStats) -> FetchStats:
        """Requests and bytes, those of this process included."""
        return added_up((own, self._past.fetch, *(report.fetch for report in self._newest.values())))

    def cache(self, own: CacheStats) -> CacheStats:
        """Hits and misses, those of this process included."""
        return added_up((own, self._past.cache, *(report.cache for report in self._newest.values())))


def added_up(stats: Iterable[S]) -> S:
    """Adds up snapshots of one kind, number by number; what is no number is the first one's."""
    first, *others = stats
    together: dict[str, Any] = {}
    for field in fields(first):
        values = [getattr(each, field.name) for each in (first, *others)]
        if isinstance(values[0], int | float):
            together[field.name] = max(values) if field.name.endswith(_HIGHEST) else sum(values)
        else:
            together[field.name] = values[0]
    return replace(first, **together)


def _over(stats: S) -> S:
    return replace(stats, **{field.name: 0 for field in fields(stats) if field.name in _NOW})
