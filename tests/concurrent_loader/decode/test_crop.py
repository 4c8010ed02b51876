"""Crops at their final size: the native module against the libraries, and against bytes that are not what they seem."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import interpolate

from concurrent_loader.decode import make_decoder
from concurrent_loader.decode.crop import Box, has_native_crop, make_crop_decoder
from concurrent_loader.decode.header import parse_header
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError

NATIVE = [True, False] if has_native_crop() else [False]
WHOLE = 10**9


def a_photo(height: int, width: int, *, seed: int = 0, noise: float = 4.0) -> Image.Image:
    """Soft shapes, some noise."""
    dice = np.random.default_rng(seed)
    coarse = torch.from_numpy(dice.uniform(0, 255, (1, 3, 5, 6)))
    soft = interpolate(coarse, size=(height, width), mode="bicubic")[0].permute(1, 2, 0).numpy()
    pixels = soft + dice.normal(0, noise, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def reference(picture: torch.Tensor, box: Box, size: tuple[int, int]) -> np.ndarray:
    part = picture[:, box.top : box.top + box.height, box.left : box.left + box.width]
    resized = interpolate(part.unsqueeze(0), size=size, mode="bilinear", antialias=True)[0]
    return (resized.flip(2) if box.flip else resized).numpy().astype(float)


def crop(
    data: bytes, box: Box, size: tuple[int, int] = (32, 32), *, column_type: str = "jpeg", **options
) -> np.ndarray:
    out = np.zeros((3, *size), np.uint8)
    assert make_crop_decoder(column_type, **options)(data, lambda height, width: box, out) == box
    return out


def boxes(height: int, width: int):
    def of(corners):
        (top, bottom), (left, right), flip = corners
        return Box(top, left, bottom - top, right - left, flip)

    def span(length):
        return (
            st.tuples(st.integers(0, length - 1), st.integers(1, length)).map(sorted).filter(lambda ab: ab[0] < ab[1])
        )

    return st.tuples(span(height), span(width), st.booleans()).map(of)


@pytest.mark.parametrize("native", NATIVE)
@settings(derandomize=True)
@given(data=st.data())
def test_it_is_the_crop_of_the_whole_picture(native, data):
    height, width = data.draw(st.integers(24, 150)), data.draw(st.integers(24, 150))
    image = a_photo(height, width, seed=data.draw(st.integers(0, 99)))
    options = {"quality": data.draw(st.integers(60, 95)), "subsampling": data.draw(st.integers(0, 2))}
    if data.draw(st.booleans()):
        options["progressive"] = True
    if data.draw(st.booleans()):
        image = image.convert("L")
        del options["subsampling"]
    jpeg = encoded(image, **options)
    box = data.draw(boxes(height, width))
    size = data.draw(st.tuples(st.integers(8, 64), st.integers(8, 64)))
    got = crop(jpeg, box, size, native=native).astype(float)
    wanted = reference(make_decoder("rgb", "jpeg")(jpeg), box, size)
    # At the crop's border chroma is interpolated from other neighbours, and halved sizes come from the DCT.
    assert np.abs(got - wanted).mean() < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("shape", [(375, 500), (1500, 2000)])
def test_nobody_sees_a_difference(native, shape):
    jpeg = encoded(a_photo(*shape, noise=8), quality=92)
    picture = make_decoder("rgb", "jpeg")(jpeg)
    for box in (Box(0, 0, *shape), Box(17, 33, 250, 301, flip=True), Box(101, 55, 60, 71)):
        got = crop(jpeg, box, (224, 224), native=native).astype(float)
        assert np.abs(got - reference(picture, box, (224, 224))).mean() < 1.0


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(native, orientation, flip):
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg = encoded(a_photo(60, 90), quality=95, subsampling=0, exif=exif)
    picture = make_decoder("rgb", "jpeg")(jpeg)
    assert parse_header(jpeg).upright == tuple(picture.shape[1:])
    box = Box(5, 8, 41, 29, flip)
    got = crop(jpeg, box, (16, 24), native=native).astype(float)
    assert np.abs(got - reference(picture, box, (16, 24))).mean() < 1.5


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("mode", ["CMYK", "RGB", "L"])
def test_every_kind_of_jpeg_becomes_rgb(native, mode):
    jpeg = encoded(a_photo(40, 40).convert(mode), quality=95)
    got = crop(jpeg, Box(0, 0, 40, 40), (20, 20), native=native).astype(float)
    wanted = reference(make_decoder("rgb", "jpeg")(jpeg), Box(0, 0, 40, 40), (20, 20))
    assert np.abs(got - wanted).mean() < 1.5


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_formats_take_the_library(kind):
    data = encoded(a_photo(50, 70), kind)
    box = Box(3, 4, 30, 50, flip=True)
    got = crop(data, box, (20, 25), column_type="image").astype(float)
    assert np.abs(got - reference(make_decoder("rgb", "image")(data), box, (20, 25))).max() <= 1


@pytest.mark.parametrize("native", NATIVE)
def test_what_ends_too_early_is_damaged(native):
    jpeg = encoded(a_photo(64, 64, noise=20), quality=90)
    for length in (*range(0, 700, 7), len(jpeg) // 2, len(jpeg) - 20):
        with pytest.raises(DecodeError):
            crop(jpeg[:length], Box(0, 0, 64, 64), native=native)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(("size", "turned"), [((64, 64), False), ((64, 16), False), ((8, 64), True)])
def test_even_a_long_strip_is_averaged(native, size, turned):
    # 300 pixels to one and more: a weight is less than 1/256, and a few bright ones are easily lost, or multiplied.
    dice = np.random.default_rng(0)
    bright = (dice.uniform(size=20_000) < 0.03).astype(np.uint8) * 255
    strip = np.broadcast_to(bright[:, None] if turned else bright, (20_000, 64) if turned else (64, 20_000))
    data = encoded(Image.fromarray(np.ascontiguousarray(strip)), quality=97)
    box = Box(0, 0, *strip.shape)
    wanted = reference(make_decoder("rgb", "jpeg")(data), box, size)
    assert np.abs(crop(data, box, size, native=native) - wanted).max() <= 3


@pytest.mark.parametrize("native", NATIVE)
def test_too_many_pixels_are_refused_before_they_exist(native):
    jpeg = encoded(a_photo(64, 64))
    with pytest.raises(DecodeError, match="too large"):
        crop(jpeg, Box(0, 0, 64, 64), native=native, max_pixels=64 * 64 - 1)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("box", [Box(0, 0, 65, 64), Box(-1, 0, 5, 5), Box(0, 60, 4, 5), Box(0, 0, 0, 4)])
def test_a_box_outside_is_an_error(native, box):
    with pytest.raises(DecodeError, match="within the image"):
        crop(encoded(a_photo(64, 64)), box, native=native)


def test_impossible_arguments():
    with pytest.raises(ConfigurationError, match="image columns"):
        make_crop_decoder("int64")
    if not has_native_crop():
        with pytest.raises(ConfigurationError, match="not built"):
            make_crop_decoder("jpeg", native=True)


if has_native_crop():
    from concurrent_loader.decode import _jpeg_crop

    def raw(jpeg: bytes, box=None, size=(24, 24), *, orientation=1, flip=False, fast_scale=True) -> np.ndarray:
        out = np.zeros((3, *size), np.uint8)
        if box is None:
            header = parse_header(jpeg)
            box = (0, 0, header.height, header.width)
        _jpeg_crop.crop(jpeg, out, box, orientation, flip, WHOLE, fast_scale)
        return out

    @settings(settings.get_profile("thorough"), derandomize=True)
    @given(data=st.data())
    def test_whatever_the_bytes_are_it_is_a_picture_or_an_error(data):
        options = {"restart_marker_blocks": 3} if data.draw(st.booleans()) else {}
        jpeg = bytearray(
            encoded(a_photo(48, 40, noise=30), quality=data.draw(st.sampled_from([30, 90, 100])), **options)
        )
        for _ in range(data.draw(st.integers(1, 6))):
            jpeg[data.draw(st.integers(2, len(jpeg) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            jpeg = jpeg[: data.draw(st.integers(2, len(jpeg)))]
        try:
            raw(bytes(jpeg), (0, 0, 48, 40))
        except (ValueError, _jpeg_crop.Unsupported):
            event("an error")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"orientation": 0}, "orientation"),
            ({"orientation": 9}, "orientation"),
            ({"box": (0, 0, 0, 5)}, "invalid box"),
            ({"box": (float("nan"), 0, 5, 5)}, "invalid box"),
            ({"box": (0, 0, 1e9, 5)}, "invalid box"),
            ({"box": (0, 0, 41, 5)}, "within the image"),
            ({"size": (0, 4)}, r"\(3, H, W\)"),
        ],
    )
    def test_impossible_arguments_of_the_module(arguments, message):
        with pytest.raises(ValueError, match=message):
            raw(encoded(a_photo(40, 40)), **arguments)

    @pytest.mark.parametrize(
        "out", [np.zeros((4, 4, 4), np.uint8), np.zeros((3, 4, 4), np.int16), np.zeros(48, np.uint8)]
    )
    def test_other_memory_is_refused(out):
        with pytest.raises(ValueError, match="bytes"):
            _jpeg_crop.crop(encoded(a_photo(40, 40)), out, (0, 0, 9, 9), 1, False, WHOLE, True)

    def test_memory_that_is_not_ours_to_write_is_refused():
        out = np.zeros((3, 4, 8), np.uint8)
        with pytest.raises((BufferError, ValueError)):
            _jpeg_crop.crop(encoded(a_photo(40, 40)), out[:, :, ::2], (0, 0, 9, 9), 1, False, WHOLE, True)
        out.flags.writeable = False
        with pytest.raises((BufferError, ValueError)):
            _jpeg_crop.crop(encoded(a_photo(40, 40)), out, (0, 0, 9, 9), 1, False, WHOLE, True)

    def test_a_file_with_scans_without_end_is_refused():
        jpeg = encoded(a_photo(64, 64), progressive=True)
        start = jpeg.index(b"\xff\xda")
        length = int.from_bytes(jpeg[start + 2 : start + 4], "big")
        empty = jpeg[start : start + 2 + length]
        with pytest.raises(ValueError, match=r"scans|early|EOF|end"):
            raw(jpeg[:start] + empty * 5000 + jpeg[start:], (0, 0, 64, 64))
