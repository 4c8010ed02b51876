"""Blurs crops: a Gaussian of each picture's own width.

Weights are whole numbers of 12 bits that sum to 4096, and what lies between rows and columns is counted in sixteenths
of a level. All products and sums are then whole numbers below 2**24, which float32 has exactly: in whatever order they
are added, with or without fused multiplication, on a CPU or a GPU, the picture is the same to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from concurrent_loader.augment.operation import Draws, check_probability, check_range, for_some, spread
from storage.errors import ConfigurationError

__all__ = ["GaussianBlur", "gaussian_weights"]

_WHOLE = 4096  # what the weights of a filter sum to
_FINE = 16  # parts of a level between the passes


@dataclass(frozen=True)
class GaussianBlur:
    """Blurs pictures, which are continued by their mirror images at the edges.

    Args:
        kernel_size: Pixels that the filter covers, each way; odd, and at most twice the picture's side less one.
        sigma: Least and largest width of the Gaussian in pixels, or the width.
        p: Probability of being blurred.

    Draws: whether, sigma.

    Raises:
        ConfigurationError: An argument that cannot work.
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
        """Two."""
        return 2

    def apply(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Changes the pictures of a batch.

        Raises:
            ConfigurationError: The pictures are too small for the filter.
        """
        if self.kernel_size // 2 >= min(pictures.shape[2:]):
            raise ConfigurationError(
                "the filter is too large for the pictures", expected=tuple(pictures.shape[2:]), got=self.kernel_size
            )
        chosen = draws[:, 0] < self.p
        weights = gaussian_weights(self.kernel_size, spread(draws[chosen, 1], *self._sigmas))
        return for_some(pictures, chosen, lambda some: _blurred(some, weights))

    @property
    def _sigmas(self) -> tuple[float, float]:
        return (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma


def gaussian_weights(kernel_size: int, sigmas: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The filters of some widths: (n, kernel_size) whole numbers that sum to 4096."""
    reach = np.arange(kernel_size) - kernel_size // 2
    exact = np.exp(-0.5 * (reach / sigmas.reshape(-1, 1)) ** 2)
    weights = np.floor(exact / exact.sum(1, keepdims=True) * _WHOLE + 0.5)
    weights[:, kernel_size // 2] += _WHOLE - weights.sum(1)
    single: npt.NDArray[np.float32] = weights.astype(np.float32)
    return single


def _blurred(pictures: torch.Tensor, weights: npt.NDArray[np.float32]) -> torch.Tensor:
    # What no picture gives any weight is left out: the wide part of a filter for a narrow Gaussian.
    reach = int(np.flatnonzero(weights.any(0))[-1]) - weights.shape[1] // 2
    middle = weights.shape[1] // 2
    half = torch.from_numpy(np.ascontiguousarray(weights[:, middle : middle + reach + 1].T))
    shares = half.to(pictures.device, non_blocking=True).view(reach + 1, -1, 1, 1, 1)
    across = _filtered(pad(pictures.to(torch.float32), (reach, reach, 0, 0), mode="reflect"), shares, 3)
    across = across.mul_(_FINE / _WHOLE).add_(0.5).floor_()
    down = _filtered(pad(across, (0, 0, reach, reach), mode="reflect"), shares, 2)
    return down.mul_(1 / (_FINE * _WHOLE)).add_(0.5).floor_().to(torch.uint8)


def _filtered(values: torch.Tensor, shares: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums along one dimension; ``shares`` are the weights from the middle outwards."""
    reach = len(shares) - 1
    length = values.shape[dim] - 2 * reach
    total = values.narrow(dim, reach, length) * shares[0]
    for apart in range(1, reach + 1):
        both = values.narrow(dim, reach - apart, length) + values.narrow(dim, reach + apart, length)
        total.addcmul_(both, shares[apart])
    return total
