"""Says which sample comes next: the order of an epoch as a pure function of a few numbers. No I/O, no state, no torch.

The order depends on the samples per shard, the seed, the epoch, the global batch size, the groups and the shuffle
window; not on ranks, threads, timing or caches. Any batch can be computed without those before it. docs/order.md has
the scheme, what it guarantees and what a window costs in quality.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from concurrent_loader.plan_options import LastBatch, PlanOptions
from concurrent_loader.plan_state import PlanState
from concurrent_loader.shuffle import (
    MAX_ITEMS,
    MAX_WINDOW,
    derive_key,
    earliest_position,
    latest_position,
    permutation,
    shuffled_slice,
)
from concurrent_loader.split import Piece, Split
from concurrent_loader.uses import ShardUses, shard_uses
from concurrent_loader.window import DEFAULT_SHUFFLE_WINDOW, MAX_AUTOMATIC_WINDOW, parse_window
from storage.errors import ConfigurationError

__all__ = [
    "DEFAULT_GROUPS",
    "DEFAULT_SHUFFLE_WINDOW",
    "MAX_AUTOMATIC_WINDOW",
    "BatchIndex",
    "EpochPlan",
    "LastBatch",
    "PlanOptions",
    "PlanState",
    "parse_window",
]

Indices = npt.NDArray[np.int64]

DEFAULT_GROUPS = 8  # one a GPU of the usual node

_BLOCK_SAMPLES = 65_536  # planned at once while iterating: some 2 MiB of indices


@dataclass(frozen=True, slots=True, eq=False)
class BatchIndex:
    """What is in one rank's part of one batch, in order.

    Attributes:
        step: Number of the batch in its epoch.
        shard: (n,) int64, positions of the shards in the manifest.
        row: (n,) int64, the samples' rows in their shards.
        sample: (n,) int64, the samples' numbers in the data set.
        num_padded: How many of them, at the end, only fill the batch up.
        source: (n,) int64, which data set of a mixture each comes from; None where there is no mixture.
    """

    step: int
    shard: Indices
    row: Indices
    sample: Indices
    num_padded: int = 0
    source: Indices | None = None

    def __len__(self) -> int:
        return len(self.sample)


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """The order of one epoch.

    Building one is free: the shards' permutation is made on first use, in memory and time proportional to the shards
    plus the window, never to the samples.

    Args:
        samples_per_shard: (num_shards,) integers, in the manifest's order; zeros are fine.
        seed: Of the order; 0 to 2**64 - 1.
        epoch: From 0; each has an order of its own.
        global_batch_size: Samples a step, all ranks together.
        groups: Into how many parts the epoch is divided so that ranks meet few shards; the number in effect is
            `num_groups`. By default `DEFAULT_GROUPS` when shuffling, else 1.
        shuffle: If not, samples come in the data set's order.
        window: How far a sample may move from its shard's place, in samples, all groups together: memory against
            quality. At least the number of samples makes each group's order a uniform permutation.
        last_batch: What becomes of the samples after the last full batch. ``"drop"``: left out. ``"short"``: a smaller
            batch; where fewer samples are left than there are ranks, a rank that would get none gets one padding
            sample. ``"pad"``: filled up with each group's first samples of the epoch, so that all ranks have full
            batches; padding stands at a rank's end. All ranks have the same number of steps, whatever is chosen.
        fingerprint: Of the data set's snapshot; it is kept in the state and does not change the order.

    Raises:
        ConfigurationError: An argument that cannot work.

    Thread-safety: All methods may be called from any thread.
    """

    samples_per_shard: npt.ArrayLike
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
            raise ConfigurationError("a window has at most 2**31 samples a group", got=self.window)

    # -- size ------------------------------------------------------------------------------------------------------

    @cached_property
    def num_samples(self) -> int:
        """Samples in the epoch, before anything is dropped or padded."""
        return int(self._lengths.sum())

    @property
    def num_shards(self) -> int:
        """Shards, empty ones included."""
        return len(self._lengths)

    @property
    def num_groups(self) -> int:
        """Groups in effect: greatest common divisor of ``groups`` and the global batch size; 1 for tiny data sets."""
        return self._split.num_groups

    @cached_property
    def max_steps(self) -> int:
        """Steps of every rank."""
        return self._split.num_full + (1 if self._split.remainder and self.last_batch != "drop" else 0)

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int:
        """Batches that a rank gets; the same on all ranks: one with fewer would leave the others in an all-reduce."""
        self._check_rank(rank, world_size)
        return self.max_steps

    # -- samples ---------------------------------------------------------------------------------------------------

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> BatchIndex:
        """Computes a rank's part of one batch, at the same cost for any step.

        Raises:
            ConfigurationError: The rank has no such step, or the number of ranks does not divide the global batch size.
        """
        if not 0 <= step < self.num_steps(rank, world_size):
            raise ConfigurationError("no such step", expected=f"0 … {self.num_steps(rank, world_size) - 1}", got=step)
        if step < self._split.num_full:
            return self._index(step, self._full_batches(step, step + 1, rank, world_size)[0])
        return self._last_batch(rank, world_size)

    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]:
        """Iterates over a rank's batches from a step on; planned in blocks, so cheaper than `batch` by batch."""
        self._check_start(start_step, rank, world_size)
        return self._iterate(start_step, rank, world_size)

    def _iterate(self, start_step: int, rank: int, world_size: int) -> Iterator[BatchIndex]:
        for first_step, places in self._blocks(start_step, rank, world_size):
            block = self._index(first_step, places)
            for i in range(len(places)):
                yield BatchIndex(first_step + i, block.shard[i], block.row[i], block.sample[i])
        if start_step <= self._split.num_full < self.num_steps(rank, world_size):
            yield self._last_batch(rank, world_size)

    # -- shards ----------------------------------------------------------------------------------------------------

    def shards_in_order(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, int]]:
        """Iterates lazily over (step of first use, shard) from a step on, in the order in which a rank needs them.

        Padding is left out: it goes back to shards of the epoch's beginning, in the last step only.
        """
        return ((step, shard) for step, shard in self.upcoming(start_step, rank, world_size) if shard is not None)

    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]:
        """Iterates over the shards in the order in which one of a rank's workers needs them, in bounded steps.

        Yields:
            (step of first use, shard); and (step, None) now and then: no other shard is needed up to that step. So a
            caller can stop looking ahead, also where a single shard has all samples.

        Args:
            start_step: The first step.
            rank: Of the process.
            world_size: Number of processes that share the epoch.
            worker: Makes the steps s with ``s % num_workers == worker``.
            num_workers: Number of workers that share the rank's steps.
        """
        self._check_start(start_step, rank, world_size)
        return self._iterate_shards(start_step, rank, world_size, worker, num_workers)

    def _iterate_shards(
        self, start_step: int, rank: int, world_size: int, worker: int, num_workers: int
    ) -> Iterator[tuple[int, int | None]]:
        seen = np.zeros(self.num_shards, dtype=np.bool_)
        for first_step, places in self._blocks(start_step, rank, world_size, with_last=True):
            first = (worker - first_step) % num_workers
            slots = self._slots(places[first::num_workers].ravel())
            fresh = np.flatnonzero(~seen[slots])
            new_slots, firsts = np.unique(slots[fresh], return_index=True)
            seen[new_slots] = True
            for i in np.argsort(firsts).tolist():
                step = first_step + first + int(fresh[firsts[i]]) // places.shape[1] * num_workers
                yield step, int(self._order[new_slots[i]])
            yield first_step + len(places) - 1, None

    def first_use_step(self, shard: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns a step before which a rank does not need a shard; ``num_steps`` if it never does."""
        uses = self._uses(shard, rank, world_size)
        return uses.start if uses else self.num_steps(rank, world_size)

    def last_use_step(self, shard: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns a step after which a rank does not need a shard, padding aside; -1 if it never does.

        A bound from the window, not the last use itself: at most two windows too late.
        """
        uses = self._uses(shard, rank, world_size)
        return uses.stop - 1 if uses else -1

    def max_uses(self, shard: int, rank: int = 0, world_size: int = 1) -> int:
        """Returns how many of a shard's samples a rank gets in the whole epoch, padding aside, at most.

        Exact where the rank shares no group with others and no sample is dropped; so who has seen that many from the
        first step on need not wait for `last_use_step`.
        """
        self._check_shard(shard)
        self._check_rank(rank, world_size)
        split, own = self._split, self._split.groups_of(rank, world_size)
        stop = int(self._ends[self._slot_of[shard]])
        start = stop - int(self._lengths[shard])
        return max(0, min(stop, split.group_starts[own.stop]) - max(start, split.group_starts[own.start]))

    def uses(self, world_size: int = 1) -> ShardUses:
        """Says when the epoch uses each shard, by any of so many ranks: for a cache to plan with."""
        return shard_uses(
            self._order, self._ends, self._lengths, self._split, window=self._window, world_size=world_size
        )

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < self.num_shards:
            raise ConfigurationError("no such shard", expected=f"0 … {self.num_shards - 1}", got=shard)

    def _uses(self, shard: int, rank: int, world_size: int) -> range:
        """Steps in which a rank may need a shard."""
        self._check_shard(shard)
        num_steps = self.num_steps(rank, world_size)
        split, own = self._split, self._split.groups_of(rank, world_size)
        stop = int(self._ends[self._slot_of[shard]])
        start = stop - int(self._lengths[shard])
        first, last = num_steps, -1
        for group in split.groups_over(start, stop):
            if group in own:
                size, offset = split.group_size(group), split.group_starts[group]
                lowest, highest = max(start - offset, 0), min(stop - offset, size) - 1
                first = min(first, earliest_position(lowest, size, self._window) // split.per_group)
                last = max(last, latest_position(highest, size, self._window) // split.per_group)
        return range(first, min(last + 1, num_steps))

    # -- the row of samples, and its groups ------------------------------------------------------------------------

    @cached_property
    def _split(self) -> Split:
        wanted = self.groups if self.groups is not None else DEFAULT_GROUPS if self.shuffle else 1
        num_groups = math.gcd(self.global_batch_size, wanted)
        if self.num_samples < num_groups:
            num_groups = 1  # a group without samples could not be padded
        return Split(self.num_samples, self.global_batch_size, num_groups)

    @property
    def _largest_group(self) -> int:
        return -(-self.num_samples // self.num_groups)

    @cached_property
    def _window(self) -> int:
        # Rounded up, so that a window of all samples is a window of all samples of every group.
        return -(-self.window // self.num_groups) if self.shuffle else 1

    @cached_property
    def _order(self) -> Indices:
        """(num_shards,): the shard in each slot of the epoch's row."""
        if not self.shuffle:
            return np.arange(self.num_shards, dtype=np.int64)
        return permutation(derive_key("shards", self.seed, self.epoch), self.num_shards)

    @cached_property
    def _slot_of(self) -> Indices:
        slots = np.empty(self.num_shards, dtype=np.int64)
        slots[self._order] = np.arange(self.num_shards)
        return slots

    @cached_property
    def _ends(self) -> Indices:
        """(num_shards,): where each slot of the row ends, in samples."""
        return np.cumsum(self._lengths[self._order], dtype=np.int64)

    @cached_property
    def _first_samples(self) -> Indices:
        """(num_shards,): the number of each shard's first sample in the data set."""
        return np.cumsum(self._lengths, dtype=np.int64) - self._lengths

    @cached_property
    def _lengths(self) -> Indices:
        return _lengths(self.samples_per_shard)

    def _places(self, group: int, start: int, stop: int) -> Indices:
        """Places in the row of a group's samples, from the ``start``-th that it gives in this epoch on."""
        split = self._split
        key = derive_key("window", self.seed, self.epoch, group)
        return shuffled_slice(key, split.group_size(group), self._window, start, stop) + split.group_starts[group]

    def _full_batches(self, first_step: int, stop_step: int, rank: int, world_size: int) -> Indices:
        """Places of a rank's samples in full batches: (stop_step - first_step, samples a batch and rank)."""
        per_group = self._split.per_group
        parts = [
            self._places(piece.group, first_step * per_group, stop_step * per_group).reshape(-1, per_group)[
                :, piece.start : piece.stop
            ]
            for piece in self._split.full(rank, world_size)
        ]
        return np.concatenate(parts, axis=1)

    def _last_places(self, rank: int, world_size: int) -> Indices:
        pieces = self._split.last(rank, world_size)
        return _joined([self._places(piece.group, piece.start, piece.stop) for piece in pieces])

    def _padding_places(self, rank: int, world_size: int) -> Indices:
        return _joined([self._wrapped(piece) for piece in self._split.padding(rank, world_size)])

    def _wrapped(self, piece: Piece) -> Indices:
        size = self._split.group_size(piece.group)
        firsts = self._places(piece.group, 0, min(piece.stop, size))
        return firsts[np.arange(piece.start, piece.stop) % size]

    def _last_batch(self, rank: int, world_size: int) -> BatchIndex:
        places, num_padded = self._last_places(rank, world_size), 0
        if self.last_batch == "pad" or not len(places):
            padding = self._padding_places(rank, world_size)
            padding = padding if self.last_batch == "pad" else padding[:1]
            places, num_padded = np.concatenate([places, padding]), len(padding)
        return self._index(self._split.num_full, places, num_padded)

    def _blocks(
        self, start_step: int, rank: int, world_size: int, *, with_last: bool = False
    ) -> Iterator[tuple[int, Indices]]:
        """Yields (first step, places (steps, n)) of full batches; of the last batch without padding, if asked for."""
        split = self._split
        # A slice of n places sorts n + 2 windows, so with two windows at once each item is sorted twice.
        num_steps = max(1, 2 * self._window // split.per_group, _BLOCK_SAMPLES * world_size // self.global_batch_size)
        for first in range(start_step, split.num_full, num_steps):
            yield first, self._full_batches(first, min(first + num_steps, split.num_full), rank, world_size)
        if with_last and start_step <= split.num_full < self.num_steps(rank, world_size):
            places = self._last_places(rank, world_size)
            if len(places):
                yield split.num_full, places[np.newaxis]

    def _slots(self, places: Indices) -> Indices:
        return np.searchsorted(self._ends, places, side="right")

    def _index(self, step: int, places: Indices, num_padded: int = 0) -> BatchIndex:
        slots = self._slots(places)
        shards = self._order[slots]
        rows = places - (self._ends[slots] - self._lengths[shards])
        return BatchIndex(step, shards, rows, self._first_samples[shards] + rows, num_padded)

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
            raise ConfigurationError("no such step", expected=f"0 … {self.max_steps}", got=start_step)


def _joined(parts: list[Indices]) -> Indices:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _lengths(samples_per_shard: npt.ArrayLike) -> Indices:
    given = np.asarray(samples_per_shard)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu" or int(given.min()) < 0:
        raise ConfigurationError("samples_per_shard must be one row of non-negative integers", got=given.dtype.str)
    lengths = given.astype(np.int64)  # always a copy
    lengths.flags.writeable = False
    return lengths


def _whole(name: str, value: int, *, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ConfigurationError(f"{name} must be an integer from {least}" + (f" to {most}" if most else ""), got=value)
    return value
