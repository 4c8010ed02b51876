from __future__ import annotations

import numpy as np
import pytest

from concurrent_loader.preview.picture_columns import PictureColumns, as_boxes, as_pixels, guess_box_format
from concurrent_loader.storage import Schema


def test_columns_by_type_and_name() -> None:
    schema = Schema.parse(
        {
            "photo": "image/lossless", "digits": "uint8[28,28]", "seg_map": "png", "bbox": "float32[4]",
            "gt_boxes": "int32[...]", "tokens": "int32[...]", "features": "float32[512]", "raw": "uint8[...]",
            "semantic_mask": "uint8[64,64]", "box": "str",
        }
    )  # fmt: skip
    assert PictureColumns.of(schema) == PictureColumns(
        images=("photo", "digits", "raw"), masks=("seg_map", "semantic_mask"), boxes=("bbox", "gt_boxes")
    )


@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        ((28, 28), (28, 28)), ((28, 30, 1), (28, 30)), ((1, 28, 30), (28, 30)), ((3, 32, 40), (32, 40, 3)),
        ((32, 40, 3), (32, 40, 3)), ((4, 4), None), ((100,), None), ((2, 32, 32), None), ((3, 32, 32, 3), None),
    ],
)  # fmt: skip
def test_shapes_of_pixels(shape: tuple[int, ...], pixels: tuple[int, ...] | None) -> None:
    found = as_pixels(np.zeros(shape, np.uint8))
    assert (None if found is None else found.shape) == pixels


@pytest.mark.parametrize(
    ("box_format", "value"),
    [
        ("xyxy", [10, 20, 30, 60]),
        ("xywh", [10, 20, 20, 40]),
        ("cxcywh", [20, 40, 20, 40]),
        ("xyxy", [0.1, 0.1, 0.3, 0.3]),
    ],
)
def test_formats_of_boxes(box_format: str, value: list[float]) -> None:
    assert as_boxes(np.array(value), box_format, 100, 200) == pytest.approx(np.array([[10, 20, 20, 40]]))


def test_what_is_no_box_is_not_drawn() -> None:
    for value in (np.zeros((0, 4)), np.zeros(3), np.zeros((2, 2, 4)), np.array(["a"] * 4), np.array([np.nan] * 4)):
        assert as_boxes(value, "xyxy", 10, 10).shape == (0, 4)
    assert len(as_boxes(np.ones((1000, 4)) * 5, "xyxy", 10, 10)) == 200


def test_the_format_of_boxes_is_guessed() -> None:
    assert guess_box_format([np.array([[10, 10, 20, 20]]), np.zeros((0, 4))]) == "xyxy"
    assert guess_box_format([np.array([[10, 10, 20, 20], [50, 50, 10, 10]])]) == "xywh"
