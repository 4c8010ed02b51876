"""One step of an augmentation, between the crop and the batch: what all of them have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from storage.errors import ConfigurationError

__all__ = ["Draws", "Operation", "check_probability", "check_range", "for_some", "one_a_picture", "spread", "to_levels"]

Draws = npt.NDArray[np.float64]


class Operation(Protocol):
    """Changes each picture of a batch by numbers of its own.

    Pictures are (n, 3, H, W) uint8 on any device, and so is what comes out, except from the last operation of all. What
    becomes of a picture depends on it and on its own numbers, never on its neighbours or on how many they are.
    """

    @property
    def num_draws(self) -> int:
        """Uniform numbers that it takes for each picture, whatever its arguments are."""

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Makes changed pictures of a batch's; ``draws`` is (n, num_draws) in [0, 1), on the CPU."""


def spread(draws: Draws, low: float, high: float) -> Draws:
    """Spreads uniform numbers over a range."""
    return low + draws * (high - low)


def one_a_picture(numbers: Draws, pictures: torch.Tensor) -> torch.Tensor:
    """Makes (n, 1, 1, 1) float32 of n numbers, where the pictures are."""
    single = torch.from_numpy(numbers.astype(np.float32)).view(-1, 1, 1, 1)
    return single.to(pictures.device, non_blocking=True)


def for_some(
    pictures: torch.Tensor, chosen: npt.NDArray[np.bool_], change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Changes the chosen pictures only; which they are is known on the CPU, so that no device is waited for."""
    if chosen.all():
        return change(pictures)
    if not chosen.any():
        return pictures
    places = torch.from_numpy(np.flatnonzero(chosen)).to(pictures.device, non_blocking=True)
    return pictures.index_copy(0, places, change(pictures[places]))


def to_levels(values: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to the nearest of 0 … 255, in place as far as possible."""
    return values.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)


def check_probability(name: str, got: float) -> None:
    """Raises `ConfigurationError` for what is none."""
    if not 0 <= got <= 1:
        raise ConfigurationError(f"{name} must be a probability", got=got)


def check_range(name: str, got: Any, *, least: float = 0.0, most: float = math.inf) -> None:
    """Raises `ConfigurationError` for what is not two numbers in order within bounds."""
    try:
        low, high = got
        fits = least <= low <= high <= most and math.isfinite(high)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigurationError(f"{name} must be two numbers from {least} to {most}, the smaller one first", got=got)
