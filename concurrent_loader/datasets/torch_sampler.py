"""Lists a torch sampler as a function of seed and epoch, so that a loader can resume it on any rank."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler

from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.order.shuffle import derive_key
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["sampler_batches"]


def sampler_batches(sampler: Sampler[Any]) -> SamplerBatches:
    """Returns the batches that a sampler or batch sampler lists.

    Raises:
        ConfigurationError: The sampler lists the samples of one rank only.
    """
    if any(isinstance(each, DistributedSampler) for each in _chain(sampler)):
        raise ConfigurationError(
            "the loader divides batches among the ranks itself: pass a sampler of all samples instead of a "
            "DistributedSampler"
        )
    return SamplerBatches(partial(_list, sampler))


def _list(sampler: Sampler[Any], seed: int, epoch: int) -> list[Any]:
    """Lists a sampler. All random numbers of torch, NumPy and Python come from seed and epoch.

    So do those of the sampler's own generator. Otherwise, each rank and each worker would list other batches.
    """
    key = derive_key("sampler", seed, epoch) >> 1
    for each in _chain(sampler):
        if isinstance(generator := getattr(each, "generator", None), torch.Generator):
            generator.manual_seed(key)
        if callable(set_epoch := getattr(each, "set_epoch", None)):
            set_epoch(epoch)
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key)
            random.seed(key)
            np.random.seed(key % 2**32)
            return list(sampler)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _chain(sampler: Iterable[Any]) -> list[Any]:
    """Returns a sampler and the samplers inside it, as in ``BatchSampler(RandomSampler(…), …)``."""
    found: list[Any] = []
    each: Any = sampler
    while each is not None and len(found) < 10:
        found.append(each)
        each = getattr(each, "sampler", None)
    return found
