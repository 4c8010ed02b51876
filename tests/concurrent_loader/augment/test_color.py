"""Colors: torchvision's formulas, to within half a level, and the same to the bit in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from concurrent_loader.augment import ColorJitter, RandomGrayscale
from concurrent_loader.storage.errors import ConfigurationError

NUM = 12


def pictures(num: int = NUM) -> torch.Tensor:
    """Noise, smooth slopes, grays and flat colors."""
    random = torch.Generator().manual_seed(1)
    noise = torch.randint(0, 256, (num, 3, 17, 23), dtype=torch.uint8, generator=random)
    noise[1] = torch.arange(17 * 23).view(17, 23).remainder(256).to(torch.uint8)
    noise[2] = torch.linspace(0, 255, 23).to(torch.uint8)
    noise[3] = torch.tensor([200, 30, 90], dtype=torch.uint8).view(3, 1, 1)
    noise[4], noise[5] = 0, 255
    return noise


def rows(*columns: float | np.ndarray) -> np.ndarray:
    return np.stack([np.broadcast_to(column, NUM) for column in columns], axis=1).astype(np.float64)


SHARES = np.linspace(0, 0.999, NUM)


def check(found: torch.Tensor, wanted: list[torch.Tensor], *, slack: float = 0.05) -> None:
    for one, other in zip(found, wanted, strict=True):
        # Whole levels are half a level from what they should be, at most.
        assert (one.float() - other * 255).abs().max() <= 0.5 + slack


@pytest.mark.parametrize(
    ("name", "column", "function"),
    [
        ("brightness", 1, functional.adjust_brightness),
        ("contrast", 2, functional.adjust_contrast),
        ("saturation", 3, functional.adjust_saturation),
    ],
)
def test_factors_are_torchvisions(name, column, function):
    batch = pictures()
    draws = rows(0.0, 0.5, 0.5, 0.5, 0.5)
    draws[:, column] = SHARES
    found = ColorJitter(**{name: (0.25, 1.75)}).apply(batch, draws)
    check(found, [function(one.float() / 255, 0.25 + share * 1.5) for one, share in zip(batch, SHARES, strict=True)])
    levels = torch.stack([function(one, 0.25 + share * 1.5) for one, share in zip(batch, SHARES, strict=True)])
    errors = (levels.int() - found.int()).abs()
    assert errors.max() <= 2  # with levels it rounds down, grays and results
    assert errors.float().mean() < 0.75


def test_hues_are_torchvisions():
    batch = pictures()
    found = ColorJitter(hue=0.5).apply(batch, rows(0, 0.5, 0.5, 0.5, SHARES))
    check(
        found, [functional.adjust_hue(one.float() / 255, share - 0.5) for one, share in zip(batch, SHARES, strict=True)]
    )


def test_all_of_it_in_a_fixed_order():
    batch = pictures()
    found = ColorJitter(0.4, 0.4, 0.4, 0.1).apply(batch, rows(0, SHARES, SHARES[::-1], 0.3, SHARES))
    wanted = []
    for place, one in enumerate(batch.float() / 255):
        one = functional.adjust_brightness(one, 0.6 + 0.8 * SHARES[place])
        one = functional.adjust_contrast(one, 0.6 + 0.8 * SHARES[::-1][place])
        one = functional.adjust_saturation(one, 0.6 + 0.8 * 0.3)
        wanted.append(functional.adjust_hue(one, -0.1 + 0.2 * SHARES[place]))
    check(found, wanted, slack=0.2)  # a different 0.299 moves the hue of what is nearly gray


def test_factors_of_one_and_no_turn_change_nothing():
    batch = pictures()
    middle = rows(0.0, 0.5, 0.5, 0.5, 0.5)
    assert torch.equal(ColorJitter(0.5, 0.5, 0.5, 0.5).apply(batch, middle), batch)
    assert torch.equal(ColorJitter().apply(batch, middle), batch)
    assert ColorJitter(0.5, p=0.5).apply(batch, rows(0.7, 0, 0, 0, 0)) is batch


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=5, max_size=5), st.floats(0, 1), st.floats(0, 0.5))
def test_a_picture_does_not_depend_on_its_neighbours(shares, strength, hue):
    jitter = ColorJitter(strength, strength, strength, hue, p=0.7)
    batch = pictures()
    draws = np.random.default_rng(0).random((NUM, 5))
    draws[7] = shares
    found = jitter.apply(batch, draws)
    assert torch.equal(found[7], jitter.apply(batch[[7]], draws[[7]])[0])
    assert torch.equal(found[3:9], jitter.apply(batch[3:9], draws[3:9]))
    if shares[0] >= 0.7:
        assert torch.equal(found[7], batch[7])


def test_gray_is_torchvisions():
    batch = pictures()
    chosen = SHARES < 0.6
    found = RandomGrayscale(0.6).apply(batch, rows(SHARES))
    assert torch.equal(found[~chosen], batch[~chosen])
    gray = [functional.rgb_to_grayscale(one.float() / 255, num_output_channels=3) for one in batch[chosen]]
    check(found[chosen], gray)
    assert torch.equal(found[1], batch[1])  # what is gray stays what it is


@pytest.mark.parametrize(
    "make",
    [
        lambda: ColorJitter(brightness=-0.1),
        lambda: ColorJitter(contrast=(1.2, 0.8)),
        lambda: ColorJitter(saturation=(-1, 2)),
        lambda: ColorJitter(saturation="much"),
        lambda: ColorJitter(brightness=float("nan")),
        lambda: ColorJitter(hue=0.6),
        lambda: ColorJitter(hue=-0.1),
        lambda: ColorJitter(hue=(-0.6, 0)),
        lambda: ColorJitter(p=2),
        lambda: RandomGrayscale(-1),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()
