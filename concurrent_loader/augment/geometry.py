"""Moves masks, boxes and keypoints as a crop moves the pixels of their image: pure functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.augment.linked import BoxFormat
from concurrent_loader.decode.crop import Box

__all__ = ["Placement", "crop_nearest", "move_boxes", "move_keypoints"]

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Describes which part of an image is shown, and how.

    Attributes:
        height: Height of the upright image in pixels.
        width: Width of the upright image in pixels.
        box: Part of the image. ``box.flip`` covers all flips left to right.
        flip_vertical: Whether the part is mirrored top to bottom.
        size: Height and width of the output in pixels.
    """

    height: int
    width: int
    box: Box
    flip_vertical: bool
    size: tuple[int, int]


def crop_nearest(image: npt.NDArray[Any], place: Placement) -> npt.NDArray[Any]:
    """Crops and resizes an image without interpolation, by integer arithmetic.

    Output pixel *i* of *n* shows the input pixel that contains the center of the output pixel: that at ``(2 i + 1)
    length // (2 n)``.

    Args:
        image: (…, H, W) of any dtype.
        place: Part to show.

    Returns:
        (…, height, width), contiguous; only values of the input occur.
    """
    rows = _nearest(place.box.top, place.box.height, place.size[0], place.flip_vertical)
    columns = _nearest(place.box.left, place.box.width, place.size[1], place.box.flip)
    return np.ascontiguousarray(image[..., rows[:, None], columns])


def _nearest(start: int, length: int, num: int, flip: bool) -> npt.NDArray[np.int64]:
    found = start + (2 * np.arange(num) + 1) * length // (2 * num)
    return found[::-1] if flip else found


def move_boxes(
    boxes: Numbers, place: Placement, form: BoxFormat, min_visible: float
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Moves boxes into the crop and clips them.

    Args:
        boxes: (N, 4) in pixels of the upright image.
        place: Part to show.
        form: Format of the boxes, which the result has, too.
        min_visible: Smallest share of its area with which a box is kept. Boxes without any area are never kept.

    Returns:
        (N, 4) clipped boxes in pixels of the crop, and (N,) whether each is kept.
    """
    corners = _to_corners(boxes, form)
    top_left = _move(corners[:, :2], place)
    bottom_right = _move(corners[:, 2:], place)
    low, high = np.minimum(top_left, bottom_right), np.maximum(top_left, bottom_right)
    is_sound = (corners[:, 2:] > corners[:, :2]).all(1)
    limits = np.array([place.size[1], place.size[0]], np.float64)
    clipped_low, clipped_high = np.clip(low, 0, limits), np.clip(high, 0, limits)
    area, visible = (high - low).prod(1), (clipped_high - clipped_low).prod(1)
    kept = is_sound & (visible > 0) & (visible >= min_visible * area)
    return _from_corners(np.concatenate([clipped_low, clipped_high], 1), form), kept


def move_keypoints(points: Numbers, place: Placement, flip_pairs: Sequence[tuple[int, int]]) -> Numbers:
    """Moves keypoints into the crop.

    Args:
        points: (…, K, 2) x and y in pixels of the upright image; or (…, K, 3) with visibility, 0 for a missing point.
        place: Part to show.
        flip_pairs: Pairs of points to exchange if the part is mirrored left to right.

    Returns:
        Points in pixels of the crop, in the same shape. Points outside of the crop keep their place there, and get
        visibility 0.
    """
    moved = points.copy()
    moved[..., :2] = _move(points[..., :2], place)
    if points.shape[-1] == 3:
        limits = np.array([place.size[1], place.size[0]], np.float64)
        inside = ((moved[..., :2] >= 0) & (moved[..., :2] <= limits)).all(-1)
        moved[..., 2] = np.where(inside, points[..., 2], 0)
        missing = points[..., 2] == 0
        moved[..., :2] = np.where(missing[..., None], points[..., :2], moved[..., :2])
    if place.box.flip and flip_pairs:
        order = np.arange(points.shape[-2])
        for one, other in flip_pairs:
            order[[one, other]] = order[[other, one]]
        moved = moved[..., order, :]
    return moved


def _move(points: Numbers, place: Placement) -> Numbers:
    """Moves points, (…, 2) x and y: edges of pixels, so that a flip turns 0 into the width."""
    box, (height, width) = place.box, place.size
    # Multiplied first, which is exact at the edges of the crop.
    x = (points[..., 0] - box.left) * width / box.width
    y = (points[..., 1] - box.top) * height / box.height
    return np.stack([width - x if box.flip else x, height - y if place.flip_vertical else y], -1)


def _to_corners(boxes: Numbers, form: BoxFormat) -> Numbers:
    if form == "xyxy":
        return boxes
    first, extent = boxes[:, :2], boxes[:, 2:]
    low = first if form == "xywh" else first - extent / 2
    return np.concatenate([low, low + extent], 1)


def _from_corners(corners: Numbers, form: BoxFormat) -> Numbers:
    if form == "xyxy":
        return corners
    low, extent = corners[:, :2], corners[:, 2:] - corners[:, :2]
    return np.concatenate([low if form == "xywh" else low + extent / 2, extent], 1)
