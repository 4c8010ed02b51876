from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from concurrent_loader.augment import CenterCrop, CroppingDecoder, RandomResizedCrop, uniforms
from concurrent_loader.decode import Box, make_decoder
from concurrent_loader.device import DeferredDecoder, StagedPicture
from concurrent_loader.errors import DecodeError
from storage import lossless

CROP = RandomResizedCrop(16)


def prepare(
    how: str | RandomResizedCrop | CenterCrop, encoded: Sequence[bytes], codecs: Sequence[str] = ("nvjpeg",)
) -> list[StagedPicture]:
    decoder = DeferredDecoder("image", how, "image", seed=3, codecs=codecs)
    samples = np.arange(100, 100 + len(encoded))
    prepared = decoder.decoders(2, samples, ["shard"] * len(encoded))
    return [each(data) for each, data in zip(prepared, encoded, strict=True)]


def test_what_the_device_takes_stays_as_it_is(encode: Callable[..., bytes]) -> None:
    data = encode(size=(40, 30))
    (picture,) = prepare("rgb", [data])
    assert picture == StagedPicture(100, "shard", 30, 40, codec="nvjpeg", data=data)


def test_the_upright_size_counts(encode: Callable[..., bytes]) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    (picture,) = prepare("rgb", [encode(size=(40, 30), exif=exif)])
    assert (picture.height, picture.width, picture.orientation) == (40, 30, 6)


@pytest.mark.parametrize("how", [CROP, CenterCrop(16)])
def test_crops_are_those_of_the_cpu(encode: Callable[..., bytes], how: RandomResizedCrop | CenterCrop) -> None:
    encoded = [encode(number, progressive=number % 2 == 1) for number in range(6)]
    pictures = prepare(how, encoded)
    decoders = CroppingDecoder(how, "image", seed=3).decoders(2, np.arange(100, 106))
    for number, (picture, decode) in enumerate(zip(pictures, decoders, strict=True)):
        assert picture.box is not None
        if number % 2:  # decoded here, at its final size
            assert picture.picture is not None
            assert torch.equal(picture.picture, decode(encoded[number]))
            assert (picture.box.height, picture.box.width, picture.box.flip) == (16, 16, False)
        else:
            assert picture.picture is None
            assert picture.codec == "nvjpeg"


@pytest.mark.parametrize("how", ["rgb", CROP, CenterCrop(16)])
def test_lossless_pictures_are_prepared(how: str | RandomResizedCrop | CenterCrop) -> None:
    pixels = np.random.default_rng(0).normal(100, 3, (3, 150, 1200)).astype(np.uint8)
    data = lossless.encode(pixels)
    (picture,) = prepare(how, [data], codecs=("nvjpeg", "lossless"))
    assert (picture.codec, picture.picture) == ("lossless", None)
    assert picture.plan is not None
    assert picture.plan.shape == (3, picture.height, picture.width)
    if isinstance(how, str):
        assert (picture.box, picture.height, picture.width) == (None, 150, 1200)
        return
    # Exactly the box that the CPU draws is decoded, and all of that is shown.
    row = uniforms(3, 2, np.array([100]), how.num_draws)[0].tolist() if how.num_draws else ()
    box = how.box(150, 1200, tuple(row))
    assert picture.box == Box(0, 0, box.height, box.width, box.flip)
    column = DeferredDecoder("image", how, "image", seed=3, codecs=()).column([picture])
    place = picture.plan.located(picture.box)
    found = lossless.decode(column.encoded(picture).data, box=(place.top, place.left, place.height, place.width))
    assert np.array_equal(found, pixels[:, box.top : box.top + box.height, box.left : box.left + box.width])


def test_without_a_codec_everything_is_decoded_here(encode: Callable[..., bytes]) -> None:
    encoded = [encode(), encode(kind="PNG")]
    for picture, data in zip(prepare("gray", encoded, codecs=()), encoded, strict=True):
        assert picture.picture is not None
        assert torch.equal(picture.picture, make_decoder("gray", "image")(data))
        assert not picture.codec


def test_broken_headers_are_errors_here(encode: Callable[..., bytes]) -> None:
    with pytest.raises(DecodeError):
        prepare("rgb", [encode()[:10]])
    with pytest.raises(DecodeError):
        prepare("rgb", [encode(kind="PNG")[:100]])
