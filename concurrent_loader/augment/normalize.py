"""Converts levels to the dtype and memory layout of the model, as the last operation of an augmentation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from concurrent_loader.augment.operation import Draws
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Finish", "Normalize", "ToDtype"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ToDtype:
    """Converts images to a dtype and a memory layout; floating-point values are scaled to [0, 1].

    Args:
        dtype: float32 (default), float16, bfloat16, or uint8, which keeps the levels.
        channels_last: Whether a batch stores the channels of a pixel next to each other. Default False.

    Raises:
        ConfigurationError: The dtype is not supported.

    Example:
        >>> import torch
        >>> from concurrent_loader import Augment, CenterCrop, ToDtype
        >>> Augment(CenterCrop(32), ToDtype(torch.bfloat16)).finish.dtype
        torch.bfloat16
    """

    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (*_FLOATS, torch.uint8):
            raise ConfigurationError("dtype must be uint8, float32, float16 or bfloat16", got=self.dtype)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 0."""
        return 0

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Converts images of a batch, (n, 3, H, W) uint8."""
        if self.dtype == torch.uint8:
            return images.contiguous(memory_format=_layout(self.channels_last))
        values = images.to(torch.float32).mul_(1 / 255)
        return values.to(self.dtype, memory_format=_layout(self.channels_last))


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel and divides by a standard deviation, both for levels in [0, 1].

    Args:
        mean: Mean of each channel, three numbers.
        std: Standard deviation of each channel, three positive numbers.
        dtype: float32 (default), float16 or bfloat16.
        channels_last: Whether a batch stores the channels of a pixel next to each other. Default False.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop, Normalize
        >>> Augment(CenterCrop(32), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))).finish.dtype
        torch.float32
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std)
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, numbers)) or min(self.std) <= 0:
            raise ConfigurationError(
                "mean and std must be three finite numbers each, std positive", got=(self.mean, self.std)
            )
        if self.dtype not in _FLOATS:
            raise ConfigurationError("dtype must be float32, float16 or bfloat16", got=self.dtype)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 0."""
        return 0

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Normalizes images of a batch, (n, 3, H, W) uint8."""
        table = [
            [1 / (255 * std) for std in self.std],
            [-mean / std for mean, std in zip(self.mean, self.std, strict=True)],
        ]
        multiply, add = torch.tensor(table).to(images.device, non_blocking=True).view(2, 1, 3, 1, 1)
        values = images.to(torch.float32).mul_(multiply).add_(add)
        return values.to(self.dtype, memory_format=_layout(self.channels_last))


Finish = Normalize | ToDtype


def _layout(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format
