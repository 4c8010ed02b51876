"""Sizes and frames of GIFs. Files are assembled here, block by block."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.decode.header import ImageHeader, parse_header
from concurrent_loader.decode.registry import make_decoder
from concurrent_loader.errors import DecodeError


def encoded(mode: str, kind: str, size: tuple[int, int] = (37, 21), **options) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size).save(target, kind, **options)
    return target.getvalue()


def gif(screen: tuple[int, int], *frames: tuple[int, int, int, int], palette: bool = True) -> bytes:
    data = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80 if palette else 0, 0, 0) + (bytes(6) if palette else b"")
    for left, top, width, height in frames:
        data += b"\x21\xfe\x03abc\0" + b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0x81) + bytes(12)
        data += b"\2\2\x44\1\0"
    return data + b";"


def test_frames_of_gifs() -> None:
    assert parse_header(gif((9, 7), (0, 0, 9, 7))) == ImageHeader("gif", 9, 7, 1, palette=True, coded_pixels=63)
    part = parse_header(gif((9, 7), (2, 3, 7, 4), palette=False))
    assert part == ImageHeader("gif", 9, 7, 1, palette=True, coded_pixels=28)
    assert parse_header(gif((9, 7), (0, 0, 9, 7), (0, 0, 9, 7))).animated
    assert not parse_header(gif((9, 7), (0, 0, 9, 7))[:-1] + b"rubbish").animated


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gif((9, 7), (0, 0, 10, 7)), "within its screen"),
        (gif((9, 7), (0, 1, 9, 7)), "within its screen"),
        (gif((9, 7), (0, 0, 0, 7)), "within its screen"),
        (gif((0, 0), (0, 0, 5, 5)), "within its screen"),
        (gif((9, 7)), "no frame"),
        (gif((9, 7))[:-1] + b"x", "no frame"),
        (b"GIF89a\1\0", "ends within"),
        (gif((9, 7))[:-1] + b"\x21\xfe\0" * 5000, "too many blocks"),
    ],
)
def test_senseless_gifs(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        parse_header(data)


def test_a_gif_without_end_of_blocks_is_scanned_once() -> None:
    data = gif((9, 7), (0, 0, 9, 7))[:-2] + (b"\xff" + bytes(255)) * 4000
    assert not parse_header(data).animated


def test_sizes_are_capped() -> None:
    data = gif((60_000, 60_000), (0, 0, 4, 4))
    with pytest.raises(DecodeError, match="too large"):
        make_decoder("rgb", "gif")(data)
    pixels = np.asarray(make_decoder("rgb", "image")(encoded("L", "GIF")))
    assert pixels.shape == (3, 21, 37)
