"""Mirrors crops; left to right is better done by the crop itself, where it costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from concurrent_loader.augment.operation import Draws, check_probability, for_some

__all__ = ["RandomHorizontalFlip", "RandomVerticalFlip"]


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors pictures left to right; for crops that do not: `RandomResizedCrop` has ``flip``.

    Args:
        p: Probability of that.

    Draws: whether.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """One."""
        return 1

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        return for_some(pictures, draws[:, 0] < self.p, lambda some: some.flip(3))


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirrors pictures top to bottom.

    Args:
        p: Probability of that.

    Draws: whether.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """One."""
        return 1

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        return for_some(pictures, draws[:, 0] < self.p, lambda some: some.flip(2))
