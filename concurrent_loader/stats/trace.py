"""Writes what a loader did as a trace for Perfetto, with a track per stage, thread, worker process and request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec
from torch.autograd import profiler

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.span_recorder import RecordedSpan, SpanRecorder, active, set_active

__all__ = ["Trace", "Traceable", "profiled", "trace_events"]

_FIRST_LANE = 1 << 24  # above the numbers of threads
_ORDER = {"consumer": 1, "batch": 2, "thread": 3, "request": 4}  # tracks from top to bottom


class Trace:
    """A trace that is being made: of everything in this process and the loader's workers, until it ends.

    `NativeDataLoader.trace` makes it. It ends with its ``with`` block, or else with the loader's next iteration. Then
    the file is written, also after an error.

    Args:
        path: File to write.
        max_spans: Number of spans to keep, the newest ones; about 150 bytes of the file each.

    Raises:
        ConfigurationError: Another trace is being made in this process.
    """

    def __init__(self, path: str | os.PathLike[str], max_spans: int) -> None:
        if max_spans < 1:
            raise ConfigurationError("max_spans must be a positive number", got=max_spans)
        if active() is not None:
            raise ConfigurationError("another trace is being made in this process; end it first")
        self._path = Path(path)
        self.in_block = False
        self._recorder: SpanRecorder | None = SpanRecorder(max_spans)
        set_active(self._recorder)

    def end(self) -> None:
        """Ends the trace and writes the file. Idempotent."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        set_active(None)
        num_dropped = recorder.num_dropped
        content = {
            "displayTimeUnit": "ms",
            "otherData": {"dropped_spans": num_dropped, "spans": recorder.num_spans - num_dropped},
            "traceEvents": list(trace_events(recorder.drain(), own_pid=os.getpid())),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part")
        try:
            partial.write_bytes(msgspec.json.encode(content))
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Traceable:
    """Gives a loader the method `trace`."""

    _trace: Trace | None = None

    def trace(self, path: str | os.PathLike[str], *, max_spans: int = 1_000_000) -> Trace:
        """Traces what stages, threads, workers and requests do, for ui.perfetto.dev; see docs/how-to/traces.md.

        Args:
            path: JSON file to write.
            max_spans: Number of spans to keep, the newest ones.

        Returns:
            A context manager. Without ``with``, the trace ends with the next iteration.

        Example:
            >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
            >>> loader = ConcurrentDataLoader(ShardDataset("photos"), batch_size=8)
            >>> with loader.trace("run.json"):
            ...     for batch in loader: pass
        """
        self._trace = Trace(path, max_spans)
        return self._trace

    def _end_trace(self) -> None:
        if self._trace is not None and not self._trace.in_block:
            self._trace.end()


def profiled(name: str) -> AbstractContextManager[Any]:
    """Returns a range of torch.profiler, or NVTX with ``emit_nvtx``, if one of them is active in this process."""
    return profiler.record_function(f"loader.{name}") if profiler._is_profiler_enabled else nullcontext()


def trace_events(spans: list[RecordedSpan], *, own_pid: int) -> Iterator[dict[str, Any]]:
    """Yields the events of Chrome's trace format: names of processes and tracks, then one event per span.

    Args:
        spans: Spans of all processes.
        own_pid: Process of the loader; the other ones are its workers.

    Example:
        >>> from concurrent_loader.stats.trace import trace_events
        >>> from concurrent_loader.storage.span_recorder import RecordedSpan
        >>> span = RecordedSpan(7, "request", 0, "", "a.cls", 1.0, 1.5, {"bytes": 3})
        >>> list(trace_events([span], own_pid=7))[-1]["dur"]
        500000.0
    """
    lanes: dict[tuple[int, str], list[float]] = {}  # end of the last span of each lane
    names: dict[tuple[int, int], tuple[str, int]] = {}
    events = []
    for pid, group, thread, thread_name, name, start_s, end_s, facts in sorted(spans, key=itemgetter(5)):
        track = thread
        if group != "thread":
            ends = lanes.setdefault((pid, group), [])
            lane = next((at for at, until_s in enumerate(ends) if until_s <= start_s), len(ends))
            ends[lane : lane + 1] = [end_s]
            track = _FIRST_LANE * _ORDER[group] + lane
        if (pid, track) not in names:
            names[pid, track] = (thread_name if group == "thread" else f"{group} {lane + 1}"), _ORDER[group]
        event = {"ph": "X", "pid": pid, "tid": track, "name": name, "cat": group, "args": facts}
        event["ts"], event["dur"] = start_s * 1e6, (end_s - start_s) * 1e6
        events.append(event)
    for pid in sorted({pid for pid, _ in names}):
        name = "loader" if pid == own_pid else f"worker process {pid}"
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": int(pid != own_pid)}}
    for (pid, track), (name, place) in names.items():
        yield {"ph": "M", "pid": pid, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": track, "name": "thread_sort_index", "args": {"sort_index": place}}
    yield from events
