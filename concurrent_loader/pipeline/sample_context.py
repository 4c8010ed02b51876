"""Tells a transform which sample it changes, and gives it random numbers that repeat after a resume."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from concurrent_loader.order.shuffle import derive_key, hash_counters

__all__ = ["SampleContext", "takes_context"]


@dataclass(frozen=True, slots=True)
class SampleContext:
    """The second argument of a transform: ``def transform(sample, context)``.

    Attributes:
        sample_id: Number of the sample in its dataset.
        epoch: Number of the epoch, from 0.
        loader_seed: Seed of the loader.

    Example:
        >>> import torch
        >>> from concurrent_loader import SampleContext
        >>> def add_noise(sample, context):
        ...     noise = torch.randn(3, generator=context.generator())
        ...     return {**sample, "noise": noise}
        >>> first, again = (add_noise({}, SampleContext(sample_id=7, epoch=0, loader_seed=0)) for _ in range(2))
        >>> torch.equal(first["noise"], again["noise"])
        True
    """

    sample_id: int
    epoch: int
    loader_seed: int

    @property
    def seed(self) -> int:
        """Seed for the random numbers of this sample in this epoch, 0 to 2**63 - 1: a hash of the attributes.

        It does not depend on ranks, workers, threads, or on where an iteration began.
        """
        key = derive_key("context", self.loader_seed, self.epoch)
        return int(hash_counters(key, np.array([self.sample_id], np.uint64))[0] >> np.uint64(1))

    def generator(self) -> torch.Generator:
        """Returns a new random number generator on the CPU, seeded by `seed`. Draw all numbers of a call from one."""
        return torch.Generator().manual_seed(self.seed)


def takes_context(transform: Callable[..., Any] | None) -> bool:
    """Returns whether a transform has a second positional parameter, without a default or called ``context``."""
    function = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        return False
    return positional[1].default is inspect.Parameter.empty or positional[1].name == "context"
