from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from concurrent_loader.augment import CenterCrop, CroppingDecoder, RandomResizedCrop, uniforms
from concurrent_loader.decode import Box, make_decoder
from concurrent_loader.device import DeferredDecoder, StagedImage
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage import lossless

CROP = RandomResizedCrop(16)


def prepare(
    how: str | RandomResizedCrop | CenterCrop, encoded: Sequence[bytes], codecs: Sequence[str] = ("nvjpeg",)
) -> list[StagedImage]:
    decoder = DeferredDecoder("image", how, "image", seed=3, codecs=codecs)
    samples = np.arange(100, 100 + len(encoded))
    prepared = decoder.decoders(2, samples, ["shard"] * len(encoded))
    return [each(data) for each, data in zip(prepared, encoded, strict=True)]


def test_what_the_device_takes_stays_as_it_is(encode: Callable[..., bytes]) -> None:
    data = encode(size=(40, 30))
    (image,) = prepare("rgb", [data])
    assert image == StagedImage(100, "shard", 30, 40, codec="nvjpeg", data=data)


def test_the_upright_size_counts(encode: Callable[..., bytes]) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    (image,) = prepare("rgb", [encode(size=(40, 30), exif=exif)])
    assert (image.height, image.width, image.orientation) == (40, 30, 6)


@pytest.mark.parametrize("how", [CROP, CenterCrop(16)])
def test_crops_are_those_of_the_cpu(encode: Callable[..., bytes], how: RandomResizedCrop | CenterCrop) -> None:
    encoded = [encode(number, progressive=number % 2 == 1) for number in range(6)]
    images = prepare(how, encoded)
    decoders = CroppingDecoder(how, "image", seed=3).decoders(2, np.arange(100, 106))
    for number, (image, decode) in enumerate(zip(images, decoders, strict=True)):
        assert image.box is not None
        if number % 2:  # decoded here, at its final size
            assert image.pixels is not None
            assert torch.equal(image.pixels, decode(encoded[number]))
            assert (image.box.height, image.box.width, image.box.flip) == (16, 16, False)
        else:
            assert image.pixels is None
            assert image.codec == "nvjpeg"


@pytest.mark.parametrize("how", ["rgb", CROP, CenterCrop(16)])
def test_lossless_pictures_are_prepared(how: str | RandomResizedCrop | CenterCrop) -> None:
    pixels = np.random.default_rng(0).normal(100, 3, (3, 150, 1200)).astype(np.uint8)
    data = lossless.encode(pixels)
    (image,) = prepare(how, [data], codecs=("nvjpeg", "lossless"))
    assert (image.codec, image.pixels) == ("lossless", None)
    assert image.plan is not None
    assert image.plan.shape == (3, image.height, image.width)
    if isinstance(how, str):
        assert (image.box, image.height, image.width) == (None, 150, 1200)
        return
    # Exactly the box that the CPU draws is decoded, and all of that is shown.
    row = uniforms(3, 2, np.array([100]), how.num_draws)[0].tolist() if how.num_draws else ()
    box = how.box(150, 1200, tuple(row))
    assert image.box == Box(0, 0, box.height, box.width, box.flip)
    column = DeferredDecoder("image", how, "image", seed=3, codecs=()).column([image])
    place = image.plan.located(image.box)
    found = lossless.decode(column.encoded(image).data, box=(place.top, place.left, place.height, place.width))
    assert np.array_equal(found, pixels[:, box.top : box.top + box.height, box.left : box.left + box.width])


def test_without_a_codec_everything_is_decoded_here(encode: Callable[..., bytes]) -> None:
    encoded = [encode(), encode(kind="PNG")]
    for image, data in zip(prepare("gray", encoded, codecs=()), encoded, strict=True):
        assert image.pixels is not None
        assert torch.equal(image.pixels, make_decoder("gray", "image")(data))
        assert not image.codec


def test_broken_headers_are_errors_here(encode: Callable[..., bytes]) -> None:
    with pytest.raises(DecodeError):
        prepare("rgb", [encode()[:10]])
    with pytest.raises(DecodeError):
        prepare("rgb", [encode(kind="PNG")[:100]])
