"""Says which data set of a mixture comes next, and which of its samples: a pure function of a few numbers, like `plan`.

Every data set goes through epochs of its own, batch by batch, whatever the others do; one that ends begins its next
epoch. An epoch of the mixture is a run of steps in which each data set gives a fixed number of batches (or parts of
batches), the same in every epoch. So how far each of them is at any step of any epoch takes one multiplication and one
look at a table, and no replay. docs/order.md has the scheme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.plan import BatchIndex, EpochPlan
from concurrent_loader.proportions import largest_remainder
from concurrent_loader.shuffle import derive_key, hash_items
from storage.errors import ConfigurationError

__all__ = ["MixturePlan", "Per", "Place", "Stop"]

Indices = npt.NDArray[np.int64]
Per = Literal["batch", "sample"]
Stop = Literal["shortest", "longest"] | int

_MAX_STEPS = 1 << 27  # the table of an epoch's steps then takes 2 GiB
_PLANS_KEPT = 3  # of each data set: the epoch that ends, the one that begins, and one that is asked for besides


@dataclass(frozen=True, slots=True)
class Place:
    """What the number of a unit means.

    Attributes:
        child: The data set.
        epoch: Of that data set.
        unit: As the data set counts them.
    """

    child: int
    epoch: int
    unit: int


@dataclass(frozen=True, kw_only=True, eq=False)
class MixturePlan:
    """The order of one epoch of a mixture; see `concurrent_loader.source.Plan`.

    A unit's number says which unit of which data set in which of that one's epochs it is; see `place`.

    Args:
        children: Each data set's order in its epoch 0, with the samples that it gives to a global batch as its global
            batch size: all (``per="batch"``), or its part of them (``per="sample"``).
        shares: Of each data set; they add up to 1.
        per: ``"batch"``: each batch is of one data set. ``"sample"``: each batch has samples of all.
        stop: When an epoch ends: ``"shortest"``: before any data set would begin again. ``"longest"``: when all have
            been through. Or after so many steps.
        epoch: From 0.
        seed: Of the order of data sets.
        shuffle: Whether data sets take turns at random, or evenly.

    Raises:
        ConfigurationError: It cannot work.

    Thread-safety: All methods may be called from any thread.
    """

    children: tuple[EpochPlan, ...]
    shares: tuple[float, ...]
    per: Per
    stop: Stop
    epoch: int
    seed: int
    shuffle: bool

    def __post_init__(self) -> None:
        for child, steps in enumerate(self._child_steps):
            if not steps:
                raise ConfigurationError(
                    "a data set of the mixture has not enough samples for a single batch; make batches smaller, or do "
                    "not drop the last", expected=self.children[child].global_batch_size,
                    got=f"data set {child}: {self.children[child].num_samples} samples",
                )  # fmt: skip
        for child, times in enumerate(self.turns):
            if not times:
                raise ConfigurationError(
                    "a data set of the mixture would never have its turn; give it more weight, or an epoch more steps",
                    got=f"data set {child}: share {self.shares[child]:.3g} of {sum(self.turns)} steps",
                )  # fmt: skip
        if self.max_steps > _MAX_STEPS:
            raise ConfigurationError(
                "an epoch of a mixture has too many steps", expected=_MAX_STEPS, got=self.max_steps
            )

    # -- size ------------------------------------------------------------------------------------------------------

    @cached_property
    def _child_steps(self) -> tuple[int, ...]:
        """Steps of an epoch of each data set."""
        return tuple(child.max_steps for child in self.children)

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """How many batches, or parts of batches, each data set gives in an epoch of the mixture."""
        steps = self._child_steps
        if self.per == "sample":
            num_steps = {"shortest": min(steps), "longest": max(steps)}.get(str(self.stop), self.stop)
            return (int(num_steps),) * len(steps)
        if isinstance(self.stop, int):
            return tuple(largest_remainder(self.shares, self.stop))
        scales = [steps_ / share for steps_, share in zip(steps, self.shares, strict=True)]
        if self.stop == "shortest":
            return tuple(math.floor(min(scales) * share + 1e-6) for share in self.shares)
        return tuple(math.ceil(max(scales) * share - 1e-6) for share in self.shares)

    @property
    def max_steps(self) -> int:
        """Steps of an epoch; the same on all ranks."""
        return self.turns[0] if self.per == "sample" else sum(self.turns)

    @property
    def global_batch_size(self) -> int:
        """Samples of a full batch, all ranks together."""
        sizes = [child.global_batch_size for child in self.children]
        return sum(sizes) if self.per == "sample" else sizes[0]

    @property
    def num_groups(self) -> int:
        """Groups in effect, of the data set that has most."""
        return max(child.num_groups for child in self.children)

    @property
    def window(self) -> int:
        """Shuffle window in samples, of the data set that has the largest."""
        return max(child.window for child in self.children)

    @cached_property
    def fingerprint(self) -> int:
        """Names the data sets and all that the order of their turns depends on, beside seed and batch size."""
        facts = {
            "children": [(each.fingerprint, each.num_groups, each.window, each.max_steps) for each in self.children],
            "per": self.per,
            "shares": [share.hex() for share in self.shares],
            "stop": self.stop,
        }
        return xxhash.xxh3_64_intdigest(json.dumps(facts, sort_keys=True).encode()) >> 1

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        """Batches that a rank gets.

        Raises:
            ConfigurationError: The number of ranks does not divide the global batch size.
        """
        if not 0 <= rank < world_size:
            raise ConfigurationError("rank must lie in 0 … world_size - 1", got=(rank, world_size))
        if self.global_batch_size % world_size:
            raise ConfigurationError(
                "the number of ranks must divide the global batch size", expected=self.global_batch_size, got=world_size
            )
        return self.max_steps

    # -- units -----------------------------------------------------------------------------------------------------

    @cached_property
    def _unit_starts(self) -> Indices:
        """(num_children + 1,): where each data set's units begin among those of all."""
        return np.cumsum([0, *(child.num_shards for child in self.children)], dtype=np.int64)

    def place(self, unit: int) -> Place:
        """Says what a unit's number means."""
        round_, within = divmod(unit, int(self._unit_starts[-1]))
        child = int(np.searchsorted(self._unit_starts, within, side="right")) - 1
        first_epoch = self.epoch * self.turns[child] // self._child_steps[child]
        return Place(child, first_epoch + round_, within - int(self._unit_starts[child]))

    def units_within(self, units: Indices) -> Indices:
        """Returns the numbers that units have in their data sets."""
        within = units % self._unit_starts[-1]
        own: Indices = within - self._unit_starts[np.searchsorted(self._unit_starts, within, side="right") - 1]
        return own

    def child_plan(self, child: int, epoch: int) -> EpochPlan:
        """Returns a data set's order in one of its epochs."""
        plan = self._plans.get((child, epoch))
        if plan is None:
            plan = self._plans[child, epoch] = replace(self.children[child], epoch=epoch % 2**64)
            for old in list(self._plans)[: -_PLANS_KEPT * len(self.children)]:
                self._plans.pop(old, None)
        return plan

    @cached_property
    def _plans(self) -> dict[tuple[int, int], EpochPlan]:
        return {}

    def position(self, child: int, step: int) -> tuple[int, int]:
        """Returns (epoch, step) of a data set's next batch when the mixture is at a step."""
        return divmod(self._turns_before(child, step), self._child_steps[child])

    def _turns_before(self, child: int, step: int) -> int:
        """How many batches a data set has given before a step, all epochs together."""
        within = step if self.per == "sample" else int(np.searchsorted(self._steps_of(child), step))
        return self.epoch * self.turns[child] + within

    # -- whose turn it is ------------------------------------------------------------------------------------------

    @cached_property
    def _order(self) -> Indices:
        """(max_steps,): the turns in their order; turn ``start of c + j`` is the j-th of data set c."""
        keys = [self._keys(child) for child in range(len(self.children))]
        return np.argsort(np.concatenate(keys), kind="stable")

    def _keys(self, child: int) -> npt.NDArray[np.float64]:
        """Where in the epoch each turn of a data set should be: one in each of as many equal parts of it."""
        turns = self.turns[child]
        offset: npt.NDArray[np.float64] | float = 0.5
        if self.shuffle:
            hashed = hash_items(derive_key("turns", self.seed, self.epoch, child), 0, turns)
            offset = (hashed >> np.uint64(11)).astype(np.float64) / 2**53
        return (np.arange(turns) + offset) / turns

    @cached_property
    def _turn_starts(self) -> Indices:
        return np.cumsum([0, *self.turns], dtype=np.int64)

    @cached_property
    def _steps_of_turns(self) -> Indices:
        steps = np.empty(self.max_steps, np.int64)
        steps[self._order] = np.arange(self.max_steps)
        return steps

    def _steps_of(self, child: int) -> Indices:
        """(turns,): the steps in which it is a data set's turn, ascending."""
        return self._steps_of_turns[self._turn_starts[child] : self._turn_starts[child + 1]]

    def _whose(self, step: int) -> Sequence[int]:
        if self.per == "sample":
            return range(len(self.children))
        return (int(np.searchsorted(self._turn_starts, self._order[step], side="right")) - 1,)

    # -- samples ---------------------------------------------------------------------------------------------------

    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """Iterates over a rank's batches from a step on."""
        num_steps = self.num_steps(rank, world_size)
        if not 0 <= start_step <= num_steps:
            raise ConfigurationError("no such step", expected=f"0 … {num_steps}", got=start_step)
        return self._iterate(start_step, rank, world_size)

    def _iterate(self, start_step: int, rank: int, world_size: int) -> Iterator[BatchIndex]:
        streams = [self._stream(child, *self.position(child, start_step)) for child in range(len(self.children))]
        for step in range(start_step, self.max_steps):
            parts = [(child, next(streams[child])) for child in self._whose(step)]
            yield self._merged(step, parts, rank, world_size)

    def _stream(self, child: int, epoch: int, step: int) -> Iterator[BatchIndex]:
        """Yields a data set's global batches from a place in it on, without end; units are numbered for the mixture."""
        first_epoch = self.epoch * self.turns[child] // self._child_steps[child]
        while True:
            shift = (epoch - first_epoch) * self._unit_starts[-1] + self._unit_starts[child]
            for index in self.child_plan(child, epoch).batches(step):
                yield replace(index, shard=index.shard + shift)
            epoch, step = epoch + 1, 0

    def _merged(self, step: int, parts: Sequence[tuple[int, BatchIndex]], rank: int, world_size: int) -> BatchIndex:
        """Cuts a rank's part out of a global batch in which the data sets' samples are evenly spread.

        Of a short batch with fewer samples than there are ranks, a rank that would get none gets one as padding.
        """
        sizes = tuple(len(index) for _, index in parts)
        num = sum(sizes)
        spread = _spread(sizes)[rank * num // world_size : (rank + 1) * num // world_size]
        padded = np.concatenate([np.arange(len(index)) >= len(index) - index.num_padded for _, index in parts])[spread]
        spread = np.concatenate([spread[~padded], spread[padded]])
        if not len(spread):
            spread, padded = _spread(sizes)[:1], np.ones(1, np.bool_)
        shard, row, sample = (
            np.concatenate([getattr(index, name) for _, index in parts])[spread] for name in ("shard", "row", "sample")
        )
        source = np.repeat([child for child, _ in parts], sizes)[spread]
        return BatchIndex(step, shard, row, sample, num_padded=int(padded.sum()), source=source)

    # -- for the pipeline ------------------------------------------------------------------------------------------

    def shards_in_order(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, int]]:
        """Iterates lazily over (step of first use, unit) from a step on, in the order in which a rank needs them."""
        return ((step, unit) for step, unit in self.upcoming(start_step, rank, world_size) if unit is not None)

    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]:
        """Iterates over the units in the order in which a worker needs them; see `EpochPlan.upcoming`."""
        return self._iterate_units(self.batches(start_step, rank, world_size), worker, num_workers)

    def _iterate_units(
        self, batches: Iterator[BatchIndex], worker: int, num_workers: int
    ) -> Iterator[tuple[int, int | None]]:
        seen = [np.zeros(child.num_shards, np.bool_) for child in self.children]
        rounds = [-1] * len(self.children)
        for index in batches:
            own = (
                index.shard[: len(index) - index.num_padded] if index.step % num_workers == worker else index.shard[:0]
            )
            for unit in dict.fromkeys(own.tolist()):
                round_, within = divmod(unit, int(self._unit_starts[-1]))
                child = int(np.searchsorted(self._unit_starts, within, side="right")) - 1
                if rounds[child] != round_:
                    rounds[child] = round_
                    seen[child][:] = False
                within -= int(self._unit_starts[child])
                if not seen[child][within]:
                    seen[child][within] = True
                    yield index.step, unit
            yield index.step, None

    def last_use_step(self, shard: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns a step after which no rank needs a unit in this epoch, padding aside; -1 if none ever does."""
        place = self.place(shard)
        last = self.child_plan(place.child, place.epoch).last_use_step(place.unit)
        turn = place.epoch * self._child_steps[place.child] + last - self.epoch * self.turns[place.child]
        if last < 0 or turn < 0:
            return -1
        if turn >= self.turns[place.child]:
            return self.max_steps - 1
        return turn if self.per == "sample" else int(self._steps_of(place.child)[turn])

    def max_uses(self, shard: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns how many of a unit's samples a rank gets at most in that epoch of its data set."""
        place = self.place(shard)
        return self.child_plan(place.child, place.epoch).max_uses(place.unit)


def _spread(sizes: tuple[int, ...]) -> Indices:
    """(sum,): parts of these sizes, strung together and then mixed evenly: any run has its share of each.

    Fractions that are equal give equal floats, and other ones other floats: division rounds correctly, and sizes are
    far below 2**24. So a part of the batch is in the same order however it is cut out.
    """
    keys = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes if size] or [np.empty(0)])
    return np.argsort(keys, kind="stable")
