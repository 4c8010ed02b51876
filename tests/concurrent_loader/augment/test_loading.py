"""Crops in the loader: pictures that depend on seed, epoch and sample, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from concurrent_loader import CenterCrop, ConcurrentDataLoader, DecodeError, RandomResizedCrop, ShardDataset
from concurrent_loader.augment import uniforms
from concurrent_loader.decode import make_crop_decoder
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError

SIZE = (24, 20)
CROP = RandomResizedCrop(SIZE)


@pytest.fixture
def images(image_url):
    with ShardDataset(image_url) as dataset:
        yield dataset


def pictures(loader) -> dict[int, torch.Tensor]:
    return {
        number: picture
        for batch in loader
        for number, picture in zip(batch.sample_ids.tolist(), batch["image"], strict=True)
    }


def load(dataset, **options) -> dict[int, torch.Tensor]:
    return pictures(ConcurrentDataLoader(dataset, **{"batch_size": 7, "seed": 5, "decode": {"image": CROP}, **options}))


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[number], b[number]) for number in a)


def test_a_batch_has_pictures_of_one_size(images):
    batch = next(iter(ConcurrentDataLoader(images, 8, decode={"image": CROP})))
    assert (batch["image"].shape, batch["image"].dtype) == ((8, 3, *SIZE), torch.uint8)


def test_pictures_are_what_seed_epoch_and_sample_say(images, make_jpeg):
    found = load(images, shuffle=True)
    for number in (0, 17, 39):
        row = uniforms(5, 0, np.array([number]), CROP.num_draws)[0].tolist()
        out = np.empty((3, *SIZE), np.uint8)
        make_crop_decoder("jpeg")(make_jpeg(number), lambda height, width, row=row: CROP.box(height, width, row), out)
        assert np.array_equal(found[number].numpy(), out)


def test_order_threads_and_ranks_change_nothing(images):
    expected = load(images)
    assert same(load(images, shuffle=True, num_threads=1), expected)
    assert same(load(images, shuffle=True, num_threads=3, batch_size=11), expected)
    parts = [load(images, shuffle=True, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    assert same({**parts[0], **parts[1]}, expected)


def test_views_show_the_same_pictures(images):
    expected = load(images)
    assert same(load(images.subset([3, 30, 31])), {number: expected[number] for number in (3, 30, 31)})


def test_each_epoch_has_others_and_a_resumed_one_its_own(images):
    loader = ConcurrentDataLoader(images, 8, shuffle=True, seed=5, decode={"image": CROP})
    first, second = pictures(loader), pictures(loader)
    assert same(first, load(images))
    assert not any(torch.equal(first[number], second[number]) for number in first)
    again = ConcurrentDataLoader(images, 8, shuffle=True, seed=5, decode={"image": CROP})
    state = again.state_dict()
    again.load_state_dict({**state, "epoch": 1, "step": 3})
    rest = pictures(again)
    assert len(rest) == 40 - 24
    assert all(torch.equal(rest[number], second[number]) for number in rest)


def test_a_transform_gets_the_crop(images):
    shapes = []
    batches = ConcurrentDataLoader(
        images,
        8,
        decode={"image": CenterCrop(16)},
        transform=lambda sample: shapes.append(sample["image"].shape) or sample,
    )
    assert sum(len(batch["label"]) for batch in batches) == 40
    assert set(shapes) == {(3, 16, 16)}


def test_a_broken_picture_is_named(tmp_path, make_jpeg):
    with ShardWriter(str(tmp_path / "set"), columns={"image": "jpeg"}) as writer:
        for number in range(6):
            writer.write({"image": make_jpeg(number)[: 200 if number == 4 else None]})
    with ShardDataset(str(tmp_path / "set")) as dataset, pytest.raises(DecodeError) as caught:
        list(ConcurrentDataLoader(dataset, 3, decode={"image": CROP}))
    assert (caught.value.sample, caught.value.column) == (4, "image")


def test_only_images_can_be_cropped(images):
    with pytest.raises(ConfigurationError, match="columns of files and bytes"):
        ConcurrentDataLoader(images, 8, decode={"label": CROP})
