"""Geometry of masks, boxes and keypoints, and the arguments of `like`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import Augment, CenterCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
from concurrent_loader.augment.geometry import Placement, crop_nearest, move_boxes, move_keypoints
from concurrent_loader.decode import Box
from concurrent_loader.storage import ConfigurationError

places = st.builds(
    lambda height, width, top, left, share, flip, down, out: Placement(
        height, width, Box(top % height, left % width, max(1, (height - top % height) * share // 8),
                           max(1, (width - left % width) * share // 8), flip), down, out,
    ),
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 39), st.integers(0, 39), st.integers(1, 8),
    st.booleans(), st.booleans(), st.tuples(st.integers(1, 30), st.integers(1, 30)),
)  # fmt: skip


@given(places)
def test_a_nearest_crop_shows_the_pixel_at_each_center(place: Placement) -> None:
    image = np.arange(place.height * place.width).reshape(place.height, place.width)
    got = crop_nearest(image, place)
    assert got.shape == place.size
    box, (height, width) = place.box, place.size
    for row in range(height):
        for column in range(width):
            y = box.top + (2 * (height - 1 - row if place.flip_vertical else row) + 1) * box.height // (2 * height)
            x = box.left + (2 * (width - 1 - column if box.flip else column) + 1) * box.width // (2 * width)
            assert got[row, column] == image[y, x]


@pytest.mark.parametrize("size", [(7, 5), (16, 16), (40, 31)])
def test_a_nearest_crop_is_that_of_torch(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 255, (3, 20, 24), np.uint8)
    got = crop_nearest(image, Placement(20, 24, Box(3, 2, 15, 20), False, size))
    part = torch.from_numpy(image[None, :, 3:18, 2:22])
    expected = torch.nn.functional.interpolate(part, size=size, mode="nearest-exact")[0]
    assert np.array_equal(got, expected.numpy())


@given(places, st.integers(0, 2**32))
def test_boxes_enclose_the_pixels_that_they_enclosed_before(place: Placement, seed: int) -> None:
    """A box drawn into an image, and the box moved, agree to within a pixel of the output."""
    rng = np.random.default_rng(seed)
    y0, x0 = int(rng.integers(place.height)), int(rng.integers(place.width))
    y1, x1 = int(rng.integers(y0, place.height)) + 1, int(rng.integers(x0, place.width)) + 1
    image = np.zeros((place.height, place.width), np.uint8)
    image[y0:y1, x0:x1] = 1
    rows, columns = np.nonzero(crop_nearest(image, place))
    (moved,), (kept,) = move_boxes(np.array([[x0, y0, x1, y1]], np.float64), place, "xyxy", 0.0)
    if len(rows):
        assert kept
        drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(moved - drawn).max() <= 0.5 + 1e-6
    assert (moved >= 0).all()
    assert (moved[2:] <= [place.size[1], place.size[0]]).all()


@given(places, st.lists(st.tuples(*[st.integers(0, 40)] * 4), max_size=5))
def test_formats_of_boxes_agree(place: Placement, numbers: list[tuple[int, ...]]) -> None:
    xyxy = np.array(numbers, np.float64).reshape(-1, 4)
    xyxy[:, 2:] += xyxy[:, :2]
    extent = xyxy[:, 2:] - xyxy[:, :2]
    xywh = np.concatenate([xyxy[:, :2], extent], 1)
    centers = np.concatenate([xyxy[:, :2] + extent / 2, extent], 1)
    expected, kept = move_boxes(xyxy, place, "xyxy", 0.2)
    for boxes, form in ((xywh, "xywh"), (centers, "cxcywh")):
        moved, also = move_boxes(boxes, place, form, 0.2)  # type: ignore[arg-type]
        assert np.array_equal(kept, also)
        low = moved[:, :2] if form == "xywh" else moved[:, :2] - moved[:, 2:] / 2
        assert np.allclose(np.concatenate([low, low + moved[:, 2:]], 1), expected)


def test_boxes_are_clipped_and_dropped_below_a_visible_share() -> None:
    place = Placement(100, 100, Box(0, 50, 100, 50), False, (200, 100))
    boxes = np.array([[40, 10, 60, 20], [0, 0, 50, 50], [60, 0, 160, 10], [70, 30, 70, 40], [45, 0, 55, 1]], np.float64)
    moved, kept = move_boxes(boxes, place, "xyxy", 0.0)
    assert kept.tolist() == [True, False, True, False, True]
    assert moved[0].tolist() == [0, 20, 20, 40]
    assert moved[2].tolist() == [20, 0, 100, 20]
    assert move_boxes(boxes, place, "xyxy", 0.5)[1].tolist() == [True, False, False, False, True]
    assert move_boxes(boxes, place, "xyxy", 0.51)[1].tolist() == [False] * 5


def test_keypoints_follow_flips_and_exchange_sides() -> None:
    points = np.array([[10.0, 20, 2], [90, 20, 1], [50, 90, 2], [0, 0, 0]])
    place = Placement(100, 100, Box(0, 0, 50, 100, flip=True), False, (50, 100))
    moved = move_keypoints(points, place, [(0, 1)])
    assert moved.tolist() == [[10, 20, 1], [90, 20, 2], [50, 90, 0], [0, 0, 0]]
    upside_down = move_keypoints(points[:, :2], Placement(100, 100, Box(0, 0, 100, 100), True, (100, 100)), [(0, 1)])
    assert upside_down.tolist() == [[10, 80], [90, 80], [50, 10], [0, 100]]
    assert points[0].tolist() == [10, 20, 2]


def test_an_augmentation_knows_its_flips() -> None:
    both = Augment(CenterCrop(8), RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0))
    assert both.flips([0.5] * both.num_draws) == (True, True)
    twice = Augment(CenterCrop(8), RandomHorizontalFlip(1.0), RandomHorizontalFlip(1.0))
    assert twice.flips([0.5] * twice.num_draws) == (False, False)
    half = Augment(CenterCrop(8), RandomVerticalFlip(0.5))
    draws = half.draw(0, 0, np.arange(50))
    image = torch.arange(2 * 3 * 64, dtype=torch.uint8).view(2, 3, 8, 8)[:1].repeat(50, 1, 1, 1)
    flipped = half.apply(image, draws)
    for one, row in zip(flipped, draws.tolist(), strict=True):
        assert torch.equal(one, image[0].flip(1) if half.flips(row)[1] else image[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"interpolation": "bilinear"}, "must be 'nearest'"),
        ({"boxes": "yxyx"}, "boxes must be a format"),
        ({"boxes": "xyxy", "keypoints": True}, "one of interpolation, boxes and keypoints"),
        ({"boxes": "xyxy", "min_visible": 1.5}, "share from 0 to 1"),
        ({"min_visible": 0.5}, "min_visible is for boxes"),
        ({"boxes": "xyxy", "flip_pairs": [(0, 1)]}, "flip_pairs is for keypoints"),
    ],
)
def test_invalid_arguments_of_like_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RandomResizedCrop(8).like("image", **arguments)
    with pytest.raises(ConfigurationError, match="name of a column"):
        RandomResizedCrop(8).like(3)  # type: ignore[arg-type]


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 512), st.booleans())
def test_what_reaches_to_the_edge_of_the_crop_is_visible(width: int, height: int, size: int, flip: bool) -> None:
    place = Placement(height + 9, width + 5, Box(4, 2, height, width, flip=flip), False, (size, size))
    (moved,), (kept,) = move_boxes(np.array([[2, 4, 2 + width, 4 + height]], np.float64), place, "xyxy", 1.0)
    assert kept
    assert moved.tolist() == [0, 0, size, size]
    corner = np.array([[[2.0 + width, 4.0 + height, 2]]])
    assert move_keypoints(corner, place, [])[0, 0, 2] == 2
