"""Changes the colors of crops: brightness, contrast, saturation, hue, and none at all.

The formulas are torchvision's (`torchvision.transforms.v2.functional`), written as single operations of IEEE
arithmetic and sums of whole numbers. Those have one right result each, so that a picture is the same to the bit
whether it is changed alone or in a batch, and on a CPU or a GPU. Nothing is divided by a constant: on a GPU, and only
there, torch multiplies by its inverse instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from concurrent_loader.augment.operation import (
    Draws,
    check_probability,
    check_range,
    for_some,
    one_a_picture,
    spread,
    to_levels,
)
from storage.errors import ConfigurationError

__all__ = ["ColorJitter", "RandomGrayscale", "grayscale"]

_FINE = 256  # parts of a level in which means are counted


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue at random, in this order.

    torchvision draws the order, too. Here it is fixed: a batch is then four steps on a GPU and not one of 24 programs a
    picture. Between the steps nothing is rounded.

    Args:
        brightness: Up to how far its factor is from 1, or its least and largest factor.
        contrast: The same; the picture is blended with its mean gray.
        saturation: The same; each pixel is blended with its gray.
        hue: Up to how far it is turned, or how far at least and at most, in turns from -0.5 to 0.5.
        p: Probability of being changed at all.

    Draws: whether, brightness, contrast, saturation, hue.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability("p", self.p)
        for name in ("brightness", "contrast", "saturation"):
            check_range(name, self._factors(name))
        check_range("hue", self._turns, least=-0.5, most=0.5)

    @property
    def num_draws(self) -> int:
        """Five."""
        return 5

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        chosen = draws[:, 0] < self.p
        return for_some(pictures, chosen, lambda some: self._changed(some, draws[chosen]))

    def _changed(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        values = pictures.to(torch.float32)
        for column, (name, change) in enumerate(
            {"brightness": _brighter, "contrast": _contrasted, "saturation": _saturated}.items(), 1
        ):
            low, high = self._factors(name)
            if (low, high) != (1, 1):
                values = change(values, one_a_picture(spread(draws[:, column], low, high), pictures))
        if self._turns != (0, 0):
            values = _turned(values, one_a_picture(spread(draws[:, 4], *self._turns), pictures))
        return to_levels(values)

    def _factors(self, name: str) -> tuple[float, float]:
        given = getattr(self, name)
        if not isinstance(given, int | float):
            return given  # type: ignore[no-any-return]
        if not given >= 0:
            raise ConfigurationError(f"{name} must not be negative", got=given)
        return max(0.0, 1.0 - given), 1.0 + given

    @property
    def _turns(self) -> tuple[float, float]:
        return (-self.hue, self.hue) if isinstance(self.hue, int | float) else self.hue


@dataclass(frozen=True)
class RandomGrayscale:
    """Makes pictures gray, with three equal channels.

    Args:
        p: Probability of that.

    Draws: whether.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """One."""
        return 1

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch."""
        return for_some(pictures, draws[:, 0] < self.p, _gray)


def grayscale(values: torch.Tensor) -> torch.Tensor:
    """The luma of ITU-R BT.601: (n, 3, H, W) float32 → (n, 1, H, W)."""
    red, green, blue = (values[:, at : at + 1] for at in range(3))
    return (red * 0.299).add_(green * 0.587).add_(blue * 0.114)


def _gray(pictures: torch.Tensor) -> torch.Tensor:
    return to_levels(grayscale(pictures.to(torch.float32))).expand_as(pictures).contiguous()


def _brighter(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (values * factor).clamp_(0, 255)


def _contrasted(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    # Whole numbers have one sum, in whatever order a device adds them.
    counted = (grayscale(values) * _FINE).add_(0.5).floor_().to(torch.int32).sum((1, 2, 3), keepdim=True)
    num_pixels = values.shape[2] * values.shape[3]
    mean = (counted.to(torch.float64) * (1 / (_FINE * num_pixels))).to(torch.float32)
    return _blended(values, mean, factor)


def _saturated(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _blended(values, grayscale(values), factor)


def _blended(values: torch.Tensor, others: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (values * factor).add_(others * (1 - factor)).clamp_(0, 255)


def _turned(values: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turns the hue; value and saturation stay. In and out are RGB: HSV is never stored."""
    red, green, blue = (values[:, at : at + 1] for at in range(3))
    value = values.amax(1, keepdim=True)
    chroma = value - values.amin(1, keepdim=True)
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sextant = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    sextant = sextant.add_(turns * 6)
    # How far each channel is from the hue, as in the closed form of HSV → RGB: value - chroma * clamp(min(k, 4 - k)).
    apart = sextant + torch.from_numpy(np.array([5, 3, 1], np.float32)).to(values.device).view(1, 3, 1, 1)
    apart = apart.sub_((apart * (1 / 6)).floor_().mul_(6))
    share = torch.minimum(apart, 4 - apart).clamp_(0, 1)
    return value - share.mul_(chroma)
