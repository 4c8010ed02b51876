"""Messages from a worker process to the loader: one `Outcome` per batch, with a `Report` of what the worker did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from concurrent_loader.errors import WorkerTraceback
from concurrent_loader.pipeline.batch_iterator import END, Failure
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.span_recorder import RecordedSpan

__all__ = ["ANY_RUN", "Outcome", "Report"]

ANY_RUN = 0  # run number of outcomes that belong to no iteration: the worker could not start


@dataclass(frozen=True, slots=True)
class Report:
    """Statistics of a worker.

    Attributes:
        seconds: Stage → thread-seconds since the previous report.
        fetch: Requests and bytes since the worker started.
        cache: Cache hits and misses since the worker started.
        status: Fill levels of the worker's stages.
        number: Number of the report. Batches are not finished in the order of their delivery.
        spans: Spans of a trace since the previous report.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    fetch: FetchStats = field(default_factory=FetchStats)
    cache: CacheStats = field(default_factory=CacheStats)
    status: PipelineStatus = field(default_factory=PipelineStatus)
    number: int = 0
    spans: list[RecordedSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Content of one message from a worker.

    Attributes:
        item: Batch in a tuple; None after the last batch.
        error: Error in place of a batch, the last outcome of its iteration.
        cause: Traceback of the error, as text.
        report: Statistics of the worker so far.
        spans: Times that the batch spent at each stage.
        batch_status: Status of the next batch, in reply to `CommandKind.STATUS`.
    """

    item: Any = None
    error: BaseException | None = None
    cause: str = ""
    report: Report = field(default_factory=Report)
    spans: Spans = ()
    batch_status: BatchStatus | None = None

    @property
    def last(self) -> bool:
        """Whether this is the last outcome of this worker in this iteration."""
        return self.error is not None or (self.item is None and self.batch_status is None)

    def unwrapped(self) -> Any:
        """Returns the result of `EpochBatches.take`: a batch, a `Failure`, or `END`."""
        if self.error is not None:
            self.error.__cause__ = WorkerTraceback(self.cause)
            return Failure(self.error)
        return END if self.item is None else self.item[0]
