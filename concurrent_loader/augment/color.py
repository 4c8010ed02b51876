"""Changes the colors of crops: brightness, contrast, saturation, hue, and conversion to gray.

The formulas are those of `torchvision.transforms.v2.functional`, written as single IEEE operations and sums of
integers. Each of these has exactly one correct result. The output is therefore bit-identical for one image or a batch,
on CPU or GPU. There is no division by a constant, because torch multiplies by the inverse instead, only on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from concurrent_loader.augment.operation import (
    Draws,
    apply_to_chosen,
    check_probability,
    check_range,
    per_image,
    scale_to_range,
    to_levels,
)
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["ColorJitter", "RandomGrayscale", "grayscale"]

_SUBLEVELS = 256  # steps per level when means are computed


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue at random, in this order.

    torchvision also draws the order. Here the order is fixed, so that a batch is four steps on a GPU instead of one of
    24 programs per image. Values are not rounded between the steps.

    Draws five random numbers: whether to change the image, brightness, contrast, saturation, hue.

    Args:
        brightness: Maximum distance of the factor from 1, or the minimum and maximum factor. Default 0.0.
        contrast: Same for the contrast, which blends the image with its mean gray. Default 0.0.
        saturation: Same for the saturation, which blends each pixel with its gray. Default 0.0.
        hue: Maximum rotation, or the minimum and maximum, in turns from -0.5 to 0.5. Default 0.0.
        p: Probability of changing an image. Default 1.0.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, ColorJitter, RandomResizedCrop
        >>> Augment(RandomResizedCrop(32), ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8)).num_draws
        29
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
        """Number of random numbers per image: 5."""
        return 5

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the colors of a batch, (n, 3, H, W) uint8."""
        chosen = draws[:, 0] < self.p
        return apply_to_chosen(images, chosen, lambda some: self._changed(some, draws[chosen]))

    def _changed(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        values = images.to(torch.float32)
        for column, (name, change) in enumerate(
            {"brightness": _brighter, "contrast": _contrasted, "saturation": _saturated}.items(), 1
        ):
            low, high = self._factors(name)
            if (low, high) != (1, 1):
                values = change(values, per_image(scale_to_range(draws[:, column], low, high), images))
        if self._turns != (0, 0):
            values = _turned(values, per_image(scale_to_range(draws[:, 4], *self._turns), images))
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
    """Converts images to gray with three equal channels.

    Draws one random number: whether to convert the image.

    Args:
        p: Probability of converting an image. Default 0.1.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop, RandomGrayscale
        >>> Augment(CenterCrop(32), RandomGrayscale(p=0.2))
        Augment(CenterCrop(crop=32, resize=None), RandomGrayscale(p=0.2))
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 1."""
        return 1

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Converts images of a batch, (n, 3, H, W) uint8."""
        return apply_to_chosen(images, draws[:, 0] < self.p, _gray)


def grayscale(values: torch.Tensor) -> torch.Tensor:
    """Returns the luma of ITU-R BT.601: (n, 3, H, W) float32 → (n, 1, H, W)."""
    red, green, blue = (values[:, at : at + 1] for at in range(3))
    return (red * 0.299).add_(green * 0.587).add_(blue * 0.114)


def _gray(images: torch.Tensor) -> torch.Tensor:
    return to_levels(grayscale(images.to(torch.float32))).expand_as(images).contiguous()


def _brighter(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (values * factor).clamp_(0, 255)


def _contrasted(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    # The sum of integers does not depend on the order in which a device adds them.
    counted = (grayscale(values) * _SUBLEVELS).add_(0.5).floor_().to(torch.int32).sum((1, 2, 3), keepdim=True)
    num_pixels = values.shape[2] * values.shape[3]
    mean = (counted.to(torch.float64) * (1 / (_SUBLEVELS * num_pixels))).to(torch.float32)
    return _blended(values, mean, factor)


def _saturated(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _blended(values, grayscale(values), factor)


def _blended(values: torch.Tensor, others: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (values * factor).add_(others * (1 - factor)).clamp_(0, 255)


def _turned(values: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotates the hue of RGB values; value and saturation stay. HSV is never stored."""
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
    # Distance of each channel from the hue, by the closed form of HSV → RGB: value - chroma * clamp(min(k, 4 - k)).
    apart = sextant + torch.from_numpy(np.array([5, 3, 1], np.float32)).to(values.device).view(1, 3, 1, 1)
    apart = apart.sub_((apart * (1 / 6)).floor_().mul_(6))
    share = torch.minimum(apart, 4 - apart).clamp_(0, 1)
    return value - share.mul_(chroma)
