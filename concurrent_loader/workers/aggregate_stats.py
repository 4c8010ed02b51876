"""Statistics of all workers of a loader, added up: seconds by stage, requests, cache hits and misses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.pipeline_status import PipelineStatus, sum_status
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.span_recorder import active
from concurrent_loader.workers.messages import Report

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["WorkerReports", "sum_stats"]

S = TypeVar("S", bound="DataclassInstance")

# The highest of several engines' figures is reported; their sum would have no meaning.
_HIGHEST = ("limit", "_p50_s", "_p95_s", "_p99_s")
_NOW = ("in_flight", "limit", "goodput_bytes_per_s")  # zero for a worker that has ended


class WorkerReports:
    """Keeps the newest report of each running worker, and the sum over workers that have ended.

    Args:
        clock: Clock of the loader, which the workers' seconds are added to.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._newest: dict[int, Report] = {}  # pid → report
        self._past = Report()

    def add(self, pid: int, report: Report) -> None:
        """Adds a report."""
        for stage, seconds in report.seconds.items():
            self._clock.add(stage, seconds)
        if (recorder := active()) is not None:
            recorder.extend(report.spans)
        newest = self._newest.get(pid)
        if newest is None or report.number >= newest.number:
            self._newest[pid] = report

    def ended(self, pid: int) -> None:
        """Adds the figures of a worker that has ended to the sum."""
        report = self._newest.pop(pid, None)
        if report is not None:
            self._past = Report(
                fetch=sum_stats((self._past.fetch, _over(report.fetch))),
                cache=sum_stats((self._past.cache, _over(report.cache))),
            )

    def fetch(self, own: FetchStats) -> FetchStats:
        """Returns the requests and bytes of all workers and of this process."""
        return sum_stats((own, self._past.fetch, *(report.fetch for report in self._newest.values())))

    def cache(self, own: CacheStats) -> CacheStats:
        """Returns the cache hits and misses of all workers and of this process."""
        return sum_stats((own, self._past.cache, *(report.cache for report in self._newest.values())))

    def pipeline_status(self) -> PipelineStatus:
        """Returns the fill levels of all running workers together."""
        return sum_status(report.status for report in list(self._newest.values()))


def sum_stats(stats: Iterable[S]) -> S:
    """Adds up snapshots of one class, number by number. Other fields are those of the first one."""
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
