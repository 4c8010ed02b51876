"""The benchmark of lossless images, with two of them."""

from __future__ import annotations

import numpy as np

from benchmarks.l3_scheme import decode_l3, encode_l3
from benchmarks.lossless_gpu import epoch_by_loader
from concurrent_loader.storage.lossless import encode


def test_an_epoch_of_the_loader():
    files = [encode(np.full((3, 70, 80), number, np.uint8)) for number in range(2)]
    assert epoch_by_loader(files, "image/lossless", "cpu")() == 0


def test_l3s_scheme_keeps_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 37, 50)).astype(np.uint8)
    pixels[1] = 7
    assert np.array_equal(decode_l3(encode_l3(pixels)), pixels)
