"""Computes the order of an epoch as a pure function of a few numbers: no I/O, no state, no torch.

The order depends on the samples per unit, the seed, the epoch, the global batch size, the groups and the shuffle
window. It does not depend on ranks, threads, timing or caches. Any batch can be computed without the batches before it.
docs/explanation/order.md describes the scheme, its guarantees, and the effect of the window on the quality of the
shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.options import MAX_AUTOMATIC_WINDOW, LastBatch, default_groups
from concurrent_loader.order.partition import GroupSlice, Partition
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.order.shuffle import (
    MAX_ITEMS,
    MAX_WINDOW,
    derive_key,
    earliest_position,
    latest_position,
    permutation,
    shuffled_slice,
)
from concurrent_loader.order.unit_usage import UnitUsage, compute_unit_usage
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["EpochPlan"]

Indices = npt.NDArray[np.int64]

_BLOCK_SAMPLES = 65_536  # samples planned at once while iterating: about 2 MiB of indices


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """The order of one epoch.

    A plan costs nothing until its first use. Then it permutes the units, with memory and time in proportion to the
    number of units plus the window, never to the number of samples.

    Args:
        samples_per_unit: (num_units,) integers in the manifest's order. Empty units are allowed.
        seed: Seed of the order, 0 (the default) to 2**64 - 1.
        epoch: Number of the epoch, from 0. Each epoch has its own order.
        global_batch_size: Number of samples per step, over all ranks.
        groups: Number of parts that the epoch is divided into, so that each rank uses few units. The number in effect
            is `num_groups`. Default: `default_groups` with shuffling, 1 without.
        shuffle: Whether to shuffle, True by default. Otherwise samples come in the dataset's order.
        window: Maximum distance that a sample may move from its unit's place, in samples over all groups. A larger
            window shuffles better and needs more memory. A window of at least the number of samples makes each group's
            order a uniform permutation.
        last_batch: Treatment of the samples after the last full batch. ``"drop"`` leaves them out. ``"short"``, the
            default, makes a smaller batch; if it has fewer samples than there are ranks, a rank without a sample gets
            one padding sample. ``"pad"`` fills the batch with each group's first samples of the epoch, at the end of
            each rank's part. All ranks always have the same number of steps.
        fingerprint: Fingerprint of the dataset's snapshot, 0 by default. It is stored in the state and does not change
            the order.

    Raises:
        ConfigurationError: An argument is out of range.

    Thread-safety: All methods may be called from any thread.
    """

    samples_per_unit: npt.ArrayLike
    global_batch_size: int
    seed: int = 0
    epoch: int = 0
    groups: int | None = None
    shuffle: bool = True
    window: int = MAX_AUTOMATIC_WINDOW
    last_batch: LastBatch = "short"
    fingerprint: int = 0

    def __post_init__(self) -> None:
        _whole("global_batch_size", self.global_batch_size, least=1)
        _whole("window", self.window, least=1)
        _whole("seed", self.seed, least=0, most=2**64 - 1)
        _whole("epoch", self.epoch, least=0, most=2**64 - 1)
        if self.groups is not None:
            _whole("groups", self.groups, least=1)
        if self.last_batch not in ("drop", "short", "pad"):
            raise ConfigurationError("last_batch must be 'drop', 'short' or 'pad'", got=self.last_batch)
        if self.num_samples > MAX_ITEMS:
            raise ConfigurationError("an epoch has at most 2**40 samples", got=self.num_samples)
        if MAX_WINDOW < self._window < self._largest_group:
            raise ConfigurationError("a window has at most 2**31 samples per group", got=self.window)

    # -- size ------------------------------------------------------------------------------------------------------

    @cached_property
    def num_samples(self) -> int:
        """Number of samples in the epoch, before dropping and padding."""
        return int(self._lengths.sum())

    @property
    def num_units(self) -> int:
        """Number of units, empty ones included."""
        return len(self._lengths)

    @property
    def num_groups(self) -> int:
        """Number of groups in effect: gcd of ``groups`` and the global batch size; 1 for very small datasets."""
        return self._partition.num_groups

    @cached_property
    def max_steps(self) -> int:
        """Number of steps of every rank."""
        return self._partition.num_full_batches + (1 if self._partition.remainder and self.last_batch != "drop" else 0)

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        """Returns the number of a rank's batches.

        All ranks have the same number. A rank with fewer batches would block the others in an all-reduce.
        """
        self._check_rank(rank, world_size)
        return self.max_steps

    # -- samples ---------------------------------------------------------------------------------------------------

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> BatchIndex:
        """Returns a rank's part of one batch, at the same cost for any step.

        Raises:
            ConfigurationError: The step does not exist, or the number of ranks does not divide the global batch size.
        """
        if not 0 <= step < self.num_steps(rank, world_size):
            raise ConfigurationError(
                "the epoch has no such step", expected=f"0 … {self.num_steps(rank, world_size) - 1}", got=step
            )
        if step < self._partition.num_full_batches:
            return self._index(step, self._full_batches(step, step + 1, rank, world_size)[0])
        return self._last_batch(rank, world_size)

    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """Iterates over a rank's batches from a step on. Planning in blocks makes this cheaper than `batch`."""
        self._check_start(start_step, rank, world_size)
        return self._iterate(start_step, rank, world_size)

    def _iterate(self, start_step: int, rank: int, world_size: int) -> Iterator[BatchIndex]:
        for first_step, places in self._blocks(start_step, rank, world_size):
            block = self._index(first_step, places)
            for i in range(len(places)):
                yield BatchIndex(first_step + i, block.shard[i], block.row[i], block.sample[i])
        if start_step <= self._partition.num_full_batches < self.num_steps(rank, world_size):
            yield self._last_batch(rank, world_size)

    # -- units -----------------------------------------------------------------------------------------------------

    def units_in_order(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, int]]:
        """Iterates lazily over (step of first use, unit) from a step on, in the order in which a rank needs units.

        Padding is not considered: it uses units from the beginning of the epoch, in the last step only.
        """
        return ((step, unit) for step, unit in self.upcoming(start_step, rank, world_size) if unit is not None)

    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]:
        """Iterates over the units in the order in which one of a rank's workers needs them, in bounded steps.

        Yields:
            (step of first use, unit), and from time to time (step, None): no further unit is needed up to that step.
            A caller can therefore stop looking ahead even if a single unit has all samples.

        Args:
            start_step: First step, 0 by default.
            rank: Rank of the process, 0 by default.
            world_size: Number of ranks that share the epoch, 1 by default.
            worker: Number of the worker, 0 by default. It makes the steps s with ``s % num_workers == worker``.
            num_workers: Number of workers that share the rank's steps, 1 by default.
        """
        self._check_start(start_step, rank, world_size)
        return self._iterate_units(start_step, rank, world_size, worker, num_workers)

    def _iterate_units(
        self, start_step: int, rank: int, world_size: int, worker: int, num_workers: int
    ) -> Iterator[tuple[int, int | None]]:
        seen = np.zeros(self.num_units, dtype=np.bool_)
        for first_step, places in self._blocks(start_step, rank, world_size, with_last=True):
            first = (worker - first_step) % num_workers
            slots = self._find_slots(places[first::num_workers].ravel())
            fresh = np.flatnonzero(~seen[slots])
            new_slots, firsts = np.unique(slots[fresh], return_index=True)
            seen[new_slots] = True
            for i in np.argsort(firsts).tolist():
                step = first_step + first + int(fresh[firsts[i]]) // places.shape[1] * num_workers
                yield step, int(self._order[new_slots[i]])
            yield first_step + len(places) - 1, None

    def last_use_step(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns a step after which a rank does not need a unit, padding aside; -1 if the rank never needs it.

        The step is an upper bound computed from the window, at most two windows late.
        """
        uses = self._steps_used(unit, rank, world_size)
        return uses.stop - 1 if uses else -1

    def max_samples_used(self, unit: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns the maximum number of a unit's samples that a rank gets in the whole epoch, padding aside.

        The number is exact if the rank shares no group with others and no sample is dropped. A caller who has counted
        that many samples from the first step on need not wait for `last_use_step`.
        """
        self._check_unit(unit)
        self._check_rank(rank, world_size)
        partition, own = self._partition, self._partition.groups_of(rank, world_size)
        stop = int(self._ends[self._slot_of[unit]])
        start = stop - int(self._lengths[unit])
        return max(0, min(stop, partition.group_starts[own.stop]) - max(start, partition.group_starts[own.start]))

    def unit_usage(self, world_size: int = 1) -> UnitUsage:
        """Returns the first and last use of every unit by any rank, for a cache that plans its evictions."""
        return compute_unit_usage(
            self._order, self._ends, self._lengths, self._partition, window=self._window, world_size=world_size
        )

    def _check_unit(self, unit: int) -> None:
        if not 0 <= unit < self.num_units:
            raise ConfigurationError("the plan has no such unit", expected=f"0 … {self.num_units - 1}", got=unit)

    def _steps_used(self, unit: int, rank: int, world_size: int) -> range:
        """Returns the steps in which a rank may need a unit."""
        self._check_unit(unit)
        num_steps = self.num_steps(rank, world_size)
        partition, own = self._partition, self._partition.groups_of(rank, world_size)
        stop = int(self._ends[self._slot_of[unit]])
        start = stop - int(self._lengths[unit])
        first, last = num_steps, -1
        for group in partition.groups_overlapping(start, stop):
            if group in own:
                size, offset = partition.group_size(group), partition.group_starts[group]
                lowest, highest = max(start - offset, 0), min(stop - offset, size) - 1
                first = min(first, earliest_position(lowest, size, self._window) // partition.per_group)
                last = max(last, latest_position(highest, size, self._window) // partition.per_group)
        return range(first, min(last + 1, num_steps))

    # -- the row of samples, and its groups ------------------------------------------------------------------------

    @cached_property
    def _partition(self) -> Partition:
        wanted = self.groups
        if wanted is None:
            wanted = default_groups(self.global_batch_size, self.num_units) if self.shuffle else 1
        num_groups = math.gcd(self.global_batch_size, wanted)
        if self.num_samples < num_groups:
            num_groups = 1  # an empty group could not be padded
        return Partition(self.num_samples, self.global_batch_size, num_groups)

    @property
    def _largest_group(self) -> int:
        return -(-self.num_samples // self.num_groups)

    @cached_property
    def _window(self) -> int:
        # Rounded up, so that a window of all samples covers all samples of every group.
        return -(-self.window // self.num_groups) if self.shuffle else 1

    @cached_property
    def _order(self) -> Indices:
        """(num_units,): unit in each slot of the epoch's row."""
        if not self.shuffle:
            return np.arange(self.num_units, dtype=np.int64)
        return permutation(derive_key("shards", self.seed, self.epoch), self.num_units)

    @cached_property
    def _slot_of(self) -> Indices:
        slots = np.empty(self.num_units, dtype=np.int64)
        slots[self._order] = np.arange(self.num_units)
        return slots

    @cached_property
    def _ends(self) -> Indices:
        """(num_units,): end of each slot of the row, in samples."""
        return np.cumsum(self._lengths[self._order], dtype=np.int64)

    @cached_property
    def _first_samples(self) -> Indices:
        """(num_units,): number of each unit's first sample in the dataset."""
        return np.cumsum(self._lengths, dtype=np.int64) - self._lengths

    @cached_property
    def _lengths(self) -> Indices:
        return _lengths(self.samples_per_unit)

    def _places(self, group: int, start: int, stop: int) -> Indices:
        """Returns the places in the row of the ``start``-th to ``stop - 1``-th sample in a group's order."""
        partition = self._partition
        key = derive_key("window", self.seed, self.epoch, group)
        return (
            shuffled_slice(key, partition.group_size(group), self._window, start, stop) + partition.group_starts[group]
        )

    def _full_batches(self, first_step: int, stop_step: int, rank: int, world_size: int) -> Indices:
        """Returns the places of a rank's samples in full batches: (stop_step - first_step, samples per batch)."""
        per_group = self._partition.per_group
        parts = [
            self._places(piece.group, first_step * per_group, stop_step * per_group).reshape(-1, per_group)[
                :, piece.start : piece.stop
            ]
            for piece in self._partition.full_slices(rank, world_size)
        ]
        return np.concatenate(parts, axis=1)

    def _last_places(self, rank: int, world_size: int) -> Indices:
        pieces = self._partition.last_slices(rank, world_size)
        return _joined([self._places(piece.group, piece.start, piece.stop) for piece in pieces])

    def _padding_places(self, rank: int, world_size: int) -> Indices:
        return _joined([self._wrapped(piece) for piece in self._partition.padding_slices(rank, world_size)])

    def _wrapped(self, piece: GroupSlice) -> Indices:
        size = self._partition.group_size(piece.group)
        firsts = self._places(piece.group, 0, min(piece.stop, size))
        return firsts[np.arange(piece.start, piece.stop) % size]

    def _last_batch(self, rank: int, world_size: int) -> BatchIndex:
        places, num_padded = self._last_places(rank, world_size), 0
        if self.last_batch == "pad" or not len(places):
            padding = self._padding_places(rank, world_size)
            padding = padding if self.last_batch == "pad" else padding[:1]
            places, num_padded = np.concatenate([places, padding]), len(padding)
        return self._index(self._partition.num_full_batches, places, num_padded)

    def _blocks(
        self, start_step: int, rank: int, world_size: int, *, with_last: bool = False
    ) -> Iterator[tuple[int, Indices]]:
        """Yields (first step, places (steps, n)) of full batches, and optionally of the last batch without padding."""
        partition = self._partition
        # A slice of n places sorts n + 2 windows. With slices of two windows, each item is sorted twice.
        num_steps = max(
            1, 2 * self._window // partition.per_group, _BLOCK_SAMPLES * world_size // self.global_batch_size
        )
        for first in range(start_step, partition.num_full_batches, num_steps):
            yield first, self._full_batches(first, min(first + num_steps, partition.num_full_batches), rank, world_size)
        if with_last and start_step <= partition.num_full_batches < self.num_steps(rank, world_size):
            places = self._last_places(rank, world_size)
            if len(places):
                yield partition.num_full_batches, places[np.newaxis]

    def _find_slots(self, places: Indices) -> Indices:
        return np.searchsorted(self._ends, places, side="right")

    def _index(self, step: int, places: Indices, num_padded: int = 0) -> BatchIndex:
        slots = self._find_slots(places)
        units = self._order[slots]
        rows = places - (self._ends[slots] - self._lengths[units])
        return BatchIndex(step, units, rows, self._first_samples[units] + rows, num_padded)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_rank(self, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ConfigurationError("rank must lie in 0 … world_size - 1", got=(rank, world_size))
        if self.global_batch_size % world_size:
            raise ConfigurationError(
                "the number of ranks must divide the global batch size", expected=self.global_batch_size, got=world_size
            )

    def _check_start(self, start_step: int, rank: int, world_size: int) -> None:
        self._check_rank(rank, world_size)
        if not 0 <= start_step <= self.max_steps:
            raise ConfigurationError("the epoch has no such step", expected=f"0 … {self.max_steps}", got=start_step)


def _joined(parts: list[Indices]) -> Indices:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _lengths(samples_per_unit: npt.ArrayLike) -> Indices:
    given = np.asarray(samples_per_unit)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu" or int(given.min()) < 0:
        raise ConfigurationError("samples_per_unit must be one row of non-negative integers", got=given.dtype.str)
    lengths = given.astype(np.int64)  # always a copy
    lengths.flags.writeable = False
    return lengths


def _whole(name: str, value: int, *, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ConfigurationError(f"{name} must be an integer from {least}" + (f" to {most}" if most else ""), got=value)
    return value
