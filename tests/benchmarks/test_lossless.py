"""The benchmark of lossless pictures, with two of them."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.l3_scheme import decode_l3, encode_l3
from benchmarks.lossless import main
from benchmarks.lossless_gpu import GPU_KEYS


def test_it_measures_every_codec_on_every_set(tmp_path):
    file = tmp_path / "lossless.json"
    assert main(["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    measured = [row for row in figures["rows"] if not row.get("missing")]
    codecs = {row["codec"] for row in measured}
    assert {row["set"] for row in measured} == {"photographs", "mosaics"}
    assert {"PNG level 6, Pillow", "PNG, torchvision", "ours", "ours, pack", "ours, numpy", "zstd raw"} <= codecs
    assert len(measured) == 2 * len(codecs)
    assert all(row["decode_mpix_s"] > 0 for row in measured)
    assert figures["size_vs_png"] < figures["size_pack_vs_png"] < 1
    assert min(figures[name] for name in ("decode_vs_png", "decode_pack_vs_png", "encode_mpix_s")) > 0
    assert 0 < figures["crop_vs_full"] < 1
    assert set(GPU_KEYS) <= set(figures)


def test_l3s_scheme_keeps_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 37, 50)).astype(np.uint8)
    pixels[1] = 7
    assert np.array_equal(decode_l3(encode_l3(pixels)), pixels)
