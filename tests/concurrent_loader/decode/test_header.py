"""Image headers, read without a library and without trust."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from concurrent_loader.decode.header import ImageHeader, parse_header
from concurrent_loader.errors import DecodeError


def encoded(mode: str, file_format: str, size: tuple[int, int] = (37, 21), **options: Any) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size).save(target, file_format, **options)
    return target.getvalue()


COLOUR = ((2, 2), (1, 1), (1, 1))
PROGRESSIVE = ImageHeader("jpeg", 37, 21, 3, sof=0xC2, sampling=COLOUR, several_scans=True)


def turned(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded("RGB", "JPEG"), ImageHeader("jpeg", 37, 21, 3, sof=0xC0, sampling=COLOUR)),
        (encoded("L", "JPEG"), ImageHeader("jpeg", 37, 21, 1, sof=0xC0, sampling=((1, 1),))),
        (encoded("CMYK", "JPEG"), ImageHeader("jpeg", 37, 21, 4, sof=0xC0, sampling=((1, 1),) * 4, transform=0)),
        (encoded("RGB", "JPEG", progressive=True), PROGRESSIVE),
        (encoded("RGB", "JPEG", comment=b"x" * 60_000), ImageHeader("jpeg", 37, 21, 3, sof=0xC0, sampling=COLOUR)),
        (encoded("RGB", "PNG"), ImageHeader("png", 37, 21, 3)),
        (encoded("LA", "PNG"), ImageHeader("png", 37, 21, 2)),
        (encoded("RGBA", "PNG"), ImageHeader("png", 37, 21, 4)),
        (encoded("P", "PNG"), ImageHeader("png", 37, 21, 1, bits=1, palette=True)),
        (encoded("I;16", "PNG"), ImageHeader("png", 37, 21, 1, bits=16)),
        (encoded("1", "PNG"), ImageHeader("png", 37, 21, 1, bits=1)),
        (encoded("RGB", "WEBP"), ImageHeader("webp", 37, 21, 3)),
        (encoded("RGB", "WEBP", lossless=True), ImageHeader("webp", 37, 21, 3)),
        (encoded("RGBA", "WEBP", lossless=True, exact=True), ImageHeader("webp", 37, 21, 4)),
        (encoded("RGB", "WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"), ImageHeader("webp", 37, 21, 3, exif=True)),
        (encoded("RGB", "JPEG", subsampling=0), ImageHeader("jpeg", 37, 21, 3, sof=0xC0, sampling=((1, 1),) * 3)),
        (
            encoded("RGB", "JPEG", keep_rgb=True),
            ImageHeader("jpeg", 37, 21, 3, sof=0xC0, sampling=((1, 1),) * 3, transform=0),
        ),
        (encoded("RGB", "AVIF"), ImageHeader("avif", 37, 21, 3, coded_pixels=37 * 21)),
        (encoded("RGBA", "AVIF"), ImageHeader("avif", 37, 21, 4, coded_pixels=37 * 21)),
        (encoded("L", "AVIF"), ImageHeader("avif", 37, 21, 1, coded_pixels=37 * 21)),
        *(
            (
                encoded("RGB", "AVIF", exif=turned(number)),
                ImageHeader("avif", 37, 21, 3, orientation=number, coded_pixels=37 * 21),
            )
            for number in range(1, 9)
        ),
        (encoded("L", "GIF"), ImageHeader("gif", 37, 21, 1, palette=True, coded_pixels=37 * 21)),
        (encoded("L", "GIF", transparency=0), ImageHeader("gif", 37, 21, 4, palette=True, coded_pixels=37 * 21)),
    ],
)
def test_headers(data: bytes, expected: ImageHeader) -> None:
    assert parse_header(data) == expected
    assert parse_header(memoryview(bytearray(data))) == expected
    assert expected.num_pixels == 37 * 21


def test_what_an_accelerator_asks() -> None:
    assert parse_header(encoded("RGB", "JPEG")).baseline
    assert not parse_header(encoded("RGB", "JPEG", progressive=True)).baseline
    assert not parse_header(encoded("RGB", "PNG")).baseline
    assert not ImageHeader("jpeg", 8, 8, 3, bits=12, sof=0xC0).baseline
    assert parse_header(encoded("RGB", "JPEG", exif=turned(6))).upright == (37, 21)


def test_animated_webp() -> None:
    target = io.BytesIO()
    frames = [Image.fromarray(np.full((8, 8, 3), level, np.uint8)) for level in (0, 255)]
    frames[0].save(target, "WEBP", save_all=True, append_images=frames[1:])
    assert parse_header(target.getvalue()).animated


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    # 100 KB of scans without a coefficient take any decoder of 16 million pixels 10 s.
    data = encoded("L", "JPEG", progressive=True)
    first, last = data.index(b"\xff\xda"), data.rindex(b"\xff\xda")
    scan, num_others = data[last:-2], data[first:last].count(b"\xff\xda")
    most = 500 - num_others
    assert parse_header(data[:last] + scan * most).num_channels == 1
    for kind in (bytes, bytearray, memoryview):
        with pytest.raises(DecodeError, match="too many scans"):
            parse_header(kind(data[:last] + scan * (most + 1)))


def test_jpeg_fill_bytes_and_lone_markers_are_skipped() -> None:
    data = encoded("RGB", "JPEG")
    assert parse_header(data[:2] + b"\xff\xff\xff\x01\xff\xff\xd0" + data[2:]) == parse_header(data)


WHOLE = {"jpeg": encoded("RGB", "JPEG"), "png": encoded("RGB", "PNG"), "webp": encoded("RGB", "WEBP")}


@pytest.mark.parametrize("name", WHOLE)
def test_every_cut_is_an_error_or_the_header(name: str) -> None:
    data = WHOLE[name]
    whole, cut_early = parse_header(data), 0
    for end in range(len(data)):
        try:
            assert parse_header(data[:end]) == whole
        except DecodeError:
            cut_early += 1
            assert end < 700
    assert cut_early > 25


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8X"]))
def test_any_bytes_give_a_header_or_a_decode_error(data: bytes, start: bytes) -> None:
    try:
        header = parse_header(start + data)
    except DecodeError:
        return
    assert header.width > 0
    assert header.height > 0


def jpeg_frame(width: int, height: int) -> bytes:
    frame = struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8\xff\xc0" + frame + b"\xff\xda\0\x0c\3" + bytes(9)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (jpeg_frame(0, 10), "no pixels"),
        (jpeg_frame(10, 0), "no pixels"),
        (b"\xff\xd8\xff\xda\0\x0c", "no frame header"),
        (b"\xff\xd8\xff\xe0\0\x01" + bytes(100), "invalid length"),
        (b"\xff\xd8\xff\xe0\0\x02" * 2, "marker is missing|no frame header"),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 5000 + jpeg_frame(1, 1)[2:], "too many segments"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x0dIDAT" + bytes(20), "header chunk"),
        (b"RIFF\0\0\0\0WEBPJUNK" + bytes(20), "unknown chunk"),
        (b"BM" + bytes(20), "format of the image is unknown"),
        (b"", "format of the image is unknown"),
    ],
)
def test_senseless_headers(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        parse_header(data)


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_the_upright_size_is_that_of_the_turned_picture(file_format: str, number: int) -> None:
    """Boxes and keypoints are in pixels of the upright image."""
    header = parse_header(encoded("RGB", file_format, exif=turned(number)))
    assert (header.orientation, header.upright) == (number, (37, 21) if number >= 5 else (21, 37))
    assert parse_header(encoded("RGB", file_format, exif=turned(number))[:-1]).width == 37


def test_exif_without_an_end_is_no_orientation() -> None:
    data = bytearray(encoded("RGB", "PNG", exif=turned(6)))
    place = data.index(b"eXIf")
    data[place - 4 : place] = b"\xff\xff\xff\xff"  # the length of the chunk
    assert parse_header(data).orientation == 6
    data[place : place + 4] = b"eXIg"
    assert parse_header(data).orientation == 1
