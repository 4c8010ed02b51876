"""Order of a torch loader: its samplers and random generators, and how to restore the same order."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from concurrent_loader.errors import LoaderStateError
from concurrent_loader.map_style.dataset_state import Places, Stateful

__all__ = ["DefaultGenerator", "GeneratorStates", "OrderSource", "Randomness", "ResumePoint", "SamplerRun"]


GeneratorStates = tuple[torch.Tensor, ...]  # states of the generators given to a loader or its samplers


@dataclass(frozen=True, slots=True)
class Randomness:
    """States of random generators at one moment.

    Attributes:
        default: State of torch's default CPU generator; None if it does not matter.
        named: States of the generators given to the loader and its samplers, in a fixed order.
    """

    default: torch.Tensor | None
    named: GeneratorStates


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Point at which an iteration starts or continues.

    torch's samplers draw from their generators when the first index is requested, others when an iterator is requested.
    torch draws the workers' seed in between, so the random states of both moments are kept.

    Attributes:
        num_batches: Number of batches delivered before; they are skipped.
        apart: Numbers of batches delivered before earlier ones; they are skipped too.
        at_begin: Random states before an epoch that has not started; None for the current ones.
        at_iter: Random states when the sampler's iterator is requested; None for the current ones.
        at_first: Random states when the first batch is requested; None for the current ones.
        sampler: State of a sampler with a ``state_dict``, which then skips delivered batches itself.
        seed: Base of the workers' seeds, if their positions depend on it; otherwise None.
        places: Positions at which the workers start; None for the beginning.
    """

    num_batches: int = 0
    apart: tuple[int, ...] = ()
    at_begin: Randomness | None = None
    at_iter: Randomness | None = None
    at_first: Randomness | None = None
    sampler: Any = None
    seed: int | None = None
    places: Places | None = None


class DefaultGenerator:
    """Tracks the state that torch's default generator would have after a resumed epoch in an uninterrupted program.

    A resumed epoch draws from the checkpoint's states and then restores the generator, which belongs to the program. If
    no other code draws from it, the next epoch continues from the state that the resumed epoch has reached.
    """

    def __init__(self) -> None:
        self._left: torch.Tensor | None = None
        self._reached: torch.Tensor | None = None

    def note(self, *, left: torch.Tensor, reached: torch.Tensor) -> None:
        """Records the state restored to the generator, and the state of an uninterrupted program."""
        self._left, self._reached = left, reached

    def resume(self) -> None:
        """Sets the generator to the state of an uninterrupted program, if no other code has drawn from it."""
        if self._left is not None and self._reached is not None and torch.equal(torch.get_rng_state(), self._left):
            torch.set_rng_state(self._reached)
        self._left = self._reached = None


class OrderSource:
    """A sampler with everything that its order depends on.

    Args:
        sampler: Sampler that yields lists of indices, or single indices.
        generator: Generator of the loader, or None.
        default: Tracker of torch's default generator.
    """

    def __init__(
        self, sampler: Iterable[Any], generator: torch.Generator | None, default: DefaultGenerator | None = None
    ) -> None:
        self.sampler = sampler
        self._generator = generator
        self._default = default or DefaultGenerator()

    @property
    def stateful(self) -> Stateful | None:
        """The sampler, or the one inside it, if it has a ``state_dict``; otherwise None."""
        return next((each for each in self._samplers() if isinstance(each, Stateful)), None)

    @property
    def epoch(self) -> int | None:
        """Epoch of a sampler with ``set_epoch``, such as DistributedSampler; None for others."""
        told = [getattr(each, "epoch", None) for each in self._samplers() if hasattr(each, "set_epoch")]
        return told[0] if told and isinstance(told[0], int) else None

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to all samplers with ``set_epoch``."""
        for sampler in self._samplers():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def randomness(self, *, default: bool = True) -> Randomness:
        """Returns the current states of all generators, or of all but torch's default one."""
        return Randomness(torch.get_rng_state() if default else None, self.generator_states())

    def generator_states(self) -> GeneratorStates:
        """Returns the current states of the generators given to the loader or its samplers."""
        return tuple(each.get_state() for each in self._generators())

    def set_generator_states(self, drawn: GeneratorStates) -> None:
        """Sets the generators given to the loader or its samplers."""
        for generator, state in zip(self._generators(), drawn, strict=True):
            generator.set_state(state)

    @contextlib.contextmanager
    def restored_generators(self, randomness: Randomness | None) -> Iterator[None]:
        """Sets all generators for a block, then restores torch's default one, which belongs to the program."""
        if randomness is None:
            yield
            return
        self.set_generator_states(randomness.named)
        if randomness.default is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(randomness.default)
        try:
            yield
        finally:
            self._default.note(left=before, reached=torch.get_rng_state())
            torch.set_rng_state(before)

    def check(self, start: ResumePoint) -> None:
        """Checks that a resume point fits this loader.

        Raises:
            LoaderStateError: The number of generators differs, or a sampler's state has no sampler to restore.
        """
        num_generators = len(self._generators())
        for randomness in (start.at_begin, start.at_iter, start.at_first):
            if randomness is not None and len(randomness.named) != num_generators:
                raise LoaderStateError(
                    "the state belongs to a loader with another number of random generators",
                    expected=num_generators,
                    got=len(randomness.named),
                )
        is_new = start.sampler is None and not start.num_batches  # an epoch that has not started fits any sampler
        if not is_new and (start.sampler is None) != (self.stateful is None):
            raise LoaderStateError("the state belongs to a loader with another kind of sampler")

    def _samplers(self) -> list[Any]:
        below = getattr(self.sampler, "sampler", None)
        return [self.sampler] if below is None else [self.sampler, below]

    def _generators(self) -> list[torch.Generator]:
        found: list[torch.Generator] = []
        for one in (self._generator, *(getattr(each, "generator", None) for each in self._samplers())):
            if isinstance(one, torch.Generator) and not any(one is other for other in found):
                found.append(one)
        return found


class SamplerRun:
    """Iterates over the sampler once, and tracks how to continue from any delivered batch.

    Args:
        source: Sampler and generators. The sampler's iterator is requested at once.
        start: Resume point of the iteration.
    """

    def __init__(self, source: OrderSource, start: ResumePoint) -> None:
        self._source = source
        self._start = start
        self._stateful = source.stateful
        self._states: deque[Any] = deque()  # states of a stateful sampler after each batch read and not delivered
        self._state = start.sampler  # a restored sampler need not report its state before its next batch
        self._at_iter = start.at_iter or source.randomness()
        self._at_first: Randomness | None = None
        self._num_read = start.num_batches
        self._num_delivered = start.num_batches  # batches before the first undelivered one
        self._apart = set(start.apart)
        # For each iterator: torch makes one that it does not use, if there are workers.
        if start.sampler is not None and self._stateful is not None:
            self._stateful.load_state_dict(copy.deepcopy(start.sampler))
        with source.restored_generators(start.at_iter):
            self._given = iter(source.sampler)

    def __iter__(self) -> SamplerRun:
        return self

    def __next__(self) -> Any:
        if self._at_first is not None:
            return self._read()
        self._at_first = self._start.at_first or self._source.randomness()
        with self._source.restored_generators(self._start.at_first):
            if self._stateful is None:
                for _ in range(self._start.num_batches):
                    next(self._given)
            return self._read()

    def set_first_randomness(self, randomness: Randomness) -> None:
        """Sets the random states at the first batch, if no batch has been requested yet."""
        if self._at_first is None:
            self._start = replace(self._start, at_first=randomness)

    def delivered(self, number: int) -> None:
        """Records that a batch was delivered.

        Args:
            number: Number of the batch among those read in this iteration.
        """
        in_epoch = self._start.num_batches + number
        for apart in self._start.apart:
            in_epoch += apart <= in_epoch
        self._apart.add(in_epoch)
        while self._num_delivered in self._apart:
            self._apart.remove(self._num_delivered)
            self._num_delivered += 1
            if self._states:
                self._state = self._states.popleft()

    def position(self) -> ResumePoint:
        """Returns the resume point after the delivered batches."""
        return ResumePoint(
            num_batches=self._num_delivered,
            apart=tuple(sorted(self._apart)),
            at_iter=self._at_iter,
            at_first=self._at_first or self._start.at_first,
            sampler=self._state,
        )

    def generator_states(self) -> GeneratorStates:
        """Returns the current states of the order's own generators."""
        return self._source.generator_states()

    def restore_generators(self, drawn: GeneratorStates, *, if_still: GeneratorStates) -> None:
        """Sets the order's own generators, if their states are still ``if_still``."""
        now = self._source.generator_states()
        if len(now) == len(if_still) and all(torch.equal(a, b) for a, b in zip(now, if_still, strict=True)):
            self._source.set_generator_states(drawn)

    def _read(self) -> Any:
        while True:
            batch = next(self._given)
            if self._stateful is not None:
                self._states.append(self._state_now())
            self._num_read += 1
            if self._num_read - 1 not in self._start.apart:
                return batch

    def _state_now(self) -> Any:
        assert self._stateful is not None
        return copy.deepcopy(self._stateful.state_dict())
