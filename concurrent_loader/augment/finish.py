"""The last step of an augmentation: from levels to what the model takes, in its dtype and memory layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from concurrent_loader.augment.operation import Draws
from storage.errors import ConfigurationError

__all__ = ["Finish", "Normalize", "ToDtype"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ToDtype:
    """Gives pictures a dtype and a memory layout; as floating-point numbers they lie in [0, 1].

    Args:
        dtype: float32, float16 or bfloat16; or uint8, which leaves levels what they are.
        channels_last: Whether the channels of a pixel lie together in a batch's memory.

    Raises:
        ConfigurationError: Another dtype.
    """

    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (*_FLOATS, torch.uint8):
            raise ConfigurationError("dtype must be uint8, float32, float16 or bfloat16", got=self.dtype)

    @property
    def num_draws(self) -> int:
        """None."""
        return 0

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        if self.dtype == torch.uint8:
            return pictures.contiguous(memory_format=_layout(self.channels_last))
        values = pictures.to(torch.float32).mul_(1 / 255)
        return values.to(self.dtype, memory_format=_layout(self.channels_last))


@dataclass(frozen=True)
class Normalize:
    """Takes a mean from each channel and divides by a deviation, both for levels in [0, 1].

    Args:
        mean: Of each channel.
        std: Of each channel.
        dtype: float32, float16 or bfloat16.
        channels_last: Whether the channels of a pixel lie together in a batch's memory.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std)
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, numbers)) or min(self.std) <= 0:
            raise ConfigurationError("mean and std are three numbers each, std positive", got=(self.mean, self.std))
        if self.dtype not in _FLOATS:
            raise ConfigurationError("dtype must be float32, float16 or bfloat16", got=self.dtype)

    @property
    def num_draws(self) -> int:
        """None."""
        return 0

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        table = [
            [1 / (255 * std) for std in self.std],
            [-mean / std for mean, std in zip(self.mean, self.std, strict=True)],
        ]
        multiply, add = torch.tensor(table).to(pictures.device, non_blocking=True).view(2, 1, 3, 1, 1)
        values = pictures.to(torch.float32).mul_(multiply).add_(add)
        return values.to(self.dtype, memory_format=_layout(self.channels_last))


Finish = Normalize | ToDtype


def _layout(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format
