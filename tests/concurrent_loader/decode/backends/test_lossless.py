"""Lossless columns in the registry: headers, modes, crops that touch only their tiles, and a loader over a data set."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from concurrent_loader import CenterCrop, ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.decode import Box, make_crop_decoder, make_decoder, parse_header
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.lossless import encode
from concurrent_loader.storage.lossless.layout import parse_groups
from concurrent_loader.storage.lossless.layout import parse_header as parse_lossless_header
from concurrent_loader.storage.shards.writing.writer import ShardWriter

LOSSLESS = "image/lossless"


def picture(channels: int = 3, height: int = 90, width: int = 700, *, seed: int = 0) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    soft = [100 + 60 * np.sin(x / 13 + each + seed) + 40 * np.cos(y / 9 - each) for each in range(channels)]
    noise = np.random.default_rng(seed).normal(0, 2, (channels, height, width))
    return (np.stack(soft) + noise).clip(0, 255).astype(np.uint8)


def test_the_header():
    header = parse_header(encode(picture(4)))
    assert (header.format, header.height, header.width) == ("lossless", 90, 700)
    assert (header.num_channels, header.bits, header.upright) == (4, 8, (90, 700))
    with pytest.raises(DecodeError, match="version"):
        parse_header(encode(picture())[:4] + b"\x02" + bytes(15))
    with pytest.raises(DecodeError, match="ends within"):
        parse_header(encode(picture())[:19])


@pytest.mark.parametrize("column", [LOSSLESS, "bytes"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_modes(channels, column):
    pixels = picture(channels)
    file = encode(pixels)
    as_pillow_has_it = Image.fromarray(pixels[:3].transpose(1, 2, 0) if channels >= 3 else pixels[0])
    for mode, name in (("rgb", "RGB"), ("gray", "L")):
        wanted = np.atleast_3d(np.asarray(as_pillow_has_it.convert(name))).transpose(2, 0, 1)
        found = make_decoder(mode, column)(file)
        assert (found.dtype, found.is_contiguous()) == (torch.uint8, True)
        assert np.array_equal(found.numpy(), wanted)
    assert np.array_equal(make_decoder("unchanged", column)(memoryview(file)).numpy(), pixels)


def test_sixteen_bits():
    deep = (picture(1).astype(np.uint16) * 257) + 5
    file = encode(deep)
    assert np.array_equal(make_decoder("unchanged", LOSSLESS)(file).numpy(), deep)
    for mode, channels in (("gray", 1), ("rgb", 3)):
        found = make_decoder(mode, LOSSLESS)(file)
        assert found.shape == (channels, 90, 700)
        assert torch.equal(found[0], torch.from_numpy(picture(1)[0]))


def test_what_is_refused():
    decode = make_decoder("rgb", LOSSLESS, max_pixels=90 * 700)
    file = encode(picture())
    assert decode(file).shape == (3, 90, 700)
    png = io.BytesIO()
    Image.new("RGB", (3, 3)).save(png, "PNG")
    for bad, words in (
        (png.getvalue(), "does not match its column"),
        (file[:-1], "length"),
        (encode(picture(width=701)), "large"),
    ):
        with pytest.raises(DecodeError, match=words):
            decode(bad)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_crop_is_that_of_the_whole_picture(channels):
    pixels = picture(channels)
    out = np.zeros((3, 20, 30), np.uint8)
    box = Box(5, 200, 70, 333, True)
    assert make_crop_decoder(LOSSLESS)(encode(pixels), lambda height, width: box, out) == box
    rgb = torch.from_numpy(np.repeat(pixels, 3, axis=0) if channels == 1 else pixels[:3])
    part = rgb[:, 5:75, 200:533].flip(2)
    wanted = interpolate(part[None], size=(20, 30), mode="bilinear", antialias=True)[0]
    assert np.array_equal(out, wanted.numpy())


def test_a_crop_decodes_only_its_tiles():
    file = bytearray(encode(picture(height=200, width=1100)))
    groups = parse_groups(file, parse_lossless_header(file))
    for start, length, column in zip(
        groups.start.tolist(), (groups.stored_bytes + groups.rest_bytes).tolist(), groups.tile_column, strict=True
    ):
        if column == 0:  # the left half is damaged
            file[start : start + length] = bytes(length)
    out = np.zeros((3, 20, 30), np.uint8)
    crop = make_crop_decoder(LOSSLESS)
    crop(file, lambda height, width: Box(10, 520, 100, 500), out)
    assert out.any()
    with pytest.raises(DecodeError):
        crop(file, lambda height, width: Box(10, 500, 100, 500), out)
    with pytest.raises(DecodeError, match="does not lie"):
        crop(file, lambda height, width: Box(10, 700, 100, 500), out)


@pytest.mark.parametrize("how", ["rgb", "unchanged", RandomResizedCrop(32), CenterCrop(24)])
def test_a_loader_over_a_lossless_column(tmp_path, how):
    pixels = [picture(height=60, width=80, seed=seed) for seed in range(6)]
    with ShardWriter(tmp_path / "data", columns={"image": LOSSLESS, "label": "int64"}) as writer:
        for label, each in enumerate(pixels):
            writer.write({"image": encode(each), "label": label})
    with ShardDataset(str(tmp_path / "data"), cache_dir=tmp_path / "cache") as dataset:
        batches = list(ConcurrentDataLoader(dataset, batch_size=3, decode={"image": how}))
    assert [batch["label"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    if isinstance(how, str):
        found = torch.cat([batch["image"] for batch in batches])
        assert np.array_equal(found.numpy(), np.stack(pixels))
    else:
        assert {tuple(batch["image"].shape) for batch in batches} == {(3, 3, *how.size)}
