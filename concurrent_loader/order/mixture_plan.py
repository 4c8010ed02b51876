"""Computes the order of a mixture of datasets, as a pure function of a few numbers.

Each dataset goes through its own epochs, independently of the others, and begins the next epoch when one ends. In an
epoch of the mixture, each dataset contributes a fixed number of batches (or parts of batches), the same in every epoch.
So the position of each dataset at any step takes one multiplication and one lookup in a small table (`turns`), without
a replay. docs/explanation/order.md describes the scheme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.apportion import largest_remainder
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.packed_plan import PackedPlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.order.shuffle import derive_key
from concurrent_loader.order.turns import PhasedTurns, TurnOrder
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["MixturePlan", "MixtureUnit", "Per", "Stop"]

Indices = npt.NDArray[np.int64]
ChildPlan = EpochPlan | PackedPlan
Per = Literal["batch", "sample"]
Stop = Literal["shortest", "longest"] | int

_PLANS_KEPT = 3  # per dataset: the epoch that ends, the epoch that begins, and one more


@dataclass(frozen=True, slots=True)
class MixtureUnit:
    """A decoded unit number.

    Attributes:
        child: Number of the dataset in the mixture.
        epoch: Epoch of that dataset.
        unit: Number of the unit in that dataset.
    """

    child: int
    epoch: int
    unit: int


@dataclass(frozen=True, kw_only=True, eq=False)
class MixturePlan:
    """The order of one epoch of a mixture; see `concurrent_loader.order.protocol.Plan`.

    A unit number encodes (dataset, dataset epoch, unit); see `decode_unit`.

    Args:
        children: Order of each dataset in its epoch 0. Its global batch size is the number of samples that the dataset
            contributes to a global batch: all of them (``per="batch"``) or a part (``per="sample"``). Every epoch has
            as many steps as epoch 0. Packed rows need ``per="batch"``.
        shares: Share of each dataset; they add up to 1.
        per: ``"batch"`` takes each batch from one dataset. ``"sample"`` mixes samples of all datasets in each batch.
        stop: End of an epoch: ``"shortest"`` ends it before any dataset would begin again, ``"longest"`` when every
            dataset has been used up, and a number after that many steps.
        epoch: Number of the epoch, from 0.
        seed: Seed of the order of datasets.
        shuffle: Whether datasets take turns at random. Otherwise they take turns evenly.
        phases: (first step, shares) for shares that change during an epoch, from step 0 on, ascending; only with
            ``per="batch"`` and a number as ``stop``. Default: none, ``shares`` for the whole epoch.

    Raises:
        ConfigurationError: A dataset has too few samples or too small a share, or the epoch is too long.

    Thread-safety: All methods may be called from any thread.
    """

    children: tuple[ChildPlan, ...]
    shares: tuple[float, ...]
    per: Per
    stop: Stop
    epoch: int
    seed: int
    shuffle: bool
    phases: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        for child, steps in enumerate(self._child_steps):
            if not steps:
                raise ConfigurationError(
                    "a dataset of the mixture has too few samples for a single batch; make batches smaller, or do "
                    "not drop the last one", expected=self.children[child].global_batch_size,
                    got=f"dataset {child}: {self.children[child].num_samples} samples",
                )  # fmt: skip
        for child, times in enumerate(self.turns):
            if not times:
                raise ConfigurationError(
                    "a dataset of the mixture would never have its turn; give it more weight, or an epoch more steps",
                    got=f"dataset {child}: share {self.shares[child]:.3g} of {sum(self.turns)} steps",
                )  # fmt: skip

    # -- size ------------------------------------------------------------------------------------------------------

    @cached_property
    def _child_steps(self) -> tuple[int, ...]:
        """Number of steps in an epoch of each dataset."""
        return tuple(child.max_steps for child in self.children)

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """Number of batches, or parts of batches, that each dataset contributes to an epoch of the mixture."""
        steps = self._child_steps
        if self.per == "sample":
            num_steps = {"shortest": min(steps), "longest": max(steps)}.get(str(self.stop), self.stop)
            return (int(num_steps),) * len(steps)
        if self.phases:
            return tuple(map(sum, zip(*self._phase_turns, strict=True)))
        if isinstance(self.stop, int):
            return tuple(largest_remainder(self.shares, self.stop))
        scales = [steps_ / share for steps_, share in zip(steps, self.shares, strict=True)]
        if self.stop == "shortest":
            return tuple(math.floor(min(scales) * share + 1e-6) for share in self.shares)
        return tuple(math.ceil(max(scales) * share - 1e-6) for share in self.shares)

    @cached_property
    def _phase_turns(self) -> list[list[int]]:
        """Number of turns of each dataset, for each phase."""
        assert isinstance(self.stop, int)
        first_steps = [first for first, _ in self.phases]
        lengths = [end - first for first, end in pairwise([*first_steps, self.stop])]
        return [largest_remainder(shares, length) for (_, shares), length in zip(self.phases, lengths, strict=True)]

    @property
    def max_steps(self) -> int:
        """Number of steps in an epoch, the same on all ranks."""
        return self.turns[0] if self.per == "sample" else sum(self.turns)

    @property
    def global_batch_size(self) -> int:
        """Number of samples in a full batch, over all ranks."""
        sizes = [child.global_batch_size for child in self.children]
        return sum(sizes) if self.per == "sample" else sizes[0]

    @property
    def num_groups(self) -> int:
        """Largest number of groups in effect among the datasets."""
        return max(child.num_groups for child in self.children)

    @property
    def window(self) -> int:
        """Largest shuffle window among the datasets, in samples."""
        return max(child.window for child in self.children)

    @cached_property
    def fingerprint(self) -> int:
        """Identifies the datasets and everything else that their turns depend on, except seed and batch size."""
        facts: dict[str, object] = {
            "children": [(each.fingerprint, each.num_groups, each.window, each.max_steps) for each in self.children],
            "per": self.per,
            "shares": [share.hex() for share in self.shares],
            "stop": self.stop,
        }
        if self.phases:
            facts["phases"] = [(first, [share.hex() for share in shares]) for first, shares in self.phases]
        return xxhash.xxh3_64_intdigest(json.dumps(facts, sort_keys=True).encode()) >> 1

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        """Returns the number of a rank's batches.

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
        """(num_children + 1,): number of each dataset's first unit among the units of all datasets."""
        return np.cumsum([0, *(child.num_units for child in self.children)], dtype=np.int64)

    def decode_unit(self, unit: int) -> MixtureUnit:
        """Returns the dataset, dataset epoch and unit that a unit number encodes."""
        round_, within = divmod(unit, int(self._unit_starts[-1]))
        child = int(np.searchsorted(self._unit_starts, within, side="right")) - 1
        first_epoch = self.epoch * self.turns[child] // self._child_steps[child]
        return MixtureUnit(child, first_epoch + round_, within - int(self._unit_starts[child]))

    def child_units(self, units: Indices) -> Indices:
        """Returns the numbers of units in their own datasets."""
        within = units % self._unit_starts[-1]
        own: Indices = within - self._unit_starts[np.searchsorted(self._unit_starts, within, side="right") - 1]
        return own

    def child_plan(self, child: int, epoch: int) -> ChildPlan:
        """Returns a dataset's order in one of its epochs."""
        plan = self._plans.pop((child, epoch), None)
        if plan is None:
            plan = replace(self.children[child], epoch=epoch % 2**64)
        self._plans[child, epoch] = plan  # behind those that were used before
        for old in list(self._plans)[: -_PLANS_KEPT * len(self.children)]:
            self._plans.pop(old, None)
        return plan

    @cached_property
    def _plans(self) -> dict[tuple[int, int], ChildPlan]:
        return {}

    def position(self, child: int, step: int) -> tuple[int, int]:
        """Returns (epoch, step) of a dataset's next batch at a step of the mixture."""
        return divmod(self._turns_before(child, step), self._child_steps[child])

    def _turns_before(self, child: int, step: int) -> int:
        """Returns the number of batches that a dataset has contributed before a step, over all epochs."""
        within = step if self.per == "sample" else self._order.turns_before(child, step)
        return self.epoch * self.turns[child] + within

    # -- whose turn it is ------------------------------------------------------------------------------------------

    @cached_property
    def _order(self) -> TurnOrder | PhasedTurns:
        if not self.phases:
            return self._turn_order(self.turns)
        orders = [self._turn_order(turns, number) for number, turns in enumerate(self._phase_turns)]
        return PhasedTurns(self._phase_turns, orders)

    def _turn_order(self, turns: Sequence[int], *phase: int) -> TurnOrder:
        if not self.shuffle:
            return TurnOrder(turns)
        return TurnOrder(
            turns, [derive_key("turns", self.seed, self.epoch, child, *phase) for child in range(len(turns))]
        )

    def _children_at(self, step: int) -> Sequence[int]:
        if self.per == "sample":
            return range(len(self.children))
        return (self._order.whose(step),)

    # -- samples ---------------------------------------------------------------------------------------------------

    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """Iterates over a rank's batches from a step on."""
        num_steps = self.num_steps(rank, world_size)
        if not 0 <= start_step <= num_steps:
            raise ConfigurationError("the epoch has no such step", expected=f"0 … {num_steps}", got=start_step)
        return self._iterate(start_step, rank, world_size)

    def _iterate(self, start_step: int, rank: int, world_size: int) -> Iterator[BatchIndex]:
        streams = [
            self._stream(child, *self.position(child, start_step), rank, world_size)
            for child in range(len(self.children))
        ]
        for step in range(start_step, self.max_steps):
            parts = [(child, next(streams[child])) for child in self._children_at(step)]
            yield self._merge(step, parts, rank, world_size)

    def _stream(self, child: int, epoch: int, step: int, rank: int, world_size: int) -> Iterator[BatchIndex]:
        """Yields a dataset's batches from a position on, without end, with the mixture's unit numbers.

        They are global batches; of packed rows, which are not mixed within a batch, the rank's part.
        """
        part = (rank, world_size) if isinstance(self.children[child], PackedPlan) else (0, 1)
        first_epoch = self.epoch * self.turns[child] // self._child_steps[child]
        while True:
            shift = (epoch - first_epoch) * self._unit_starts[-1] + self._unit_starts[child]
            for index in self.child_plan(child, epoch).batches(step, *part):
                yield replace(index, shard=index.shard + shift)
            epoch, step = epoch + 1, 0

    def _merge(self, step: int, parts: Sequence[tuple[int, BatchIndex]], rank: int, world_size: int) -> BatchIndex:
        """Returns a rank's part of a global batch in which the datasets' samples are evenly spread.

        In a short batch with fewer samples than ranks, a rank without a sample gets one padding sample.
        """
        child, index = parts[0]
        if index.pieces is not None:
            return replace(index, step=step, source=np.full(len(index), child))
        sizes = tuple(len(index) for _, index in parts)
        num = sum(sizes)
        spread = _interleave(sizes)[rank * num // world_size : (rank + 1) * num // world_size]
        padded = np.concatenate([np.arange(len(index)) >= len(index) - index.num_padded for _, index in parts])[spread]
        spread = np.concatenate([spread[~padded], spread[padded]])
        if not len(spread):
            spread, padded = _interleave(sizes)[:1], np.ones(1, np.bool_)
        unit, row, sample = (
            np.concatenate([getattr(index, name) for _, index in parts])[spread] for name in ("shard", "row", "sample")
        )
        source = np.repeat([child for child, _ in parts], sizes)[spread]
        return BatchIndex(step, unit, row, sample, num_padded=int(padded.sum()), source=source)

    # -- for the pipeline ------------------------------------------------------------------------------------------

    def units_in_order(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, int]]:
        """Iterates lazily over (step of first use, unit) from a step on, in the order in which a rank needs units."""
        return ((step, unit) for step, unit in self.upcoming(start_step, rank, world_size) if unit is not None)

    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]:
        """Iterates over the units in the order in which a worker needs them; see `EpochPlan.upcoming`."""
        return self._iterate_units(self.batches(start_step, rank, world_size), worker, num_workers)

    def _iterate_units(
        self, batches: Iterator[BatchIndex], worker: int, num_workers: int
    ) -> Iterator[tuple[int, int | None]]:
        seen = [np.zeros(child.num_units, np.bool_) for child in self.children]
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

    def last_use_step(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns a step after which no rank needs a unit in this epoch, padding aside; -1 if no rank ever does."""
        place = self.decode_unit(unit)
        last = self.child_plan(place.child, place.epoch).last_use_step(place.unit)
        turn = place.epoch * self._child_steps[place.child] + last - self.epoch * self.turns[place.child]
        if last < 0 or turn < 0:
            return -1
        if turn >= self.turns[place.child]:
            return self.max_steps - 1
        return turn if self.per == "sample" else self._order.step_of(place.child, turn)

    def max_samples_used(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns the maximum number of a unit's samples that a rank gets in that epoch of the dataset."""
        place = self.decode_unit(unit)
        return self.child_plan(place.child, place.epoch).max_samples_used(place.unit)


def _interleave(sizes: tuple[int, ...]) -> Indices:
    """Returns an even interleaving of parts: (sum of sizes,) positions in the parts strung together.

    Equal fractions give equal floats, and different fractions different floats, because division rounds correctly and
    sizes are far below 2**24. So a part of the batch has the same order, however it is cut out.
    """
    keys = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes if size] or [np.empty(0)])
    return np.argsort(keys, kind="stable")
