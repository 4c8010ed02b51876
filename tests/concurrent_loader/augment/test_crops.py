"""Boxes as functions of a picture's size and of numbers: inside the picture, and distributed as torchvision's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from concurrent_loader.augment import CenterCrop, Crop, RandomResizedCrop, uniforms
from concurrent_loader.storage.errors import ConfigurationError

SIDES = st.integers(1, 5000)
UNIT = st.floats(0, 1, exclude_max=True)


@given(height=SIDES, width=SIDES, draws=st.lists(UNIT, min_size=23, max_size=23))
def test_a_random_box_lies_within_the_picture(height, width, draws):
    crop = RandomResizedCrop(224)
    box = crop.box(height, width, draws)
    assert len(draws) == crop.num_draws
    assert 0 <= box.top <= box.top + box.height <= height
    assert 0 <= box.left <= box.left + box.width <= width
    assert min(box.height, box.width) >= 1
    assert box.flip == (draws[0] < 0.5)


@given(height=SIDES, width=SIDES, crop=st.integers(1, 300), more=st.integers(0, 100))
def test_the_middle_is_the_middle(height, width, crop, more):
    box = CenterCrop(crop, resize=crop + more).box(height, width, ())
    assert box.height == box.width
    assert abs(box.height - min(height, width) * crop / (crop + more)) <= 1
    assert abs((2 * box.top + box.height) - height) <= 1
    assert abs((2 * box.left + box.width) - width) <= 1


@pytest.mark.slow
def test_boxes_are_distributed_as_torchvisions():
    height, width, num = 375, 500, 4000
    crop = RandomResizedCrop(224)
    ours = [crop.box(height, width, row) for row in uniforms(0, 0, np.arange(num), crop.num_draws).tolist()]
    torch.manual_seed(0)
    picture = torch.empty(3, height, width)
    theirs = [v2.RandomResizedCrop(224).make_params([picture]) for _ in range(num)]

    def facts(height, width, top, left):
        return height * width, width / height, top, left

    a = np.array([facts(box.height, box.width, box.top, box.left) for box in ours])
    b = np.array([facts(each["height"], each["width"], each["top"], each["left"]) for each in theirs])
    for column in range(4):
        quantiles = np.quantile(a[:, column], [0.1, 0.5, 0.9]), np.quantile(b[:, column], [0.1, 0.5, 0.9])
        assert np.allclose(*quantiles, atol=0.08 * np.ptp(b[:, column]))


def test_a_picture_that_is_too_narrow_gives_its_middle():
    box = RandomResizedCrop(224, scale=(1, 1), flip=0).box(1000, 10, [0.5] * 23)
    assert (box.left, box.width) == (0, 10)
    assert math.isclose(box.height, 10 / 0.75, abs_tol=1)
    assert abs(2 * box.top + box.height - 1000) <= 1
    wide = RandomResizedCrop(224, scale=(1, 1), flip=0).box(10, 1000, [0.5] * 23)
    assert (wide.top, wide.height, wide.width) == (0, 10, 13)


def test_sizes():
    assert RandomResizedCrop((32, 48)).size == (32, 48)
    assert RandomResizedCrop(32).size == CenterCrop(32).size == (32, 32)
    assert isinstance(RandomResizedCrop(1), Crop)
    assert isinstance(CenterCrop(1), Crop)
    assert not isinstance("rgb", Crop)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8.0),
        lambda: RandomResizedCrop(None),
        lambda: RandomResizedCrop(8, ratio=(1, math.inf)),
        lambda: RandomResizedCrop((3, 0)),
        lambda: RandomResizedCrop(True),
        lambda: RandomResizedCrop(8, scale=(0, 1)),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.2)),
        lambda: RandomResizedCrop(8, scale=(0.5, 1.2)),
        lambda: RandomResizedCrop(8, ratio=(2, 1)),
        lambda: RandomResizedCrop(8, flip=1.5),
        lambda: CenterCrop(0),
        lambda: CenterCrop(224, resize=200),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()
