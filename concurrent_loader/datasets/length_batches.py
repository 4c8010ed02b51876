"""Plans an epoch whose batches are listed: by the lengths in a dataset's index, or by a sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.batch_list_plan import BatchListPlan
from concurrent_loader.order.batching import Batches, ByLength
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["plan_by_length", "plan_by_sampler"]

Indices = npt.NDArray[np.int64]


class _Dataset(Protocol):
    """What is needed of a dataset; `concurrent_loader.datasets.readable.ReadableDataset` documents the members."""

    @property
    def fingerprint(self) -> int: ...
    @property
    def unit_bounds(self) -> Indices: ...
    def __len__(self) -> int: ...
    def lengths(self, name: str) -> Indices: ...
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
    # All samples as one batch: the order of the epoch.
    whole = dataset.sample_plan(
        replace(options, global_batch_size=max(1, len(dataset)), groups=1, last_batch="short"), epoch
    )

    def draw(number: int) -> Batches:
        def make() -> Batches:
            order: Indices = np.empty(0, np.int64)
            if len(dataset):
                order = replace(whole, epoch=number).batch(0).sample
            return batching.batches(order, lengths, global_batch_size=per_step, last_batch=options.last_batch)

        choices = hash((options.shuffle, str(options.shuffle_window), options.last_batch))
        return batching.remember((own, per_step, options.seed, number, choices), make)

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
