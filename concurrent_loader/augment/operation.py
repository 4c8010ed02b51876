"""Defines an operation of an augmentation, and the functions that all operations share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.storage.errors import ConfigurationError

__all__ = [
    "Draws",
    "Operation",
    "apply_to_chosen",
    "check_probability",
    "check_range",
    "per_image",
    "scale_to_range",
    "to_levels",
]

Draws = npt.NDArray[np.float64]


class Operation(Protocol):
    """Changes each image of a batch with random numbers of its own.

    Input is (n, 3, H, W) uint8 on any device. Output has the same shape and dtype, except that the last operation may
    change the dtype. The result for an image must depend only on this image and its random numbers, not on the rest of
    the batch.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop
        >>> class Invert:
        ...     num_draws = 0
        ...     def apply(self, images, draws):
        ...         return 255 - images
        >>> Augment(CenterCrop(32), Invert()).size
        (32, 32)
    """

    @property
    def num_draws(self) -> int:
        """Number of uniform random numbers per image, whatever the arguments."""

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Returns the changed images of a batch; ``draws`` is (n, num_draws) in [0, 1), on the CPU."""


def scale_to_range(draws: Draws, low: float, high: float) -> Draws:
    """Scales random numbers in [0, 1) to a range."""
    return low + draws * (high - low)


def per_image(numbers: Draws, images: torch.Tensor) -> torch.Tensor:
    """Converts n numbers to (n, 1, 1, 1) float32 on the device of the images."""
    single = torch.from_numpy(numbers.astype(np.float32)).view(-1, 1, 1, 1)
    return single.to(images.device, non_blocking=True)


def apply_to_chosen(
    images: torch.Tensor, chosen: npt.NDArray[np.bool_], change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Changes only the chosen images. ``chosen`` is on the CPU, so that nothing waits for the device."""
    if chosen.all():
        return change(images)
    if not chosen.any():
        return images
    places = torch.from_numpy(np.flatnonzero(chosen)).to(images.device, non_blocking=True)
    return images.index_copy(0, places, change(images[places]))


def to_levels(values: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to the nearest integer from 0 to 255, in place where possible."""
    return values.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)


def check_probability(name: str, got: float) -> None:
    """Raises `ConfigurationError` unless the value is a probability."""
    if not 0 <= got <= 1:
        raise ConfigurationError(f"{name} must be a probability from 0 to 1", got=got)


def check_range(name: str, got: Any, *, least: float = 0.0, most: float = math.inf) -> None:
    """Raises `ConfigurationError` unless the value is two ascending numbers within the bounds."""
    try:
        low, high = got
        fits = least <= low <= high <= most and math.isfinite(high)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigurationError(f"{name} must be two numbers from {least} to {most}, in ascending order", got=got)
