"""The benchmark of lossless images, with two of them."""

from __future__ import annotations

import numpy as np

from benchmarks.l3_scheme import decode_l3, encode_l3


def test_l3s_scheme_keeps_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 37, 50)).astype(np.uint8)
    pixels[1] = 7
    assert np.array_equal(decode_l3(encode_l3(pixels)), pixels)
