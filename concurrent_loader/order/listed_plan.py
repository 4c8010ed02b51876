"""Plans an epoch whose batches are listed one by one, such as batches of similar length.

The list holds a number per sample of the epoch, in contrast to `EpochPlan`, which computes any place on demand. Ranks
take equal contiguous parts of each global batch, whose samples are sorted by a hash of their unit if the plan has
groups. So a rank meets mostly the same units in all batches, although no unit belongs to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.batching import Batches
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.order.shuffle import derive_key, hash_items
from concurrent_loader.order.unit_usage import UnitUsage
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["BatchListPlan", "ListedPlan"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ListedPlan(ABC):
    """The order of one epoch as a list of parts of batches; see `concurrent_loader.order.protocol.Plan`.

    Args:
        bounds: (num_units + 1,) int64, number of each unit's first sample, and the number of samples.
        global_batch_size: Largest number of samples in a global batch.
        seed: Seed of the order.
        epoch: Number of the epoch, from 0.
        groups: Number of groups of ranks; 1 keeps the samples of a batch in the given order.
        window: Shuffle window in samples.
        shuffle: Whether samples are shuffled.
        fingerprint: Fingerprint of the samples and of everything that the batches depend on.

    Thread-safety: All methods may be called from any thread.
    """

    bounds: Indices
    global_batch_size: int
    seed: int
    epoch: int
    groups: int
    window: int
    shuffle: bool
    fingerprint: int
    _uses: dict[tuple[int, int], tuple[Indices, Indices]] = field(default_factory=dict, init=False, repr=False)

    # -- members that each kind of list defines --------------------------------------------------------------------

    @property
    @abstractmethod
    def max_steps(self) -> int:
        """Number of steps of every rank."""

    @abstractmethod
    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> BatchIndex:
        """Returns a rank's part of one batch.

        Raises:
            ConfigurationError: The step does not exist.
        """

    @property
    @abstractmethod
    def _all_units(self) -> Indices:
        """(n,): unit of each entry of the list."""

    @property
    @abstractmethod
    def _steps(self) -> Indices:
        """(n,): step of each entry of the list."""

    @abstractmethod
    def _ranks(self, world_size: int) -> Indices:
        """(n,): rank that gets each entry of the list."""

    # -- size ------------------------------------------------------------------------------------------------------

    @property
    def num_groups(self) -> int:
        """Number of groups, as given."""
        return self.groups

    @property
    def num_units(self) -> int:
        """Number of units, empty ones included."""
        return len(self.bounds) - 1

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        """Returns the number of a rank's batches, the same on all ranks."""
        if not 0 <= rank < world_size:
            raise ConfigurationError("rank must lie in 0 … world_size - 1", got=(rank, world_size))
        return self.max_steps

    def _check_step(self, step: int, rank: int, world_size: int) -> None:
        if not 0 <= step < self.num_steps(rank, world_size):
            raise ConfigurationError("the epoch has no such step", expected=f"0 … {self.max_steps - 1}", got=step)

    # -- for the pipeline ------------------------------------------------------------------------------------------

    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """Iterates over a rank's batches from a step on."""
        num_steps = self.num_steps(rank, world_size)
        if not 0 <= start_step <= num_steps:
            raise ConfigurationError("the epoch has no such step", expected=f"0 … {num_steps}", got=start_step)
        return (self.batch(step, rank, world_size) for step in range(start_step, num_steps))

    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]:
        """Iterates over the units in the order in which a worker needs them; see `EpochPlan.upcoming`."""
        seen = np.zeros(self.num_units, np.bool_)
        for index in self.batches(start_step, rank, world_size):
            if index.step % num_workers == worker:
                for unit in dict.fromkeys(index.shard[: len(index) - index.num_padded].tolist()):
                    if not seen[unit]:
                        seen[unit] = True
                        yield index.step, unit
            yield index.step, None

    def last_use_step(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns the step after which a rank does not need a unit, padding aside; -1 if the rank never needs it."""
        return int(self._rank_uses(rank, world_size)[0][unit])

    def max_samples_used(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns the number of a unit's samples that a rank gets in the whole epoch, padding aside."""
        return int(self._rank_uses(rank, world_size)[1][unit])

    def unit_usage(self, world_size: int = 1) -> UnitUsage:
        """Returns the first and last use of every unit by any rank, for a cache that plans its evictions."""
        first, last = np.full(self.num_units, np.inf), np.full(self.num_units, -1.0)
        units, steps, ranks = self._all_units, self._steps, self._ranks(world_size)
        np.minimum.at(first, units, steps)
        np.maximum.at(last, units, steps)
        lowest, highest = np.full(self.num_units, world_size), np.full(self.num_units, -1)
        np.minimum.at(lowest, units, ranks)
        np.maximum.at(highest, units, ranks)
        return UnitUsage(first, last, highest > lowest)

    def _units_of(self, samples: Indices) -> Indices:
        return np.searchsorted(self.bounds, samples, side="right") - 1

    def _rank_uses(self, rank: int, world_size: int) -> tuple[Indices, Indices]:
        found = self._uses.get((rank, world_size))
        if found is None:
            own = self._ranks(world_size) == rank
            last = np.full(self.num_units, -1, np.int64)
            np.maximum.at(last, self._all_units[own], self._steps[own])
            found = self._uses[rank, world_size] = last, np.bincount(self._all_units[own], minlength=self.num_units)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchListPlan(ListedPlan):
    """The order of one epoch as a list of batches.

    Args:
        draw: Function from an epoch to its batches.
    """

    draw: Callable[[int], Batches]

    @property
    def max_steps(self) -> int:
        return len(self._batches.ends)

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> BatchIndex:
        """Returns a rank's part of one batch. A rank without a sample in a small batch gets one padding sample."""
        self._check_step(step, rank, world_size)
        start, stop, size = self._starts[step], self._batches.ends[step], int(self._batches.sizes[step])
        whole = self._samples[start:stop]
        num = len(whole)
        own = whole[rank * num // world_size : (rank + 1) * num // world_size]
        wanted = (rank + 1) * size // world_size - rank * size // world_size
        num_padded = max(wanted - len(own), 0 if len(own) else 1)
        samples = np.concatenate([own, whole[(rank + np.arange(num_padded)) % num]])
        units = self._units_of(samples)
        return BatchIndex(step, units, samples - self.bounds[units], samples, num_padded)

    @cached_property
    def _batches(self) -> Batches:
        return self.draw(self.epoch)

    @cached_property
    def _starts(self) -> Indices:
        return np.concatenate([np.zeros(1, np.int64), self._batches.ends[:-1]])

    @cached_property
    def _steps(self) -> Indices:
        return np.repeat(np.arange(self.max_steps), self._batches.ends - self._starts[: self.max_steps])

    @cached_property
    def _samples(self) -> Indices:
        """(n,): samples, batch after batch, sorted by a hash of their unit within a batch."""
        samples = self._batches.samples
        if self.groups == 1:
            return samples
        keys = hash_items(derive_key("spread", self.seed, self.epoch), 0, self.num_units)
        return samples[np.lexsort((keys[self._units_of(samples)], self._steps))]

    @cached_property
    def _all_units(self) -> Indices:
        return self._units_of(self._samples)

    def _ranks(self, world_size: int) -> Indices:
        sizes = self._batches.ends - self._starts[: self.max_steps]
        within = np.arange(len(self._samples)) - self._starts[self._steps]
        # The rank r with r * n // R <= i < (r + 1) * n // R.
        return ((within + 1) * world_size - 1) // sizes[self._steps]
