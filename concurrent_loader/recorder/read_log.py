"""Reads a rank's log, and verifies each line against the hash chain and the order of the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.recorder.flight_recorder import log_name
from concurrent_loader.recorder.history import Position, Span
from concurrent_loader.recorder.log_format import (
    FIRST_HEAD,
    Begin,
    End,
    Line,
    Repair,
    Session,
    Step,
    next_head,
    parse_line,
)
from concurrent_loader.recorder.order_file import RecordedOrder
from concurrent_loader.recorder.proof import FailedSamples, Problem
from concurrent_loader.storage.errors import ConfigurationError, FormatError

__all__ = ["LogReading", "parents_in", "read_log"]

_BROKEN = (
    "the hash chain breaks here: this line, or the one before it, was changed, removed or moved, or the step delivered "
    "other samples than its order has"
)


@dataclass(slots=True)
class LogReading:
    """What a log says.

    Attributes:
        spans: Iterations, in the order of the lines.
        problems: First problem of the log, if there is one. Nothing behind it was read.
        notes: Facts that are no problem.
        heads: Positions after lines whose heads were asked for.
        parents: Line, restored head and position of each iteration that begins at a restored state.
        failed: Samples that were skipped or replaced, with the line of their iteration.
        num_unobserved: Number of steps whose batches carry no sample numbers.
    """

    spans: list[Span] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    heads: dict[str, Position] = field(default_factory=dict)
    parents: list[tuple[int, str, Position]] = field(default_factory=list)
    failed: list[tuple[int, FailedSamples]] = field(default_factory=list)
    num_unobserved: int = 0


def parents_in(path: Path) -> set[str]:
    """Returns the heads of restored states that a log names."""
    with path.open("rb") as file:
        return {
            line.split(b" ")[4].decode("ascii", "replace")
            for line in file
            if line[:2] == b"B " and line.count(b" ") == 5
        }


def read_log(path: Path, order_of: Callable[[str], RecordedOrder], wanted_heads: set[str]) -> LogReading:
    """Reads and verifies a log, up to its first problem.

    Args:
        path: The log.
        order_of: Function from a digest to the order with that digest; raises `FormatError`.
        wanted_heads: Heads whose positions are asked for.
    """
    reader = _Reader(path.name, order_of, wanted_heads)
    with path.open("rb") as file:
        for raw in file:
            reader.number += 1
            if not raw.endswith(b"\n"):
                reader.found.notes.append(
                    f"{path.name}, line {reader.number}: the last line is torn; its step may count"
                )
                break
            try:
                reader.take(*_parsed(raw[:-1]))
            except (ValueError, FormatError, ConfigurationError) as error:
                reader.found.problems.append(Problem(path.name, reader.number, str(error)))
                break
    if not reader.number:
        reader.found.problems.append(Problem(path.name, None, "the log is empty"))
    return reader.found


def _parsed(raw: bytes) -> tuple[str, Line, str]:
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("the line is not text") from None
    line, head = parse_line(text)
    return text[: -len(head) - 1], line, head


class _Reader:
    """Follows the lines of one log.

    Args:
        file: Name of the log.
        order_of: Function from a digest to an order.
        wanted_heads: Heads whose positions are asked for.
    """

    def __init__(self, file: str, order_of: Callable[[str], RecordedOrder], wanted_heads: set[str]) -> None:
        self.number = 0
        self.found = LogReading()
        self._file = file
        self._order_of = order_of
        self._wanted = wanted_heads
        self._head = FIRST_HEAD
        self._session: Session | None = None
        self._session_number = -1
        self._order: RecordedOrder | None = None
        self._batches: Iterator[BatchIndex] = iter(())
        self._num_steps = 0

    def take(self, text: str, line: Line, head: str) -> None:
        """Verifies a line and adds it to what was found.

        Raises:
            ValueError: The line contradicts the lines before it, or the order.
        """
        index = self._planned(line) if isinstance(line, Step) else None
        numbers: list[Any] = []
        num_padded = 0
        if isinstance(line, Step) and index is not None and line.count is not None and line.repair is None:
            assert self._order is not None
            sources = np.empty(0, np.int64) if index.source is None else index.source
            numbers, num_padded = [self._order.samples(index), sources], index.num_padded
        if next_head(self._head, text, *numbers, num_padded=num_padded) != head:
            raise ValueError(_BROKEN)
        self._head = head
        if isinstance(line, Session):
            self._begin_session(line)
        elif isinstance(line, Begin):
            self._begin(line)
        elif isinstance(line, Step):
            assert index is not None
            self._step(line, index)
        else:
            self._end(line)
        if head in self._wanted and self.found.spans:
            last = self.found.spans[-1]
            self.found.heads[head] = (last.epoch + 1, 0) if last.ended else (last.epoch, last.stop)

    def _begin_session(self, session: Session) -> None:
        if self._file != log_name(session.rank):
            raise ValueError(f"the log of rank {session.rank} has the name of another rank")
        self._session, self._order = session, None
        self._session_number += 1
        if session.torn:
            self.found.notes.append(
                f"{self._file}, line {self.number}: {session.torn} bytes of a torn line were cut off before it"
            )

    def _begin(self, line: Begin) -> None:
        if self._session is None:
            raise ValueError("the log does not begin with a session")
        session = self._session
        self._order = self._order_of(line.order)
        plan = self._order.plan(line.epoch)
        self._num_steps = plan.num_steps(session.rank, session.world_size)
        self._batches = plan.batches(line.step, session.rank, session.world_size)
        place = f"{self._file}, line {self.number}"
        is_first = not self.found.spans or self.found.spans[-1].session_number != self._session_number
        if line.parent == "new" and is_first and self.found.spans:
            self.found.notes.append(
                f"{place}: the process began at epoch {line.epoch}, step {line.step} without a restored state; if the "
                "model was restored, it has seen later steps twice"
            )
        elif line.parent == "none":
            self.found.notes.append(f"{place}: the restored state was saved without a flight recorder")
        elif line.parent != "new":
            self.found.parents.append((self.number, line.parent, (line.epoch, line.step)))
        self.found.spans.append(
            Span(
                session=session, session_number=self._session_number, line=self.number, epoch=line.epoch,
                start=line.step, stop=line.step, order=line.order, resumes=line.parent != "new",
            )
        )  # fmt: skip

    def _planned(self, line: Step) -> BatchIndex:
        if self._order is None or self.found.spans[-1].ended:
            raise ValueError("a step comes before the beginning of its iteration")
        index = next(self._batches, None)
        if index is None:
            raise ValueError("the epoch has no such step")
        if index.step != line.step:
            raise ValueError(f"step {index.step} was expected, and step {line.step} found")
        return index

    def _step(self, line: Step, index: BatchIndex) -> None:
        assert self._order is not None
        span = self.found.spans[-1]
        self.found.spans[-1] = replace(span, stop=line.step + 1)
        if line.count is None:
            self.found.num_unobserved += 1
        elif line.repair is not None:
            if line.count != len(line.repair.ids) - line.repair.padded:
                raise ValueError(f"the step delivered {len(line.repair.ids)} samples, and {line.count} were recorded")
            sources = [0] * len(index) if index.source is None else index.source.tolist()
            planned = list(zip(sources, self._order.samples(index).tolist(), strict=True))
            _check_repair(planned, index.num_padded, line.repair, is_mixture=index.source is not None)
            failed = FailedSamples(span.rank, span.epoch, line.step, line.repair.failed)
            self.found.failed.append((span.line, failed))
        elif line.count != len(index) - index.num_padded:
            raise ValueError(f"the step has {len(index) - index.num_padded} samples, and {line.count} were recorded")

    def _end(self, line: End) -> None:
        span = self.found.spans[-1] if self.found.spans else None
        if self._order is None or span is None or span.ended or span.epoch != line.epoch:
            raise ValueError("the epoch that ends has not begun")
        if span.stop != self._num_steps:
            raise ValueError(f"the epoch ends after step {span.stop - 1}, and has {self._num_steps} steps")
        self.found.spans[-1] = replace(span, ended=True)


def _check_repair(planned: list[tuple[int, int]], num_padded: int, repair: Repair, *, is_mixture: bool) -> None:
    """Checks that a batch differs from its plan only in samples that failed.

    Args:
        planned: Number of the dataset, and number of the sample in it, of each sample.
        num_padded: Number of planned padding samples, at the end.
        repair: What was delivered.
        is_mixture: Whether there are several datasets. The failed samples are recorded without theirs.

    Raises:
        ValueError: It does not.
    """
    if len(repair.sources) != (len(repair.ids) if is_mixture else 0):
        raise ValueError("the step delivered samples without their datasets")
    got = list(zip(repair.sources if is_mixture else [0] * len(repair.ids), repair.ids, strict=True))
    numbers, real = {number for _, number in planned}, planned[: len(planned) - num_padded]
    failed = set(repair.failed)
    is_blank = repair.padded == len(got) and got in (planned, planned[:1]) and {number for _, number in real} <= failed
    missing = set(planned) - set(got)
    if len(got) == len(planned):
        changed = {before for before, after in zip(planned, got, strict=True) if before != after}
        as_planned = set(got) <= set(planned)
    else:
        changed = missing
        as_planned = got == [sample for sample in planned if sample not in missing]
    padding = set(planned[len(real) :])
    is_allowed = all(sample in padding or sample[1] in failed for sample in changed)
    is_repaired = repair.padded <= num_padded and as_planned and is_allowed
    if not failed <= numbers or not (is_blank or is_repaired):
        raise ValueError("the step delivered samples that its order does not have")
