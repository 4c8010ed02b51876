"""Masks are decoded to the numbers in the file, for every kind of PNG and GIF, and in the lossless format."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.decode.labels import make_label_decoder
from concurrent_loader.errors import DecodeError

LABELS = np.random.default_rng(0).integers(0, 2, (12, 18), np.uint8) * 7
LABELS[3, 4] = 1


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_palette(labels: Any) -> Image.Image:
    image = Image.fromarray(labels).convert("P")
    image.putdata(labels.reshape(-1).tolist())
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
    return image


def test_gray_and_palettes_keep_their_numbers() -> None:
    decode = make_label_decoder("png")
    assert np.array_equal(decode(encoded(Image.fromarray(LABELS))), LABELS)
    assert np.array_equal(decode(encoded(with_palette(LABELS))), LABELS)
    gif = encoded(with_palette(LABELS), "GIF")  # Pillow numbers the colors anew
    assert np.array_equal(make_label_decoder("gif")(gif), np.asarray(Image.open(io.BytesIO(gif))))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_few_bits_keep_their_numbers(bits: int) -> None:
    labels = LABELS % (1 << bits)
    assert np.array_equal(make_label_decoder("png")(encoded(with_palette(labels), bits=bits)), labels)
    if bits == 1:
        assert np.array_equal(make_label_decoder("png")(encoded(Image.fromarray(labels > 0))), labels)


def test_sixteen_bits_become_int32() -> None:
    labels = LABELS.astype(np.uint16) * 1000
    got = make_label_decoder("png")(encoded(Image.fromarray(labels)))
    assert got.dtype == np.int32
    assert np.array_equal(got, labels)


def test_colors_have_a_dimension_of_channels() -> None:
    colors = np.stack([LABELS, LABELS + 1, LABELS + 2], -1)
    assert np.array_equal(make_label_decoder("png")(encoded(Image.fromarray(colors))), colors.transpose(2, 0, 1))


def test_damage_and_large_masks_are_errors() -> None:
    data = encoded(with_palette(LABELS))
    with pytest.raises(DecodeError):
        make_label_decoder("png")(data[: len(data) // 2])
    with pytest.raises(DecodeError):
        make_label_decoder("png", max_pixels=10)(data)
