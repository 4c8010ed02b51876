"""Defines a crop: what selects a part of each image. `concurrent_loader.augment.crops` has the crops of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from concurrent_loader.decode.crop import Box

__all__ = ["Crop"]


@runtime_checkable
class Crop(Protocol):
    """Selects a box of an image, which is resized to ``size``.

    Example:
        >>> from concurrent_loader.augment import CenterCrop, Crop
        >>> isinstance(CenterCrop(32), Crop)
        True
    """

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""

    @property
    def num_draws(self) -> int:
        """Number of uniform random numbers that `box` needs."""

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Returns the box of an image with the given height and width; ``draws`` are random numbers in [0, 1)."""
