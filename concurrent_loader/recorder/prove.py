"""Proves from the logs of a run what it delivered: computes the order again, and compares each step with it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from concurrent_loader.recorder.flight_recorder import log_name, write_held
from concurrent_loader.recorder.history import Span, cover, effective_spans
from concurrent_loader.recorder.order_file import Part, RecordedOrder, read_order
from concurrent_loader.recorder.proof import EpochProof, Problem, Proof, indexes
from concurrent_loader.recorder.read_log import LogReading, parents_in, read_log
from concurrent_loader.storage.errors import NotFound

__all__ = ["prove"]

Indices = npt.NDArray[np.int64]

_MAX_SAMPLES = 1 << 20  # sample numbers that are counted at once


def prove(folder: str | os.PathLike[str], *, heads: Collection[str] = ()) -> Proof:
    """Verifies the logs of a run: each line, each step's samples, and that the steps of all ranks make whole epochs.

    Neither the bucket nor the training script is needed.

    Args:
        folder: Folder that was given to the loader as ``recorder=``.
        heads: Heads that the logs must have: ``state["recorder_head"]`` of saved states. Without them, lines that were
            removed from the end of a log look like a run that stopped earlier.

    Raises:
        NotFound: The folder has no logs.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
        >>> from concurrent_loader.recorder import prove
        >>> loader = ConcurrentDataLoader(ShardDataset("photos"), batch_size=8, shuffle=True, recorder="runs/9")
        >>> first_epoch = list(loader)
        >>> proof = prove("runs/9", heads=[loader.state_dict()["recorder_head"]])
        >>> proof.proven, proof.epochs[0].finished, proof.epochs[0].num_distinct
        (True, True, 20)
    """
    root = Path(folder)
    write_held(root.absolute())
    paths = sorted(root.glob("rank-*.log"))
    if not paths:
        raise NotFound("the folder has no logs of a flight recorder", key=str(root))
    orders: dict[str, RecordedOrder] = {}

    def order_of(digest: str) -> RecordedOrder:
        if digest not in orders:
            orders[digest] = read_order(root, digest)
        return orders[digest]

    wanted = set(heads).union(*map(parents_in, paths))
    readings = {path.name: read_log(path, order_of, wanted) for path in paths}
    problems = [problem for reading in readings.values() for problem in reading.problems]
    known = {head: position for reading in readings.values() for head, position in reading.heads.items()}
    problems += _check_parents(readings, known)
    problems += [
        Problem(str(root), None, f"no log has the head {head} of a saved state: lines were removed")
        for head in heads
        if head not in known
    ]
    spans = effective_spans([reading.spans for reading in readings.values()])
    notes = [note for reading in readings.values() for note in reading.notes]
    epochs, of_epochs = _prove_epochs(spans, orders, notes)
    kept = {(span.rank, span.line): span for span in spans}
    failed = [
        each
        for reading in readings.values()
        for line, each in reading.failed
        if (span := kept.get((each.rank, line))) is not None and span.start <= each.step < span.stop
    ]
    every = [span for reading in readings.values() for span in reading.spans]
    num_steps = sum(span.stop - span.start for span in every)
    sessions = sorted({(span.session.time, span.world_size) for span in every})
    sizes = [size for _, size in sessions]
    return Proof(
        problems=problems + of_epochs, notes=notes, epochs=epochs,
        failed=sorted(failed, key=lambda each: (each.epoch, each.step, each.rank)),
        num_steps=num_steps, num_superseded=num_steps - sum(span.stop - span.start for span in spans),
        num_unobserved=sum(reading.num_unobserved for reading in readings.values()),
        world_sizes=[size for at, size in enumerate(sizes) if not at or size != sizes[at - 1]],
        spans=spans, orders=orders,
    )  # fmt: skip


def _check_parents(readings: Mapping[str, LogReading], known: Mapping[str, tuple[int, int]]) -> list[Problem]:
    problems = []
    for file, reading in readings.items():
        for line, parent, position in reading.parents:
            if parent not in known:
                what = f"the restored state has the head {parent}, which no log has: lines are missing"
                problems.append(Problem(file, line, what))
            elif known[parent] != position and position[1] != 0:  # a script may go to the next epoch with `set_epoch`
                was, now = (f"epoch {epoch}, step {step}" for epoch, step in (known[parent], position))
                problems.append(
                    Problem(file, line, f"the restored state is that of {was}, and the iteration begins at {now}")
                )
    return problems


def _prove_epochs(
    spans: Sequence[Span], orders: Mapping[str, RecordedOrder], notes: list[str]
) -> tuple[list[EpochProof], list[Problem]]:
    by_epoch: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_epoch[span.epoch].append(span)
    epochs, problems = [], []
    for epoch in sorted(by_epoch):
        own = by_epoch[epoch]
        found, other = _prove_epoch(own, orders, notes, is_last=epoch == max(by_epoch))
        epochs.append(found)
        problems += other
    return epochs, problems


def _prove_epoch(
    spans: Sequence[Span], orders: Mapping[str, RecordedOrder], notes: list[str], *, is_last: bool
) -> tuple[EpochProof, list[Problem]]:
    epoch, order = spans[0].epoch, orders[spans[0].order]
    problems = [
        Problem(log_name(span.rank), span.line, f"epoch {epoch} continues in another order")
        for span in spans
        if orders[span.order].identity != order.identity
    ]
    if problems:
        return _epoch_proof(epoch, 0, 0, 0, _Counts([])), problems
    num_steps = order.plan(epoch).max_steps
    coverage = cover(spans)
    start, stop = coverage.start, coverage.stop
    problems += [Problem(log_name(span.rank), span.line, f"epoch {epoch}: {what}") for what, span in coverage.problems]
    late = [span for span in spans if span.ended] if stop < num_steps else []
    if coverage.ahead and (late or not is_last):
        size = max(span.world_size for span in spans if span.stop > stop)
        missing = sorted(set(range(size)) - set(coverage.ahead))
        span = next(span for span in spans if span.rank in coverage.ahead and span.stop > stop)
        what = f"epoch {epoch}: ranks {coverage.ahead} delivered step {stop}, but the logs of ranks {missing} lack it"
        problems.append(Problem(log_name(missing[0]) if missing else log_name(span.rank), None, what))
    if start:
        notes.append(f"epoch {epoch} was recorded from step {start} on")
    counts = _Counts(order.parts)
    inside = [span for span in spans if span.start < stop]
    for span in inside:
        for index in indexes(order, span):
            if index.step < stop:
                counts.add(order.samples(index)[: len(index) - index.num_padded], index.source)
    found = _epoch_proof(epoch, num_steps, start, stop, counts)
    if found.finished and not problems:
        problems += [Problem(log_name(spans[0].rank), None, f"epoch {epoch}: {what}") for what in counts.check(order)]
    return found, problems


def _epoch_proof(epoch: int, num_steps: int, start: int, stop: int, counts: _Counts) -> EpochProof:
    counted = counts.counted()
    return EpochProof(
        epoch=epoch, num_steps=num_steps, first_step=start, stop_step=stop,
        finished=start == 0 and stop == num_steps > 0, num_delivered=int(sum(each.sum() for each in counted)),
        num_distinct=int(sum(np.count_nonzero(each) for each in counted)), num_left_out=counts.num_left_out(),
        most_often=int(max((each.max(initial=0) for each in counted), default=0)),
    )  # fmt: skip


class _Counts:
    """Counts the deliveries of each sample of each dataset."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._counts = [np.zeros(part.num_samples, np.int64) for part in parts]
        self._waiting: list[tuple[Indices, Indices | None]] = []
        self._num_waiting = 0

    def add(self, samples: Indices, sources: Indices | None) -> None:
        self._waiting.append((samples, None if sources is None else sources[: len(samples)]))
        self._num_waiting += len(samples)
        if self._num_waiting > _MAX_SAMPLES:
            self.counted()

    def counted(self) -> list[Indices]:
        """Returns the number of deliveries of each sample, for each dataset."""
        for number, counts in enumerate(self._counts):
            own = [each if where is None else each[where == number] for each, where in self._waiting]
            if own:
                counts += np.bincount(np.concatenate(own), minlength=len(counts))
        self._waiting, self._num_waiting = [], 0
        return self._counts

    @cached_property
    def _expected(self) -> list[Indices]:
        """Returns how often each sample of each dataset belongs to the epoch."""
        return [
            np.ones(part.num_samples, np.int64)
            if part.numbers is None
            else np.bincount(part.numbers, minlength=part.num_samples)
            for part in self._parts
        ]

    def num_left_out(self) -> int:
        pairs = zip(self._expected, self.counted(), strict=True)
        return int(sum(np.maximum(expected - counts, 0).sum() for expected, counts in pairs))

    def check(self, order: RecordedOrder) -> list[str]:
        """Returns what contradicts the order: consecutive samples come as often as they belong there."""
        if order.options["kind"] != "epoch":
            return []  # mixtures begin a dataset again, packed rows cut samples: their steps are compared one by one
        drops = order.options["last_batch"] == "drop"
        expected, counts = self._expected[0], self.counted()[0]
        wrong = np.flatnonzero((counts > expected) | ((counts < expected) & (not drops)))
        return [
            f"sample {sample} was delivered {counts[sample]} times instead of {expected[sample]}"
            for sample in wrong[:5].tolist()
        ]
