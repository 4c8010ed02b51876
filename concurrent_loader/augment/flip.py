"""Mirrors crops. `RandomResizedCrop` mirrors left to right itself, which costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from concurrent_loader.augment.operation import Draws, apply_to_chosen, check_probability

__all__ = ["RandomHorizontalFlip", "RandomVerticalFlip"]


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors images left to right, after a crop that does not (`RandomResizedCrop` has its own ``flip``).

    Draws one random number: whether to mirror the image.

    Args:
        p: Probability of mirroring an image. Default 0.5.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop, RandomHorizontalFlip
        >>> Augment(CenterCrop(32), RandomHorizontalFlip()).num_draws
        25
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 1."""
        return 1

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Mirrors images of a batch, (n, 3, H, W) uint8."""
        return apply_to_chosen(images, draws[:, 0] < self.p, lambda some: some.flip(3))


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirrors images top to bottom.

    Draws one random number: whether to mirror the image.

    Args:
        p: Probability of mirroring an image. Default 0.5.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop, RandomVerticalFlip
        >>> Augment(CenterCrop(32), RandomVerticalFlip(p=0.1)).num_draws
        25
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 1."""
        return 1

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Mirrors images of a batch, (n, 3, H, W) uint8."""
        return apply_to_chosen(images, draws[:, 0] < self.p, lambda some: some.flip(2))
