from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from concurrent_loader.decode import parse_header
from concurrent_loader.device import CODECS, Codec
from concurrent_loader.device.codecs import screen, why_not_nvjpeg
from concurrent_loader.storage import lossless


def why_not(data: bytes, **changes: Any) -> str:
    return why_not_nvjpeg(data, replace(parse_header(data), **changes), "rgb")


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"subsampling": "4:4:4"}),
        ("RGB", {"subsampling": "4:2:2"}),
        ("RGB", {"subsampling": "4:2:0"}),
        ("RGB", {"optimize": True}),
        ("RGB", {"restart_marker_rows": 1}),
        ("L", {}),
    ],
)
def test_ordinary_jpegs_are_for_the_device(encode: Callable[..., bytes], mode: str, options: dict[str, Any]) -> None:
    assert not why_not(encode(mode=mode, **options))


@pytest.mark.parametrize(
    ("mode", "options", "why"),
    [
        ("RGB", {"progressive": True}, "baseline"),
        ("L", {"progressive": True}, "baseline"),
        ("CMYK", {}, "components"),
        ("RGB", {"keep_rgb": True}, "RGB"),
    ],
)
def test_others_are_for_the_cpu(encode: Callable[..., bytes], mode: str, options: dict[str, Any], why: str) -> None:
    assert why in why_not(encode(mode=mode, **options))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sof": 0xC9}, "baseline"),  # arithmetic coding
        ({"sof": 0xC1}, "baseline"),
        ({"bits": 12}, "8 bits"),
        ({"num_channels": 2}, "components"),
        ({"sampling": ((2, 1), (2, 1), (1, 1))}, "subsampling"),
        ({"sampling": ((3, 1), (1, 1), (1, 1))}, "subsampling"),
        ({"transform": 0}, "RGB"),
    ],
)
def test_what_a_header_may_say(encode: Callable[..., bytes], changes: dict[str, Any], why: str) -> None:
    assert why in why_not(encode(), **changes)


def test_a_jpeg_that_breaks_off_is_for_the_cpu(encode: Callable[..., bytes]) -> None:
    data = encode()
    assert why_not(data[:-2]) == "no end marker"
    assert not why_not(data + bytes(100))  # some cameras add something of their own


def test_full_chroma_without_a_word_on_its_colours_is_for_the_cpu(encode: Callable[..., bytes]) -> None:
    data = encode(subsampling="4:4:4")
    bare = data[:2] + data[2 + 2 + int.from_bytes(data[4:6], "big") :]  # without the JFIF segment
    assert "RGB" in why_not(bare)
    assert not why_not(bare, transform=1)


@pytest.mark.parametrize(
    ("channels", "dtype", "codec"), [(3, np.uint8, "lossless"), (4, np.uint8, "lossless"), (1, np.uint16, None)]
)
@pytest.mark.parametrize("mode", ["rgb", "gray", "unchanged"])
def test_lossless_pictures_of_8_bits_are_for_the_device(
    channels: int, dtype: Any, codec: str | None, mode: str
) -> None:
    data = lossless.encode(np.zeros((channels, 70, 70), dtype))
    found = screen(data, parse_header(data), mode, tuple(CODECS.values()))
    assert (None if found is None else found.name) == codec
    assert screen(data, parse_header(data), mode, (CODECS["nvjpeg"],)) is None


def test_a_codec_is_found_by_format(encode: Callable[..., bytes]) -> None:
    everything = Codec("everything", "png", "device", lambda data, header, mode: "" if mode == "rgb" else "gray")
    codecs = (CODECS["nvjpeg"], everything)
    jpeg, png = encode(), encode(kind="PNG")
    assert screen(jpeg, parse_header(jpeg), "rgb", codecs) is CODECS["nvjpeg"]
    assert screen(png, parse_header(png), "rgb", codecs) is everything
    assert screen(png, parse_header(png), "gray", codecs) is None
    assert screen(png, parse_header(png), "rgb", codecs[:1]) is None
    assert screen(jpeg, parse_header(jpeg), "rgb", ()) is None
