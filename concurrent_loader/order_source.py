"""Where a torch loader's order comes from, and how to find the same order again: its samplers and random generators."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from concurrent_loader.dataset_state import Places, Stateful
from concurrent_loader.errors import LoaderStateError

__all__ = ["BegunOrder", "DefaultRandomness", "Drawn", "OrderSource", "Randomness", "Start"]


Drawn = tuple[torch.Tensor, ...]  # states of the generators that an order has of its own


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
        apart: Numbers of batches that were delivered before earlier ones; they are left out, too.
        at_begin: Randomness before anything of an epoch that has not begun; None for whatever it is then.
        at_iter: Randomness when the sampler is asked for an iterator; None likewise.
        at_first: Randomness when it is asked for the first batch; None likewise.
        sampler: State of a sampler that has one; then it knows itself what to leave out.
        seed: Base of the workers' seeds, where their places depend on it.
        places: Where each worker begins; None for the beginning.
    """

    num_batches: int = 0
    apart: tuple[int, ...] = ()
    at_begin: Randomness | None = None
    at_iter: Randomness | None = None
    at_first: Randomness | None = None
    sampler: Any = None
    seed: int | None = None
    places: Places | None = None


class DefaultRandomness:
    """What torch's default generator would be after a resumed epoch, had the program not been interrupted.

    A resumed epoch draws from the states of the checkpoint, and puts the generator back: it belongs to the program. If
    nobody else draws from it, the next epoch goes on where the resumed one has come to.
    """

    def __init__(self) -> None:
        self._left: torch.Tensor | None = None
        self._reached: torch.Tensor | None = None

    def note(self, *, left: torch.Tensor, reached: torch.Tensor) -> None:
        """Notes what the generator was put back to, and what an uninterrupted program would have now."""
        self._left, self._reached = left, reached

    def go_on(self) -> None:
        """Sets the generator to what was reached, if it is still as it was left."""
        if self._left is not None and self._reached is not None and torch.equal(torch.get_rng_state(), self._left):
            torch.set_rng_state(self._reached)
        self._left = self._reached = None


class OrderSource:
    """The sampler that says what a batch is made of, with all that its order depends on.

    Args:
        sampler: Gives lists of indices, or single indices.
        generator: The loader's, or None.
        default: Where to note what torch's default generator would be.
    """

    def __init__(
        self, sampler: Iterable[Any], generator: torch.Generator | None, default: DefaultRandomness | None = None
    ) -> None:
        self.sampler = sampler
        self._generator = generator
        self._default = default or DefaultRandomness()

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
            self._default.note(left=before, reached=torch.get_rng_state())
            torch.set_rng_state(before)

    def check(self, start: Start) -> None:
        """Complains about a start that is another loader's.

        Raises:
            LoaderStateError: It has other generators, or a sampler's state where there is no such sampler.
        """
        num_generators = len(self._generators())
        for randomness in (start.at_begin, start.at_iter, start.at_first):
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
        self._num_read = start.num_batches
        self._num_delivered = start.num_batches  # before the first that is still to come
        self._apart = set(start.apart)
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

    def first_at(self, randomness: Randomness) -> None:
        """Sets the randomness at the first batch, if none has been asked for."""
        if self._at_first is None:
            self._start = replace(self._start, at_first=randomness)

    def delivered(self, number: int) -> None:
        """Tells that the consumer has got a batch.

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

    def position(self) -> Start:
        """Where an iteration begins that goes on after what was delivered."""
        return Start(
            num_batches=self._num_delivered,
            apart=tuple(sorted(self._apart)),
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
