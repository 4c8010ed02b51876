from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.errors import DecodeError
from concurrent_loader.preview.thumbnail import Thumbnail, image_thumbnail, mask_thumbnail
from concurrent_loader.storage import Column


def pixels_of(thumbnail: Thumbnail) -> np.ndarray:
    data = base64.b64decode(thumbnail.data_url.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)))


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def test_an_image_is_small_and_knows_its_size() -> None:
    thumbnail = image_thumbnail(Column("x", "png"), png(np.full((100, 1000, 3), 200, np.uint8)))
    assert (thumbnail.width, thumbnail.height) == (1000, 100)
    assert pixels_of(thumbnail).shape == (26, 256, 3)
    assert abs(int(pixels_of(thumbnail).mean()) - 200) < 3


@pytest.mark.parametrize("shape", [(20, 30), (3, 20, 30), (20, 30, 3)])
def test_an_array_is_an_image(shape: tuple[int, ...]) -> None:
    thumbnail = image_thumbnail(Column("x", "uint8[...]"), np.full(shape, 90, np.uint8))
    assert (thumbnail.width, thumbnail.height) == (30, 20)


def test_numbers_of_more_bits_are_stretched() -> None:
    values = np.linspace(0, 60000, 400).reshape(20, 20).astype(np.uint16)
    shown = pixels_of(image_thumbnail(Column("x", "uint16[20,20]"), values))
    assert shown.min() < 10
    assert shown.max() > 245


@pytest.mark.parametrize("is_encoded", [True, False])
def test_a_mask_keeps_its_classes(is_encoded: bool) -> None:
    mask = np.zeros((600, 600), np.uint8)
    mask[:300], mask[300:, :200] = 1, 255
    column, value = (Column("m", "png"), png(mask)) if is_encoded else (Column("m", "uint8[600,600]"), mask)
    shown = pixels_of(mask_thumbnail(column, value))
    assert shown.shape == (256, 256, 4)
    assert len(np.unique(shown.reshape(-1, 4), axis=0)) == 3  # nothing between two classes
    assert shown[-1, -1, 3] == 0
    assert shown[0, 0, 3] == 255


def test_what_is_damaged_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        image_thumbnail(Column("x", "jpeg"), b"\xff\xd8\xff\xe0")
    with pytest.raises(DecodeError, match="not an image"):
        image_thumbnail(Column("x", "uint8[...]"), np.zeros(5, np.uint8))
