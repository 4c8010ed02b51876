"""Where a torch loader's order comes from, and how to find the same order again: its samplers and random generators."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from concurrent_loader.errors import LoaderStateError

__all__ = ["BegunOrder", "Drawn", "OrderSource", "Randomness", "Start", "Stateful"]


Drawn = tuple[torch.Tensor, ...]  # states of the generators that an order has of its own


@runtime_checkable
class Stateful(Protocol):
    """A sampler that can say where it is, and go there."""

    def state_dict(self) -> Any:
        """Says where."""

    def load_state_dict(self, state: Any) -> None:
        """Goes there, when it is next asked for an iterator."""


@dataclass(frozen=True, slots=True)
class Randomness:
    """States of random generators at one moment.

    Attributes:
        default: Of torch's own for the CPU; None if it does not matter.
        named: Of those that the loader and its samplers were given, in a fixed order.
    """

    default: torch.Tensor | None
    named: Drawn


@dataclass(frozen=True, slots=True)
class Start:
    """Where an iteration begins.

    torch's samplers draw from their generators when asked for the first index, others when asked for an iterator, and
    torch draws the workers' seed in between: so both moments are kept.

    Attributes:
        num_batches: Delivered before; they are left out.
        at_iter: Randomness when the sampler is asked for an iterator; None for whatever it is then.
        at_first: Randomness when it is asked for the first batch; None likewise.
        sampler: State of a sampler that has one; then it knows itself what to leave out.
    """

    num_batches: int = 0
    at_iter: Randomness | None = None
    at_first: Randomness | None = None
    sampler: Any = None


class OrderSource:
    """The sampler that says what a batch is made of, with all that its order depends on.

    Args:
        sampler: Gives lists of indices, or single indices.
        generator: The loader's, or None.
    """

    def __init__(self, sampler: Iterable[Any], generator: torch.Generator | None) -> None:
        self.sampler = sampler
        self._generator = generator

    @property
    def stateful(self) -> Stateful | None:
        """The sampler, or the one below it, if it knows its own state."""
        return next((each for each in self._samplers() if isinstance(each, Stateful)), None)

    @property
    def epoch(self) -> int | None:
        """What a sampler such as DistributedSampler was told by ``set_epoch``."""
        told = [getattr(each, "epoch", None) for each in self._samplers() if hasattr(each, "set_epoch")]
        return told[0] if told and isinstance(told[0], int) else None

    def set_epoch(self, epoch: int) -> None:
        """Tells all samplers that want to know."""
        for sampler in self._samplers():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def randomness(self, *, default: bool = True) -> Randomness:
        """The states of all generators now, or of all but torch's default one."""
        return Randomness(torch.get_rng_state() if default else None, self.drawn())

    def drawn(self) -> Drawn:
        """The states of the generators that the loader or its samplers were given."""
        return tuple(each.get_state() for each in self._generators())

    def set_drawn(self, drawn: Drawn) -> None:
        """Sets these generators."""
        for generator, state in zip(self._generators(), drawn, strict=True):
            generator.set_state(state)

    @contextlib.contextmanager
    def made(self, randomness: Randomness | None) -> Iterator[None]:
        """Sets all generators; afterwards the default one, which belongs to the whole program, is put back."""
        if randomness is None:
            yield
            return
        self.set_drawn(randomness.named)
        if randomness.default is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(randomness.default)
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def check(self, start: Start) -> None:
        """Complains about a start that is another loader's.

        Raises:
            LoaderStateError: It has other generators, or a sampler's state where there is no such sampler.
        """
        num_generators = len(self._generators())
        for randomness in (start.at_iter, start.at_first):
            if randomness is not None and len(randomness.named) != num_generators:
                raise LoaderStateError(
                    "the state is of a loader with another number of random generators",
                    expected=num_generators,
                    got=len(randomness.named),
                )
        is_new = start.sampler is None and not start.num_batches  # an epoch that has not begun, of any sampler
        if not is_new and (start.sampler is None) != (self.stateful is None):
            raise LoaderStateError("the state is of a loader with another kind of sampler")

    def _samplers(self) -> list[Any]:
        below = getattr(self.sampler, "sampler", None)
        return [self.sampler] if below is None else [self.sampler, below]

    def _generators(self) -> list[torch.Generator]:
        found: list[torch.Generator] = []
        for one in (self._generator, *(getattr(each, "generator", None) for each in self._samplers())):
            if isinstance(one, torch.Generator) and not any(one is other for other in found):
                found.append(one)
        return found


class BegunOrder:
    """What the sampler gives in one iteration, and how to find it again.

    Args:
        source: Of the order; its sampler is asked for an iterator now.
        start: Where to begin.
    """

    def __init__(self, source: OrderSource, start: Start) -> None:
        self._source = source
        self._start = start
        self._stateful = source.stateful
        self._states: deque[Any] = deque()  # of a stateful sampler, after each batch that was read and not delivered
        self._state = start.sampler  # a sampler that was told where to go need not say so before it is there
        self._at_iter = start.at_iter or source.randomness()
        self._at_first: Randomness | None = None
        self._num_delivered = 0
        with source.made(start.at_iter):
            self._given = iter(source.sampler)

    def __iter__(self) -> BegunOrder:
        return self

    def __next__(self) -> Any:
        if self._at_first is not None:
            return self._read()
        self._at_first = self._start.at_first or self._source.randomness()
        with self._source.made(self._start.at_first):
            if self._stateful is None:
                for _ in range(self._start.num_batches):
                    next(self._given)
            return self._read()

    def delivered(self) -> None:
        """Tells that the consumer has got one more batch."""
        self._num_delivered += 1
        if self._states:
            self._state = self._states.popleft()

    def position(self) -> Start:
        """Where an iteration begins that goes on after what was delivered."""
        return Start(
            num_batches=self._start.num_batches + self._num_delivered,
            at_iter=self._at_iter,
            at_first=self._at_first or self._start.at_first,
            sampler=self._state,
        )

    def drawn(self) -> Drawn:
        """The states of the generators that the order has of its own, now."""
        return self._source.drawn()

    def put_back(self, drawn: Drawn, *, if_still: Drawn) -> None:
        """Sets these generators, if they are as they were."""
        now = self._source.drawn()
        if len(now) == len(if_still) and all(torch.equal(a, b) for a, b in zip(now, if_still, strict=True)):
            self._source.set_drawn(drawn)

    def _read(self) -> Any:
        batch = next(self._given)
        if self._stateful is not None:
            self._states.append(self._state_now())
        return batch

    def _state_now(self) -> Any:
        assert self._stateful is not None
        return copy.deepcopy(self._stateful.state_dict())
