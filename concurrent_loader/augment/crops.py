"""Which part of a picture a sample shows: boxes as pure functions of a picture's size and a few uniform numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from concurrent_loader.decode.crop import Box
from storage.errors import ConfigurationError

__all__ = ["CenterCrop", "Crop", "RandomResizedCrop"]

_ATTEMPTS = 10


@runtime_checkable
class Crop(Protocol):
    """Says which box of a picture becomes a picture of ``size``."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that `box` needs."""

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """The box of a picture of that many pixels; ``draws`` in [0, 1)."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the picture, of random area and shape, as for training on ImageNet.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6, in the form of torchvision's
    transform of that name: ten attempts, then the largest box in the middle with a permitted shape.

    Args:
        crop: Height and width of the result, or its side.
        scale: Least and largest share of the picture's area.
        ratio: Least and largest width over height.
        flip: Probability of being mirrored, left to right.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    crop: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        _check_size(self.size)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigurationError("scale must be two shares of the area, the smaller one first", got=self.scale)
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ConfigurationError("ratio must be two positive numbers, the smaller one first", got=self.ratio)
        if not 0 <= self.flip <= 1:
            raise ConfigurationError("flip must be a probability", got=self.flip)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _pair(self.crop)

    @property
    def num_draws(self) -> int:
        """Flip, place, and area and shape for each attempt."""
        return 3 + 2 * _ATTEMPTS

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """The box of a picture of that many pixels."""
        flip, down, right = draws[0] < self.flip, draws[1], draws[2]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(_ATTEMPTS):
            share, shape = draws[3 + 2 * attempt], draws[4 + 2 * attempt]
            area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
            ratio = math.exp(low + shape * (high - low))
            part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top, left = int(down * (height - part_height + 1)), int(right * (width - part_width + 1))
                return Box(top, left, part_height, part_width, flip)
        part_height, part_width = height, width
        if width < self.ratio[0] * height:
            part_height = max(1, round(width / self.ratio[0]))
        elif width > self.ratio[1] * height:
            part_width = max(1, round(height * self.ratio[1]))
        return Box((height - part_height) // 2, (width - part_width) // 2, part_height, part_width, flip)


@dataclass(frozen=True)
class CenterCrop:
    """The middle of the picture, as for validation: its shorter side resized, then cut out of the middle.

    Args:
        crop: Side of the result.
        resize: What the shorter side of the whole picture becomes; ``crop`` takes all of it.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    crop: int
    resize: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.resize is not None and self.resize < self.crop:
            raise ConfigurationError("resize must not be smaller than crop", expected=self.crop, got=self.resize)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        return self.crop, self.crop

    @property
    def num_draws(self) -> int:
        """None."""
        return 0

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """The box of a picture of that many pixels."""
        side = max(1, round(min(height, width) * self.crop / (self.resize or self.crop)))
        return Box((height - side) // 2, (width - side) // 2, side, side)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _check_size(size: object) -> None:
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise ConfigurationError("a size is a positive number, or two of them", got=size)
