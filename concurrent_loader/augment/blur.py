"""Blurs crops with a Gaussian filter whose width is drawn for each image.

Weights are 12-bit integers that sum to 4096. Values between the two passes are integers too, in sixteenths of a level.
All products and sums are then integers below 2**24, which float32 represents exactly. The result is therefore
bit-identical on CPU and GPU, in any order of additions, with or without fused multiply-add.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from concurrent_loader.augment.operation import Draws, apply_to_chosen, check_probability, check_range, scale_to_range
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["GaussianBlur", "gaussian_weights"]

_WEIGHT_SUM = 4096  # sum of the weights of a filter
_SUBLEVELS = 16  # steps per level between the passes


@dataclass(frozen=True)
class GaussianBlur:
    """Blurs images, which are extended at the edges by reflection.

    Draws two random numbers: whether to blur, sigma.

    Args:
        kernel_size: Width and height of the filter in pixels: odd, and at most twice the side of the image minus 1.
        sigma: Standard deviation of the Gaussian in pixels, or its minimum and maximum. Default 0.1 to 2.0.
        p: Probability of blurring an image. Default 1.0.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Augment, CenterCrop, GaussianBlur
        >>> Augment(CenterCrop(32), GaussianBlur(9, sigma=(0.1, 2.0), p=0.5)).num_draws
        26
    """

    kernel_size: int
    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.kernel_size, bool) or not isinstance(self.kernel_size, int) or self.kernel_size < 1:
            raise ConfigurationError("kernel_size must be an odd number of pixels", got=self.kernel_size)
        if self.kernel_size % 2 == 0:
            raise ConfigurationError("kernel_size must be an odd number of pixels", got=self.kernel_size)
        check_range("sigma", self._sigmas, least=0.01)
        check_probability("p", self.p)

    @property
    def num_draws(self) -> int:
        """Number of random numbers per image: 2."""
        return 2

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Blurs images of a batch, (n, 3, H, W) uint8.

        Raises:
            ConfigurationError: The images are too small for the filter.
        """
        if self.kernel_size // 2 >= min(images.shape[2:]):
            raise ConfigurationError(
                "the filter is too large for the images", expected=tuple(images.shape[2:]), got=self.kernel_size
            )
        chosen = draws[:, 0] < self.p
        weights = gaussian_weights(self.kernel_size, scale_to_range(draws[chosen, 1], *self._sigmas))
        return apply_to_chosen(images, chosen, lambda some: _blurred(some, weights))

    @property
    def _sigmas(self) -> tuple[float, float]:
        return (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma


def gaussian_weights(kernel_size: int, sigmas: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Returns one filter per sigma: (n, kernel_size) float32, integers that sum to 4096."""
    reach = np.arange(kernel_size) - kernel_size // 2
    exact = np.exp(-0.5 * (reach / sigmas.reshape(-1, 1)) ** 2)
    weights = np.floor(exact / exact.sum(1, keepdims=True) * _WEIGHT_SUM + 0.5)
    weights[:, kernel_size // 2] += _WEIGHT_SUM - weights.sum(1)
    single: npt.NDArray[np.float32] = weights.astype(np.float32)
    return single


def _blurred(images: torch.Tensor, weights: npt.NDArray[np.float32]) -> torch.Tensor:
    # Skip taps whose weight is 0 for all images, which is most of a wide filter for a narrow Gaussian.
    reach = int(np.flatnonzero(weights.any(0))[-1]) - weights.shape[1] // 2
    middle = weights.shape[1] // 2
    half = torch.from_numpy(np.ascontiguousarray(weights[:, middle : middle + reach + 1].T))
    shares = half.to(images.device, non_blocking=True).view(reach + 1, -1, 1, 1, 1)
    across = _filtered(pad(images.to(torch.float32), (reach, reach, 0, 0), mode="reflect"), shares, 3)
    across = across.mul_(_SUBLEVELS / _WEIGHT_SUM).add_(0.5).floor_()
    down = _filtered(pad(across, (0, 0, reach, reach), mode="reflect"), shares, 2)
    return down.mul_(1 / (_SUBLEVELS * _WEIGHT_SUM)).add_(0.5).floor_().to(torch.uint8)


def _filtered(values: torch.Tensor, shares: torch.Tensor, dim: int) -> torch.Tensor:
    """Filters along one dimension; ``shares`` are the weights from the center outward."""
    reach = len(shares) - 1
    length = values.shape[dim] - 2 * reach
    total = values.narrow(dim, reach, length) * shares[0]
    for apart in range(1, reach + 1):
        both = values.narrow(dim, reach - apart, length) + values.narrow(dim, reach + apart, length)
        total.addcmul_(both, shares[apart])
    return total
