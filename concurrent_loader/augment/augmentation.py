"""All that is done to a column's pictures, as one value: a crop, and operations in the order in which they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.crops import Crop
from concurrent_loader.augment.draws import MAX_DRAWS, uniforms
from concurrent_loader.augment.finish import Finish, Normalize, ToDtype
from concurrent_loader.augment.operation import Draws, Operation
from concurrent_loader.decode.crop import Box
from storage.errors import ConfigurationError

__all__ = ["CROP_DRAWS", "Augment"]

CROP_DRAWS = 24  # kept for the crop, whichever it is


class Augment:
    """A crop, and what is done to it: for ``decode={"image": Augment(RandomResizedCrop(224), …)}``.

    Each sample has 64 uniform numbers an epoch (`concurrent_loader.augment.uniforms`). The first 24 are the crop's; the
    operations have the next ones, each as many as it takes, in their order. So another crop, or an operation more at
    the end, changes nothing of what the others draw.

    Args:
        crop: Says which part of a picture, and its size.
        operations: What is done then; `Normalize` or `ToDtype` can only be the last. Your own are any objects with
            ``num_draws`` and ``apply`` (see `Operation`).

    Raises:
        ConfigurationError: Something is not in its place, or takes more numbers than a sample has.

    Thread-safety: Nothing in it changes.
    """

    def __init__(self, crop: Crop, *operations: Operation) -> None:
        if isinstance(crop, Augment) or not isinstance(crop, Crop):
            raise ConfigurationError("an augmentation begins with a crop", got=type(crop).__name__)
        if crop.num_draws > CROP_DRAWS:
            raise ConfigurationError("the crop takes too many numbers", expected=CROP_DRAWS, got=crop.num_draws)
        for place, operation in enumerate(operations, 1):
            if not hasattr(operation, "apply") or not hasattr(operation, "num_draws"):
                raise ConfigurationError("an operation has num_draws and apply", got=type(operation).__name__)
            if isinstance(operation, Normalize | ToDtype) and place < len(operations):
                raise ConfigurationError("nothing can follow this operation", got=type(operation).__name__)
        self.crop = crop
        self.operations = operations
        ends = CROP_DRAWS + np.cumsum([0, *(operation.num_draws for operation in operations)])
        self._places = [slice(first, past) for first, past in zip(ends.tolist(), ends[1:].tolist(), strict=False)]
        if ends[-1] > MAX_DRAWS:
            raise ConfigurationError("the operations take too many numbers", expected=MAX_DRAWS, got=int(ends[-1]))
        self._num_draws = int(ends[-1]) if operations else crop.num_draws

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        return self.crop.size

    @property
    def num_draws(self) -> int:
        """Uniform numbers of each sample that crop and operations take, from the first on."""
        return self._num_draws

    @property
    def finish(self) -> Finish | None:
        """What makes levels into something else at the end, if anything does."""
        last = self.operations[-1] if self.operations else None
        return last if isinstance(last, Normalize | ToDtype) else None

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """The crop's box of a picture of that many pixels."""
        return self.crop.box(height, width, draws)

    def draw(self, seed: int, epoch: int, samples: npt.NDArray[np.int64]) -> Draws:
        """Some samples' numbers: (n, num_draws), as `box` takes a row and `apply` all of them."""
        if not self._num_draws:
            return np.empty((len(samples), 0))
        return uniforms(seed, epoch, samples, self._num_draws)

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Does to a batch of crops what comes after the crop.

        Args:
            pictures: (n, 3, H, W) uint8 on any device: crops, mirrored already where the crop's box says so.
            draws: (n, num_draws) of their samples, on the CPU.

        Returns:
            (n, 3, H, W) on that device, uint8 or what the last operation makes. What becomes of a picture does not
            depend on the others, nor, to the bit, on the device; see docs/augmentation.md.

        Raises:
            ConfigurationError: Pictures or draws of another kind.
        """
        if pictures.dtype != torch.uint8 or pictures.dim() != 4 or pictures.shape[1] != 3:
            found = tuple(pictures.shape), pictures.dtype
            raise ConfigurationError("pictures must be (n, 3, H, W) uint8", got=found)
        if draws.shape != (len(pictures), self._num_draws):
            expected = len(pictures), self._num_draws
            raise ConfigurationError("each picture needs its numbers", expected=expected, got=draws.shape)
        if not len(pictures):
            return pictures if self.finish is None else self.finish.apply(pictures, draws)
        for operation, place in zip(self.operations, self._places, strict=True):
            pictures = operation.apply(pictures, draws[:, place])
        return pictures

    def __repr__(self) -> str:
        return f"Augment({', '.join(map(repr, (self.crop, *self.operations)))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Augment):
            return NotImplemented
        return (self.crop, self.operations) == (other.crop, other.operations)

    def __hash__(self) -> int:
        return hash((self.crop, self.operations))
