"""Sides that take turns: epochs with a cold cache and with the warm one that it left, each in a fresh process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from msgspec import structs

from benchmarks.command import in_turns
from benchmarks.figures import four_digits
from benchmarks.peers.figures import check
from benchmarks.peers.job import Job, Outcome
from benchmarks.peers.processes import run_job

_DEADLINE_S = 600.0
Rounds = Mapping[int, Outcome]


@dataclass(slots=True)
class Side:
    """Who takes turns, and what came of them."""

    name: str
    python: str  # interpreter of its environment
    job: Job
    caches: bool  # whether it keeps on the local drive what it has fetched
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)  # ``cold`` or ``warm`` → round → outcome

    @property
    def epochs(self) -> tuple[str, ...]:
        """Kinds of epochs that it has a turn in."""
        return ("cold", "warm") if self.caches else ("cold",)


AnySide = TypeVar("AnySide", bound=Side)


@contextlib.contextmanager
def empty_folder(folder: Path) -> Iterator[str]:
    """Makes a folder anew; it is gone after the block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_turns(
    sides: Sequence[AnySide],
    num_rounds: int,
    cache: Path,
    run: Callable[[AnySide, Job, str, int], Outcome | None],
    *,
    first: int = 0,
) -> None:
    """Gives every side a turn in every round: a cold epoch and, where it has a cache and ended, a warm one.

    ``run`` gets the side, its job, the kind of epoch and the round; None is an epoch that does not count. Rounds are
    numbered from ``first`` on.
    """
    for at, side in in_turns(sides, num_rounds):
        number = first + at
        with empty_folder(cache) as folder:
            for epoch in side.epochs:
                job = structs.replace(side.job, cache_dir=folder) if side.caches else side.job
                outcome = run(side, job, epoch, number)
                if outcome is not None:
                    side.outcomes.setdefault(epoch, {})[number] = outcome
                if outcome is None or not outcome.complete:
                    break


def median_ratio(ours: Rounds, theirs: Rounds, figure: Callable[[Outcome], float]) -> float | None:
    """Returns the median over the rounds of the ratio within a round; None without a round in which both ended."""
    ratios = ratios_of(ours, theirs, figure)
    return four_digits(median(ratios)) if ratios else None


def ratios_of(ours: Rounds, theirs: Rounds, figure: Callable[[Outcome], float]) -> list[float]:
    """Returns the ratios within the rounds in which both ended.

    An epoch that was cut short may have stood still: it says that the side failed, and not how slow it is.
    """
    pairs = [(mine, theirs[number]) for number, mine in ours.items() if number in theirs]
    return [figure(one) / figure(other) for one, other in pairs if one.complete and other.complete]


def checked_outcome(side: Side, job: Job, digests: Sequence[int]) -> Outcome:
    """Does a job of a side; raises ValueError unless every image came once, and as it is where bytes are delivered."""
    outcome, _ = run_job(side.python, job, deadline_s=_DEADLINE_S)
    if fault := check(outcome, digests, decoded=job.decoded):
        raise ValueError(f"a side did not deliver the images: {fault}")
    return outcome
