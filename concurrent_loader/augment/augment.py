"""Combines a crop and a sequence of operations into the augmentation of one column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.crop_protocol import Crop
from concurrent_loader.augment.flip import RandomHorizontalFlip, RandomVerticalFlip
from concurrent_loader.augment.linked import Linkable
from concurrent_loader.augment.normalize import Finish, Normalize, ToDtype
from concurrent_loader.augment.operation import Draws, Operation
from concurrent_loader.augment.random_draws import MAX_DRAWS, uniforms
from concurrent_loader.decode.crop import Box
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["CROP_DRAWS", "Augment"]

CROP_DRAWS = 24  # random numbers reserved for the crop


class Augment(Linkable):
    """Crops an image, then applies operations: ``decode={"image": Augment(RandomResizedCrop(224), …)}``.

    Each sample has 64 uniform random numbers per epoch (`concurrent_loader.augment.uniforms`). The first 24 belong to
    the crop. The operations take the following ones in their order. Another crop, or one more operation at the end,
    therefore does not change the random numbers of the others.

    Args:
        crop: Crop that selects a part of the image and the output size.
        operations: Operations to apply after the crop. `Normalize` or `ToDtype` must be the last one. Any object with
            ``num_draws`` and ``apply`` is an operation; see `Operation`.

    Raises:
        ConfigurationError: The order is invalid, or the operations take more random numbers than a sample has.

    Thread-safety: Instances are immutable.

    Example:
        >>> from concurrent_loader import Augment, ColorJitter, Normalize, RandomResizedCrop
        >>> augment = Augment(RandomResizedCrop(32), ColorJitter(brightness=0.4), Normalize((0.5,) * 3, (0.5,) * 3))
        >>> augment.size
        (32, 32)
    """

    def __init__(self, crop: Crop, *operations: Operation) -> None:
        if isinstance(crop, Augment) or not isinstance(crop, Crop):
            raise ConfigurationError("the first argument of Augment must be a crop", got=type(crop).__name__)
        if crop.num_draws > CROP_DRAWS:
            raise ConfigurationError("the crop takes too many random numbers", expected=CROP_DRAWS, got=crop.num_draws)
        for place, operation in enumerate(operations, 1):
            if not hasattr(operation, "apply") or not hasattr(operation, "num_draws"):
                raise ConfigurationError("an operation must have num_draws and apply", got=type(operation).__name__)
            if isinstance(operation, Normalize | ToDtype) and place < len(operations):
                raise ConfigurationError("this operation must be the last one", got=type(operation).__name__)
        self.crop = crop
        self.operations = operations
        ends = CROP_DRAWS + np.cumsum([0, *(operation.num_draws for operation in operations)])
        self._places = [slice(first, past) for first, past in zip(ends.tolist(), ends[1:].tolist(), strict=False)]
        if ends[-1] > MAX_DRAWS:
            raise ConfigurationError(
                "the operations take too many random numbers", expected=MAX_DRAWS, got=int(ends[-1])
            )
        self._num_draws = int(ends[-1]) if operations else crop.num_draws

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""
        return self.crop.size

    @property
    def num_draws(self) -> int:
        """Number of uniform random numbers that crop and operations take for each sample."""
        return self._num_draws

    @property
    def finish(self) -> Finish | None:
        """Final `Normalize` or `ToDtype`; None if the output stays uint8."""
        last = self.operations[-1] if self.operations else None
        return last if isinstance(last, Normalize | ToDtype) else None

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Returns the box that the crop selects from an image of the given size."""
        return self.crop.box(height, width, draws)

    def flips(self, draws: Sequence[float]) -> tuple[bool, bool]:
        """Returns whether the operations mirror an image left to right, and top to bottom.

        Args:
            draws: The image's random numbers, as for `box`. A mirrored box comes on top of the result.
        """
        across = down = False
        for operation, place in zip(self.operations, self._places, strict=True):
            if isinstance(operation, RandomHorizontalFlip):
                across ^= draws[place.start] < operation.p
            elif isinstance(operation, RandomVerticalFlip):
                down ^= draws[place.start] < operation.p
        return across, down

    def draw(self, seed: int, epoch: int, samples: npt.NDArray[np.int64]) -> Draws:
        """Draws the random numbers of samples.

        Args:
            seed: Seed of the loader.
            epoch: Epoch number, from 0.
            samples: Sample numbers, (n,) int64.

        Returns:
            (n, num_draws) float64 in [0, 1). `box` takes one row, `apply` takes all rows.
        """
        if not self._num_draws:
            return np.empty((len(samples), 0))
        return uniforms(seed, epoch, samples, self._num_draws)

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Applies the operations to a batch of crops.

        Args:
            images: (n, 3, H, W) uint8 crops on any device, mirrored if their boxes say so.
            draws: (n, num_draws) random numbers of the samples, on the CPU.

        Returns:
            (n, 3, H, W) on the same device, in the dtype of the last operation. The result for an image does not depend
            on the other images, and is bit-identical on all devices; see docs/how-to/augmentation.md.

        Raises:
            ConfigurationError: The shape or dtype of ``images`` or ``draws`` is wrong.
        """
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            found = tuple(images.shape), images.dtype
            raise ConfigurationError("images must be (n, 3, H, W) uint8", got=found)
        if draws.shape != (len(images), self._num_draws):
            expected = len(images), self._num_draws
            raise ConfigurationError("draws must have one row per image", expected=expected, got=draws.shape)
        if not len(images):
            return images if self.finish is None else self.finish.apply(images, draws)
        for operation, place in zip(self.operations, self._places, strict=True):
            images = operation.apply(images, draws[:, place])
        return images

    def __repr__(self) -> str:
        return f"Augment({', '.join(map(repr, (self.crop, *self.operations)))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Augment):
            return NotImplemented
        return (self.crop, self.operations) == (other.crop, other.operations)

    def __hash__(self) -> int:
        return hash((self.crop, self.operations))
