"""Recognizes the columns of a dataset that hold images, masks and boxes, by their types and names. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.images import COLUMN_FORMATS
from concurrent_loader.storage.images.column_names import guess_content
from concurrent_loader.storage.shards.format.schema import Column, Schema

__all__ = ["PictureColumns", "as_boxes", "as_pixels", "guess_box_format"]

_MIN_SIDE = 8  # a smaller array is not an image
_MAX_BOXES = 200  # drawn on one image


@dataclass(frozen=True, slots=True)
class PictureColumns:
    """Names of the columns that a page draws.

    Attributes:
        images: Encoded images, and arrays of pixels.
        masks: Images and arrays with one class per pixel.
        boxes: Arrays of boxes.

    Example:
        >>> from concurrent_loader.preview.picture_columns import PictureColumns
        >>> from concurrent_loader.storage import Schema
        >>> PictureColumns.of(Schema.parse({"image": "jpeg", "mask": "png", "boxes": "float32[...]"}))
        PictureColumns(images=('image',), masks=('mask',), boxes=('boxes',))
    """

    images: tuple[str, ...]
    masks: tuple[str, ...]
    boxes: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema) -> PictureColumns:
        """Finds the columns of a schema."""
        boxes = tuple(each.name for each in schema if guess_content(each.name) == "boxes" and _is_array(each))
        masks = tuple(each.name for each in schema if guess_content(each.name) == "mask" and _is_drawn(each))
        images = tuple(each.name for each in schema if each.name not in boxes + masks and _is_drawn(each))
        return cls(images, masks, boxes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all these columns."""
        return self.images + self.masks + self.boxes


def as_pixels(value: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Returns an array as pixels, (H, W) or (H, W, 3); None if it does not look like an image.

    Accepts uint8 and bool arrays of the shapes (H, W), (H, W, 1 or 3) and (1 or 3, H, W), and integer masks (H, W).
    """
    if value.ndim == 3 and value.shape[0] in (1, 3) and value.shape[2] not in (1, 3):
        value = np.moveaxis(value, 0, 2)
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)
    return value if is_image and min(value.shape[:2]) >= _MIN_SIDE and value.dtype.kind in "buif" else None


def as_boxes(value: Any, box_format: str, width: int, height: int) -> npt.NDArray[np.float64]:
    """Returns boxes as (n, 4) float64: x, y, width and height in pixels, at most 200 boxes.

    Args:
        value: Array (4,) or (n, 4). Other arrays have no boxes. Coordinates up to 1 are shares of the image.
        box_format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``.
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Example:
        >>> from concurrent_loader.preview.picture_columns import as_boxes
        >>> as_boxes(np.array([10, 10, 30, 20]), "xyxy", 100, 100).tolist()
        [[10.0, 10.0, 20.0, 10.0]]
    """
    given = np.asarray(value)
    if given.dtype.kind not in "uif" or given.ndim not in (1, 2) or given.shape[-1] != 4:
        return np.empty((0, 4))
    boxes: npt.NDArray[np.float64] = given.reshape(-1, 4)[:_MAX_BOXES].astype(np.float64)
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    if boxes.size and np.abs(boxes).max() <= 1 and boxes.any():
        boxes *= (width, height, width, height)
    if box_format == "xyxy":
        boxes[:, 2:] -= boxes[:, :2]
    elif box_format == "cxcywh":
        boxes[:, :2] -= boxes[:, 2:] / 2
    return boxes


def guess_box_format(values: list[Any]) -> str:
    """Returns ``"xyxy"`` if the second corner of every box lies right of and below the first, otherwise ``"xywh"``."""
    for value in values:
        boxes = np.asarray(value)
        if boxes.dtype.kind in "uif" and boxes.ndim in (1, 2) and boxes.shape[-1] == 4:
            boxes = boxes.reshape(-1, 4)
            if (boxes[:, 2:] < boxes[:, :2]).any():
                return "xywh"
    return "xyxy"


def _is_array(column: Column) -> bool:
    return column.dtype is not None and column.shape != () and column.dtype.kind in "uif"


def _is_drawn(column: Column) -> bool:
    if column.base_type in COLUMN_FORMATS:
        return True
    if column.dtype is None or column.dtype.kind not in "bui" or column.shape == ():
        return False
    if column.shape is None:
        return column.dtype == np.uint8  # pixels of any size
    return as_pixels(np.empty(column.shape, column.dtype)) is not None
