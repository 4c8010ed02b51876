"""Blurring: a Gaussian to within half a level, in whole numbers that have one right sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from concurrent_loader.augment import GaussianBlur
from concurrent_loader.augment.blur import gaussian_weights
from concurrent_loader.storage.errors import ConfigurationError

SIGMAS = np.linspace(0.1, 2.0, 8)
SHARES = (SIGMAS - 0.1) / 1.9


def pictures() -> torch.Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (8, 3, 33, 29), dtype=torch.uint8, generator=random)


def rows(*columns) -> np.ndarray:
    return np.stack([np.broadcast_to(column, 8) for column in columns], axis=1).astype(np.float64)


@pytest.mark.parametrize("size", [3, 9, 23])
def test_it_is_torchvisions(size):
    batch = pictures()
    found = GaussianBlur(size, (0.1, 2.0)).apply(batch, rows(0, SHARES))
    for one, sigma, made in zip(batch, SIGMAS, found, strict=True):
        wanted = functional.gaussian_blur(one.float() / 255, [size, size], [float(sigma)] * 2) * 255
        errors = (made.float() - wanted).abs()
        assert errors.max() < 0.75
        assert errors.mean() < 0.3  # rounding alone makes 0.25
        levels = functional.gaussian_blur(one, [size, size], [float(sigma)] * 2)
        assert (levels.int() - made.int()).abs().max() <= 1


@given(st.integers(0, 20), st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_weights_are_whole_numbers_of_one_sum(half, sigmas):
    weights = gaussian_weights(2 * half + 1, np.array(sigmas))
    assert (weights.sum(1) == 4096).all()
    assert (weights == np.floor(weights)).all()
    assert (weights >= 0).all()
    assert (weights == weights[:, ::-1]).all()


def test_sums_are_exact():
    # The same in 64-bit whole numbers.
    batch = pictures()
    found = GaussianBlur(5, 1.5).apply(batch, rows(0, 0))
    weights = gaussian_weights(5, np.array([1.5]))[0].astype(np.int64)
    across = np.pad(batch.numpy().astype(np.int64), ((0, 0), (0, 0), (0, 0), (2, 2)), mode="reflect")
    across = (sum(weights[k] * across[..., k : k + 29] for k in range(5)) * 16 * 2 + 4096) // 8192
    down = np.pad(across, ((0, 0), (0, 0), (2, 2), (0, 0)), mode="reflect")
    down = (sum(weights[k] * down[..., k : k + 33, :] for k in range(5)) * 2 + 65536) // 131072
    assert np.array_equal(found.numpy(), down)


def test_a_picture_does_not_depend_on_its_neighbours():
    batch, blur = pictures(), GaussianBlur(9, (0.1, 3.0), p=0.6)
    draws = np.random.default_rng(1).random((8, 2))
    found = blur.apply(batch, draws)
    for place in range(8):
        assert torch.equal(found[place], blur.apply(batch[[place]], draws[[place]])[0])
        if draws[place, 0] >= 0.6:
            assert torch.equal(found[place], batch[place])


def test_flat_pictures_stay_flat():
    flat = torch.tensor([0, 1, 77, 128, 254, 255] * 3, dtype=torch.uint8).view(6, 3, 1, 1).expand(6, 3, 12, 12)
    assert torch.equal(GaussianBlur(11, 4.0).apply(flat, np.zeros((6, 2))), flat)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianBlur(4),
        lambda: GaussianBlur(0),
        lambda: GaussianBlur(True),
        lambda: GaussianBlur(3.0),
        lambda: GaussianBlur(3, 0),
        lambda: GaussianBlur(3, (2, 1)),
        lambda: GaussianBlur(3, p=-1),
        lambda: GaussianBlur(59).apply(pictures(), rows(0, 0)),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()
