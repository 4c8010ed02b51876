"""Plans an epoch whose batches are listed: by the lengths in a dataset's index, packed or not, or by a sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.batching import Batches, ByLength
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.listed_plan import BatchListPlan
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.order.packed_plan import PackedPlan
from concurrent_loader.order.packing import Packed, Rows
from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.format.schema import Schema

__all__ = ["plan_by_length", "plan_by_sampler", "plan_packed"]

Indices = npt.NDArray[np.int64]


class _Dataset(Protocol):
    """What is needed of a dataset; `concurrent_loader.datasets.readable.ReadableDataset` documents the members."""

    @property
    def fingerprint(self) -> int: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def unit_bounds(self) -> Indices: ...
    def __len__(self) -> int: ...
    def lengths(self, name: str, *, exact: bool = False) -> Indices: ...
    def sample_plan(self, options: PlanOptions, epoch: int) -> EpochPlan: ...


def plan_by_length(dataset: _Dataset, options: PlanOptions, batching: ByLength, epoch: int) -> BatchListPlan:
    """Returns the order of an epoch.

    Args:
        dataset: Samples of the epoch.
        options: Options of the order.
        batching: The options' batching.
        epoch: Number of the epoch.

    Raises:
        ConfigurationError: There is not one length per sample, or a sample is too long.
        SchemaError: The column of lengths does not exist, or has no lengths.
    """
    own, per_step = dataset.fingerprint, options.global_batch_size
    given = batching.lengths
    lengths = batching.remember((own,), lambda: dataset.lengths(given)) if isinstance(given, str) else given
    if lengths.shape != (len(dataset),):
        raise ConfigurationError("ByLength needs one length per sample", expected=(len(dataset),), got=lengths.shape)
    bounds, identity = batching.remember(
        (own, per_step), lambda: (batching.bucket_bounds(lengths), batching.fingerprint(lengths, per_step))
    )
    whole = _all_samples(dataset, options, epoch)

    def draw(number: int) -> Batches:
        choices = hash((options.shuffle, str(options.shuffle_window), options.last_batch))
        return batching.remember(
            (own, per_step, options.seed, number, choices),
            lambda: batching.batches(
                _order(whole, number), lengths, global_batch_size=per_step, last_batch=options.last_batch
            ),
        )

    sizes = batching.batch_sizes(bounds, per_step)
    return BatchListPlan(
        bounds=dataset.unit_bounds,
        draw=draw,
        global_batch_size=int(sizes.max(initial=1)),
        seed=options.seed,
        epoch=epoch,
        groups=options.groups,
        window=whole.window,
        shuffle=options.shuffle,
        fingerprint=xxhash.xxh3_64_intdigest(f"{own} {identity} {options.last_batch}".encode()) >> 1,
    )


def plan_packed(dataset: _Dataset, options: PlanOptions, batching: Packed, epoch: int) -> PackedPlan:
    """Returns the order of an epoch whose batches are rows of packed documents.

    Raises:
        SchemaError: The column does not exist, or does not hold documents of tokens.
    """
    column = dataset.schema[batching.column]
    is_ragged = column.dtype is not None and column.dtype.kind in "iu" and column.shape is None
    if not is_ragged:
        raise SchemaError(
            "Packed needs a column of token arrays", column=column.name, expected="int32[...]", got=column.type
        )
    own = dataset.fingerprint
    lengths = batching.remember((own,), lambda: dataset.lengths(column.name, exact=True))
    identity = batching.remember((own, 0), lambda: batching.fingerprint(lengths))
    whole = _all_samples(dataset, options, epoch)

    def draw(number: int) -> Rows:
        choices = hash((options.shuffle, str(options.shuffle_window)))
        return batching.remember(
            (own, options.seed, number, choices), lambda: batching.rows(_order(whole, number), lengths)
        )

    return PackedPlan(
        bounds=dataset.unit_bounds,
        draw=draw,
        global_batch_size=options.global_batch_size,
        seed=options.seed,
        epoch=epoch,
        groups=options.groups,
        window=whole.window,
        shuffle=options.shuffle,
        fingerprint=xxhash.xxh3_64_intdigest(f"{own} {identity} {options.last_batch}".encode()) >> 1,
        last_batch=options.last_batch,
    )


def _all_samples(dataset: _Dataset, options: PlanOptions, epoch: int) -> EpochPlan:
    """Returns a plan with all samples as one batch, in the order of the epoch."""
    one = replace(options, global_batch_size=max(1, len(dataset)), groups=1, last_batch="short")
    return dataset.sample_plan(one, epoch)


def _order(whole: EpochPlan, epoch: int) -> Indices:
    return replace(whole, epoch=epoch).batch(0).sample if whole.num_samples else np.empty(0, np.int64)


def plan_by_sampler(dataset: _Dataset, options: PlanOptions, batching: SamplerBatches, epoch: int) -> BatchListPlan:
    """Returns the order of an epoch as a sampler lists it.

    Raises:
        ConfigurationError: ``shuffle`` or ``sampling`` is given too, or the sampler lists no sample numbers.
        IndexError: The sampler lists a sample that does not exist.
    """
    if options.shuffle:
        raise ConfigurationError("a sampler determines the order itself; leave shuffle out")
    own, per_step = dataset.fingerprint, options.global_batch_size

    def draw(number: int) -> Batches:
        return batching.remember(
            (own, per_step, options.seed, number),
            lambda: batching.batches(
                len(dataset), seed=options.seed, epoch=number, global_batch_size=per_step,
                last_batch=options.last_batch,
            ),
        )  # fmt: skip

    found = draw(epoch)
    return BatchListPlan(
        bounds=dataset.unit_bounds,
        draw=draw,
        global_batch_size=int(found.sizes.max(initial=1)),
        seed=options.seed,
        epoch=epoch,
        groups=1,
        window=max(1, len(found.samples)),
        shuffle=False,
        fingerprint=xxhash.xxh3_64_intdigest(f"{own} {batching.fingerprint(found)} {options.last_batch}".encode()) >> 1,
    )
