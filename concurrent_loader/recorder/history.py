"""Decides which recorded steps count: steps that a later iteration repeats from a checkpoint are superseded. No I/O.

A *span* is a run of consecutive steps that one rank has delivered in one iteration. A position is (epoch, step).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from concurrent_loader.recorder.log_format import Session

__all__ = ["Coverage", "Span", "cover", "effective_spans"]

Position = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Steps that one rank has delivered in one iteration.

    Attributes:
        session: Session of the process.
        session_number: Number of the session in its log, from 0.
        line: Number of the line on which the iteration begins, from 1.
        epoch: Epoch of the steps.
        start: First step.
        stop: Step after the last one.
        order: Digest of the epoch's order.
        resumes: Whether the iteration begins at a restored state.
        ended: Whether the epoch ended in this iteration.
    """

    session: Session
    session_number: int
    line: int
    epoch: int
    start: int
    stop: int
    order: str
    resumes: bool
    ended: bool = False

    @property
    def rank(self) -> int:
        return self.session.rank

    @property
    def world_size(self) -> int:
        return self.session.world_size

    def before(self, position: Position) -> Span:
        """Returns the part of the span before a position."""
        epoch, step = position
        if self.epoch < epoch:
            return self
        stop = min(self.stop, step) if self.epoch == epoch else self.start
        return replace(self, stop=max(self.start, stop), ended=False)


def effective_spans(logs: Iterable[Sequence[Span]]) -> list[Span]:
    """Returns the spans that count, without the steps that a later iteration has superseded.

    An iteration supersedes what was delivered from its first step on if it begins at a restored state, or is the first
    one of a process: in the rank's own log, and in logs of processes with another number of ranks that began earlier.

    Args:
        logs: Spans of each rank's log, in the order of the lines.

    Example:
        >>> from concurrent_loader.recorder.history import Span, effective_spans
        >>> from concurrent_loader.recorder.log_format import Session
        >>> crashed = Span(session=Session(0, 1, 10.0), session_number=0, line=2, epoch=0, start=0, stop=57,
        ...                order="", resumes=False)
        >>> again = Span(session=Session(0, 1, 20.0), session_number=1, line=9, epoch=0, start=50, stop=60, order="",
        ...              resumes=True)
        >>> [(span.start, span.stop) for span in effective_spans([[crashed, again]])]
        [(0, 50), (50, 60)]
    """
    kept: list[list[Span]] = []
    restarts: list[tuple[Session, Position]] = []
    for log in logs:
        own: list[Span] = []
        session_number = -1
        for span in log:
            if span.resumes or span.session_number != session_number:
                position = span.epoch, span.start
                own = [each.before(position) for each in own]
                restarts.append((span.session, position))
            session_number = span.session_number
            own.append(span)
        kept.append(own)
    spans = [span for log in kept for span in log]
    for session, position in restarts:
        spans = [
            span.before(position)
            if span.world_size != session.world_size and span.session.time < session.time
            else span
            for span in spans
        ]
    return [span for span in spans if span.start < span.stop or span.ended]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The steps of one epoch that all ranks have delivered.

    Attributes:
        start: First step that was recorded.
        stop: Step after the last one that all ranks have delivered without a gap.
        problems: Steps that were not delivered exactly once, as text, with a span that shows the place.
        ahead: Ranks that delivered steps from ``stop`` on, which the others did not.
    """

    start: int = 0
    stop: int = 0
    problems: list[tuple[str, Span]] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)


def cover(spans: Sequence[Span]) -> Coverage:
    """Returns which steps of an epoch all ranks have delivered.

    Args:
        spans: Spans of one epoch that count.
    """
    problems: list[tuple[str, Span]] = []
    bounds = sorted({bound for span in spans for bound in (span.start, span.stop)})
    start = reached = bounds[0] if bounds else 0
    ahead: list[int] = []
    for first, stop in pairwise(bounds):
        here = [span for span in spans if span.start <= first and stop <= span.stop]
        ranks = sorted(span.rank for span in here)
        name = f"step {first}" if stop == first + 1 else f"steps {first} to {stop - 1}"
        if not here:
            continue
        if len({span.world_size for span in here}) > 1:
            problems.append((f"{name} were delivered by ranks of worlds of different sizes", here[-1]))
        elif len(set(ranks)) < len(ranks):
            twice = next(rank for rank, other in pairwise(ranks) if rank == other)
            last = [span for span in here if span.rank == twice][-1]
            problems.append((f"rank {twice} delivered {name} twice, without a restored state in between", last))
        elif ranks != list(range(here[0].world_size)):
            ahead = ranks
            continue
        elif first > reached:
            missing = f"step {reached}" if first == reached + 1 else f"steps {reached} to {first - 1}"
            lacking = f"; of these, only ranks {ahead} have some" if ahead else ""
            problems.append((f"{missing} were not recorded by every rank, but {name} were{lacking}", here[0]))
        ahead = []
        reached = stop
    return Coverage(start, reached, problems, ahead)
