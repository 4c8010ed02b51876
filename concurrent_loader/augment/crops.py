"""Selects a part of each image: pure functions of the size of the image and a few uniform random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from concurrent_loader.augment.linked import Linkable
from concurrent_loader.decode.crop import Box
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["CenterCrop", "RandomResizedCrop"]

_ATTEMPTS = 10


@dataclass(frozen=True)
class RandomResizedCrop(Linkable):
    """Crops a random part of the image, of random area and aspect ratio, as for training on ImageNet.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. Draws area and aspect ratio as
    torchvision's transform of the same name does: ten attempts, then the largest centered box with an allowed ratio.

    Args:
        crop: Height and width of the output in pixels, or its side.
        scale: Minimum and maximum share of the area of the image. Default 0.08 to 1.0.
        ratio: Minimum and maximum aspect ratio, width over height. Default 3/4 to 4/3.
        flip: Probability of mirroring the crop left to right. Default 0.5.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     loader = ConcurrentDataLoader(dataset, 4, decode={"image": RandomResizedCrop(32)})
        ...     next(iter(loader))["image"].shape
        torch.Size([4, 3, 32, 32])
    """

    crop: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        _check_size(self.size)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigurationError(
                "scale must be two shares of the area in (0, 1], in ascending order", got=self.scale
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ConfigurationError("ratio must be two positive numbers in ascending order", got=self.ratio)
        if not 0 <= self.flip <= 1:
            raise ConfigurationError("flip must be a probability from 0 to 1", got=self.flip)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""
        return _pair(self.crop)

    @property
    def num_draws(self) -> int:
        """Number of random numbers: flip, position, and area and ratio for each of ten attempts."""
        return 3 + 2 * _ATTEMPTS

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Returns the box of an image with the given height and width."""
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
class CenterCrop(Linkable):
    """Crops the center of the image, as for validation: resizes the shorter side, then cuts a square out of the center.

    Args:
        crop: Side of the output in pixels.
        resize: Length of the shorter side after resizing, in pixels. Default ``crop``, which takes the whole shorter
            side.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import CenterCrop
        >>> CenterCrop(224, resize=256).box(480, 640, [])
        Box(top=30, left=110, height=420, width=420, flip=False)
    """

    crop: int
    resize: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.resize is not None and self.resize < self.crop:
            raise ConfigurationError("resize must not be smaller than crop", expected=self.crop, got=self.resize)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""
        return self.crop, self.crop

    @property
    def num_draws(self) -> int:
        """Number of random numbers: 0."""
        return 0

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Returns the box of an image with the given height and width."""
        side = max(1, round(min(height, width) * self.crop / (self.resize or self.crop)))
        return Box((height - side) // 2, (width - side) // 2, side, side)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _check_size(size: object) -> None:
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise ConfigurationError("a size must be a positive integer, or two of them", got=size)
