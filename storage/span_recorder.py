"""Collects time spans of one process while a trace is being made. Without a trace, `active` is None.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, NamedTuple

__all__ = ["RecordedSpan", "SpanRecorder", "active", "set_active"]


class RecordedSpan(NamedTuple):
    """Something that took time.

    Attributes:
        pid: Process.
        track: ``"thread"`` for work in a thread, otherwise the name of a group of tracks on which spans may overlap.
        thread: Native number of the thread; 0 without one.
        thread_name: Name of the thread.
        name: Name of the span.
        start_s: Start in monotonic seconds.
        end_s: End in monotonic seconds.
        facts: Details to show.
    """

    pid: int
    track: str
    thread: int
    thread_name: str
    name: str
    start_s: float
    end_s: float
    facts: dict[str, Any]


class SpanRecorder:
    """Keeps the newest spans.

    Args:
        max_spans: Number of spans to keep; older ones are dropped and counted.

    Attributes:
        num_spans: Number of spans so far.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, max_spans: int) -> None:
        self.max_spans = max_spans
        self.num_spans = 0
        self._spans: deque[RecordedSpan] = deque(maxlen=max_spans)
        self._pid = os.getpid()

    @property
    def num_dropped(self) -> int:
        """Number of spans that were dropped."""
        return max(0, self.num_spans - self.max_spans)

    def add(self, track: str, name: str, start_s: float, end_s: float, **facts: Any) -> None:
        """Adds a span."""
        thread, name_of_thread = 0, ""
        if track == "thread":
            thread, name_of_thread = threading.get_native_id(), threading.current_thread().name
        found = RecordedSpan(self._pid, track, thread, name_of_thread, name, start_s, end_s, facts)
        self.num_spans += 1
        self._spans.append(found)

    def extend(self, spans: list[RecordedSpan]) -> None:
        """Adds spans of another process."""
        self.num_spans += len(spans)
        self._spans.extend(spans)

    def drain(self) -> list[RecordedSpan]:
        """Removes and returns the spans."""
        found = []
        while self._spans:
            found.append(self._spans.popleft())
        return found


_active: list[SpanRecorder] = []


def active() -> SpanRecorder | None:
    """Returns the recorder of the trace that is being made; None without one."""
    return _active[-1] if _active else None


def set_active(recorder: SpanRecorder | None) -> None:
    """Sets the recorder for all threads of this process; None ends recording."""
    _active[:] = [] if recorder is None else [recorder]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_active.clear)  # the trace belongs to the parent
