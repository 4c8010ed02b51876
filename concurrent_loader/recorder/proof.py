"""Result of `prove`: what a run delivered, and every place where its logs do not prove it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.recorder.history import Span
from concurrent_loader.recorder.order_file import RecordedOrder
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["DeliveredStep", "EpochProof", "FailedSamples", "Problem", "Proof", "indexes"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """A place where the logs do not prove what they claim.

    Attributes:
        file: Name of the file.
        line: Number of the line, from 1; None for a file as a whole.
        what: Description of the problem.
    """

    file: str
    line: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProof:
    """What a run delivered in one epoch.

    Attributes:
        epoch: Number of the epoch.
        num_steps: Number of steps of the whole epoch.
        first_step: First step that was recorded.
        stop_step: Step after the last one that all ranks delivered.
        finished: Whether every rank delivered every step.
        num_delivered: Number of samples delivered by these steps, padding aside.
        num_distinct: Number of different samples among them.
        num_left_out: Number of samples of the epoch that these steps did not deliver: those of the steps that are
            missing, and of a last batch that was dropped.
        most_often: Largest number of deliveries of one sample: 1 unless samples are drawn or cut into pieces.
    """

    epoch: int
    num_steps: int
    first_step: int
    stop_step: int
    finished: bool
    num_delivered: int
    num_distinct: int
    num_left_out: int
    most_often: int


@dataclass(frozen=True, slots=True)
class FailedSamples:
    """Samples of a step that could not be decoded, and were skipped or replaced.

    Attributes:
        rank: Rank of the batch.
        epoch: Epoch of the batch.
        step: Step of the batch.
        samples: Numbers of the samples.
    """

    rank: int
    epoch: int
    step: int
    samples: list[int]


@dataclass(frozen=True, slots=True)
class DeliveredStep:
    """The samples that one rank saw in one step.

    Attributes:
        rank: Rank of the batch.
        epoch: Epoch of the batch.
        step: Step of the batch.
        samples: Numbers of the samples as planned, in order.
        shards: Number of each sample's shard in its dataset; empty for a mixture.
        sources: Number of each sample's dataset in a mixture; empty without a mixture.
        num_padded: Number of padding samples at the end.
        failed: Numbers of the samples that were skipped or replaced.
        order: Digest of the epoch's order.
    """

    rank: int
    epoch: int
    step: int
    samples: list[int]
    shards: list[int]
    sources: list[int]
    num_padded: int
    failed: list[int]
    order: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the logs of a run prove.

    Attributes:
        problems: Places where the logs are damaged, incomplete or contradict the order; empty if all is proven.
        notes: Facts about the run that are no problem, such as restarts and torn lines.
        epochs: Epochs in ascending order.
        failed: Samples that were skipped or replaced, in the steps that count.
        num_steps: Number of recorded steps of all ranks.
        num_superseded: Number of them that were repeated later from a checkpoint.
        num_unobserved: Number of them whose batches carry no sample numbers, because of a ``collate_fn``.
        world_sizes: Numbers of ranks in the order of the sessions, without repetitions.
    """

    problems: list[Problem]
    notes: list[str]
    epochs: list[EpochProof]
    failed: list[FailedSamples]
    num_steps: int
    num_superseded: int
    num_unobserved: int
    world_sizes: list[int]
    spans: Sequence[Span] = field(repr=False)
    orders: Mapping[str, RecordedOrder] = field(repr=False)

    @property
    def proven(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Returns the proof as plain values, for JSON."""
        names = ("problems", "epochs", "failed")
        lists = {name: [_plain(each) for each in getattr(self, name)] for name in names}
        counts = ("notes", "num_steps", "num_superseded", "num_unobserved", "world_sizes")
        return {"proven": self.proven, **lists, **{name: getattr(self, name) for name in counts}}

    def locate(self, number: int) -> tuple[int, int]:
        """Returns the (epoch, step) of a step that is counted from the first step of epoch 0.

        Raises:
            ConfigurationError: No such step was recorded.
        """
        left = number
        for each in self.epochs:
            if left < each.num_steps:
                return each.epoch, left
            left -= each.num_steps
        raise ConfigurationError("the run has recorded no such step", got=number)

    def step(self, epoch: int, step: int) -> list[DeliveredStep]:
        """Returns what each rank saw in a step.

        Raises:
            ConfigurationError: The step was not recorded.

        Example:
            >>> from concurrent_loader import NativeDataLoader, ShardDataset
            >>> from concurrent_loader.recorder import prove
            >>> for batch in NativeDataLoader(ShardDataset("photos"), batch_size=8, recorder="runs/8"): pass
            >>> prove("runs/8").step(0, 2)[0].samples
            [16, 17, 18, 19]
        """
        found = []
        for span in self.spans:
            if span.epoch == epoch and span.start <= step < span.stop:
                order = self.orders[span.order]
                index = next(order.plan(epoch).batches(step, span.rank, span.world_size))
                failed = [
                    sample
                    for each in self.failed
                    if (each.rank, each.epoch, each.step) == (span.rank, epoch, step)
                    for sample in each.samples
                ]
                found.append(
                    DeliveredStep(
                        span.rank, epoch, step, order.samples(index).tolist(),
                        index.shard.tolist() if index.source is None else [],
                        [] if index.source is None else index.source.tolist(), index.num_padded, failed, span.order,
                    )
                )  # fmt: skip
        if not found:
            raise ConfigurationError("the run has recorded no such step", got=f"epoch {epoch}, step {step}")
        return sorted(found, key=lambda each: each.rank)

    def steps_with(self, wanted: npt.NDArray[np.bool_], order: str, source: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, step, sample) of every delivery of some samples, padding included.

        Args:
            wanted: (num_samples,) bool, for each sample of the dataset.
            order: Digest of an order, whose epochs are searched.
            source: Number of the dataset in a mixture.
        """
        recorded = self.orders[order]
        for span in self.spans:
            if span.order != order:
                continue
            for index in indexes(recorded, span):
                samples = recorded.samples(index)
                own = (
                    wanted[samples]
                    if index.source is None
                    else (index.source == source) & wanted[_inside(samples, wanted)]
                )
                for sample in samples[own].tolist():
                    yield span.epoch, index.step, sample


def indexes(order: RecordedOrder, span: Span) -> Iterator[BatchIndex]:
    """Returns the batches of a span as its order has them."""
    batches = order.plan(span.epoch).batches(span.start, span.rank, span.world_size)
    return islice(batches, span.stop - span.start)


def _inside(samples: Indices, wanted: npt.NDArray[np.bool_]) -> Indices:
    """Returns valid places for samples of a mixture's other datasets, whose result is not used."""
    return np.minimum(samples, len(wanted) - 1)


def _plain(each: Problem | EpochProof | FailedSamples) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__slots__}
