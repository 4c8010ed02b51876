"""An augmentation as one value: which numbers are whose, one by one and in batches, and what the loader makes of it."""

from __future__ import annotations

import pickle
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from concurrent_loader import (
    Augment,
    CenterCrop,
    ColorJitter,
    ConcurrentDataLoader,
    GaussianBlur,
    Normalize,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    ShardDataset,
    ToDtype,
)
from concurrent_loader.augment import Crop
from concurrent_loader.augment.augment import CROP_DRAWS
from concurrent_loader.decode import make_crop_decoder
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError

SIZE = (24, 20)
CROP = RandomResizedCrop(SIZE)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COLORS = (ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), RandomGrayscale(0.2), GaussianBlur(7, (0.1, 2.0), p=0.5))
ALL = Augment(CROP, RandomVerticalFlip(0.3), *COLORS, Normalize(MEAN, STD))


@pytest.fixture
def images(image_url):
    with ShardDataset(image_url) as dataset:
        yield dataset


@pytest.fixture
def image_files(tmp_path, make_jpeg):
    """On a drive, where workers see it."""
    with ShardWriter(str(tmp_path / "set"), columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(40):
            writer.write({"image": make_jpeg(number), "label": number})
    with ShardDataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache")) as dataset:
        yield dataset


def pictures(loader) -> dict[int, torch.Tensor]:
    return {
        number: picture
        for batch in loader
        for number, picture in zip(batch.sample_ids.tolist(), batch["image"], strict=True)
    }


def load(dataset, how=ALL, **options) -> dict[int, torch.Tensor]:
    return pictures(ConcurrentDataLoader(dataset, **{"batch_size": 7, "seed": 5, "decode": {"image": how}, **options}))


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[number], b[number]) for number in a)


def some(num: int) -> torch.Tensor:
    return torch.randint(0, 256, (num, 3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(num))


def test_it_is_a_crop():
    assert isinstance(ALL, Crop)
    assert ALL.size == SIZE
    draws = ALL.draw(1, 2, np.arange(3))
    assert draws.shape == (3, CROP_DRAWS + 1 + 5 + 1 + 2)
    assert ALL.box(80, 90, draws[1].tolist()) == CROP.box(80, 90, draws[1].tolist())
    assert Augment(CenterCrop(8)).draw(1, 2, np.arange(3)).shape == (3, 0)
    assert repr(Augment(CenterCrop(8), RandomGrayscale())) == (
        "Augment(CenterCrop(crop=8, resize=None), RandomGrayscale(p=0.1))"
    )
    assert pickle.loads(pickle.dumps(ALL)) == ALL
    assert hash(pickle.loads(pickle.dumps(ALL))) == hash(ALL)
    assert Augment(CROP) != ALL
    assert Augment(CROP) != CROP


def test_one_by_one_and_all_at_once_are_the_same():
    batch, draws = some(30), ALL.draw(3, 1, np.arange(100, 130))
    together = ALL.apply(batch, draws)
    for place in range(30):
        assert torch.equal(ALL.apply(batch[[place]], draws[[place]])[0], together[place])
    half = ALL.apply(batch[10:25], draws[10:25])
    assert torch.equal(half, together[10:25])


def test_nothing_is_changed_in_place():
    batch = some(10)
    before = batch.clone()
    ALL.apply(batch, ALL.draw(0, 0, np.arange(10)))
    assert torch.equal(batch, before)


def test_what_is_added_at_the_end_moves_nothing():
    batch, number = some(20), np.arange(20)
    short, long = Augment(CROP, COLORS[0]), Augment(CROP, COLORS[0], RandomHorizontalFlip(1.0))
    found = short.apply(batch, short.draw(0, 0, number))
    assert torch.equal(long.apply(batch, long.draw(0, 0, number)), found.flip(3))
    # Nor does another crop, nor other arguments of an operation before.
    other = Augment(CenterCrop(24), COLORS[0])
    assert torch.equal(other.apply(batch, other.draw(0, 0, number)), found)
    mild, hue = (
        Augment(CROP, ColorJitter(), RandomVerticalFlip()),
        Augment(CROP, ColorJitter(hue=0), RandomVerticalFlip()),
    )
    assert torch.equal(mild.apply(batch, mild.draw(0, 0, number)), hue.apply(batch, hue.draw(0, 0, number)))


def test_pictures_stay_what_they_are():
    # Those of a resumed run are those of the run before an upgrade.
    batch = torch.arange(2 * 3 * 8 * 8).remainder(251).to(torch.uint8).view(2, 3, 8, 8)
    how = Augment(CenterCrop(8), ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(3), RandomGrayscale(0.5))
    made = how.apply(batch, how.draw(7, 3, np.array([0, 12345])))
    assert made[:, :, 3, 3].tolist() == GOLDEN


GOLDEN = [[14, 58, 97], [255, 29, 130]]


def test_floats_and_layouts():
    batch, number = some(4), np.arange(4)

    def made(*operations):
        how = Augment(CROP, *operations)
        return how.apply(batch, how.draw(0, 0, number))

    levels = batch.float() / 255
    assert made() is batch
    assert torch.allclose(made(ToDtype()), levels)
    wanted = v2.functional.normalize(levels, list(MEAN), list(STD))
    assert torch.allclose(made(Normalize(MEAN, STD)), wanted, atol=2e-6)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(made(Normalize(MEAN, STD, dtype)), made(Normalize(MEAN, STD)).to(dtype))
        assert torch.equal(made(ToDtype(dtype)), made(ToDtype()).to(dtype))
    for last in (ToDtype(torch.uint8, True), ToDtype(torch.float16, True), Normalize(MEAN, STD, channels_last=True)):
        assert made(last).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made(ToDtype(torch.uint8, True)), batch)
    empty = Augment(CROP, RandomGrayscale(), ToDtype(torch.float16))
    assert empty.apply(batch[:0], empty.draw(0, 0, number[:0])).dtype == torch.float16
    assert Augment(CROP).apply(batch[:0], np.empty((0, CROP.num_draws))).shape == (0, 3, *SIZE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Augment(Augment(CROP)),
        lambda: Augment("rgb"),
        lambda: Augment(CROP, Normalize(MEAN, STD), RandomGrayscale()),
        lambda: Augment(CROP, ToDtype(), ToDtype()),
        lambda: Augment(CROP, "gray"),
        lambda: Augment(CROP, *[ColorJitter()] * 9),
        lambda: Normalize(MEAN, (0, 1, 1)),
        lambda: Normalize(MEAN[:2], STD),
        lambda: Normalize((float("nan"), 0, 0), STD),
        lambda: Normalize(MEAN, STD, torch.uint8),
        lambda: ToDtype(torch.int32),
        lambda: RandomHorizontalFlip(1.5),
        lambda: RandomVerticalFlip(-1),
        lambda: ALL.apply(some(2).float(), ALL.draw(0, 0, np.arange(2))),
        lambda: ALL.apply(some(2)[0], ALL.draw(0, 0, np.arange(3))),
        lambda: ALL.apply(some(2), ALL.draw(0, 0, np.arange(3))),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()


def test_the_loader_delivers_what_numbers_say(images, make_jpeg):
    found = load(images, shuffle=True)
    for number in (0, 17, 39):
        draws = ALL.draw(5, 0, np.array([number]))
        out = np.empty((3, *SIZE), np.uint8)
        make_crop_decoder("jpeg")(make_jpeg(number), lambda h, w, row=draws[0]: CROP.box(h, w, row.tolist()), out)
        assert torch.equal(found[number], ALL.apply(torch.from_numpy(out)[None], draws)[0])


@pytest.mark.slow
def test_threads_ranks_batches_and_resuming_change_nothing(images):
    expected = load(images)
    assert same(load(images, shuffle=True, num_threads=3, batch_size=11), expected)
    parts = [load(images, shuffle=True, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    assert same({**parts[0], **parts[1]}, expected)
    loader = ConcurrentDataLoader(images, 8, shuffle=True, seed=5, decode={"image": ALL})
    with closing(iter(loader)) as batches:
        first = list(islice(batches, 2))
    again = ConcurrentDataLoader(images, 8, shuffle=True, seed=5, decode={"image": ALL})
    again.load_state_dict(loader.state_dict())
    assert same({**pictures(first), **pictures(again)}, expected)


@pytest.mark.processes
def test_worker_processes_change_nothing(image_files):
    how = Augment(RandomResizedCrop((96, 80)), *COLORS, Normalize(MEAN, STD, torch.bfloat16, channels_last=True))
    batches = list(ConcurrentDataLoader(image_files, 7, seed=5, decode={"image": how}, num_workers=2))
    for batch in batches:
        assert (batch["image"].shape[1:], batch["image"].dtype) == ((3, 96, 80), torch.bfloat16)
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert same(pictures(batches), load(image_files, how))


def test_batches_have_the_layout_that_was_asked_for(images):
    how, usual = Augment(CROP, Normalize(MEAN, STD, channels_last=True)), Augment(CROP, Normalize(MEAN, STD))
    options = {"batch_size": 8, "decode": {"image": how}}
    batch = next(iter(ConcurrentDataLoader(images, **options)))
    plain = next(iter(ConcurrentDataLoader(images, 8, decode={"image": usual})))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert plain["image"].is_contiguous()
    assert torch.equal(batch["image"], plain["image"])
    one_by_one = next(iter(ConcurrentDataLoader(images, **options, transform=dict)))
    assert torch.equal(one_by_one["image"], plain["image"])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("transform", [None, dict])
def test_broken_pictures_leave_the_others_as_they_are(tmp_path, make_jpeg, dtype, channels_last, transform):
    with ShardWriter(str(tmp_path / "set"), columns={"image": "jpeg"}) as writer:
        for number in range(12):
            writer.write({"image": make_jpeg(number)[: 200 if number == 4 or number > 8 else None]})
    how = Augment(CROP, RandomGrayscale(0.5), ToDtype(dtype, channels_last))
    with ShardDataset(str(tmp_path / "set")) as dataset:
        found = load(dataset, how, batch_size=3, on_error="skip", max_errors=4, transform=transform)
        replaced = load(dataset, how, batch_size=3, on_error="replace", max_errors=4, transform=transform)
        alone = load(dataset.subset([0, 1, 2, 3, 5, 6, 7, 8]), how)
    assert {picture.dtype for picture in found.values()} == {dtype}
    assert all(torch.equal(found[number], alone[number]) for number in alone)
    assert all(torch.equal(replaced[number], alone[number]) for number in alone)


def test_any_transform_of_torchvision_gets_the_crop(images):
    chain = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(MEAN), list(STD)),
        ]
    )
    batches = ConcurrentDataLoader(
        images,
        8,
        decode={"image": Augment(CROP, RandomGrayscale(0.5))},
        transform=lambda sample: {**sample, "image": chain(sample["image"])},
    )
    for batch in batches:
        assert (batch["image"].shape, batch["image"].dtype) == ((8, 3, *SIZE), torch.float32)


def test_operations_of_ones_own(images):
    class Inverted:
        num_draws = 1

        def apply(self, pictures, draws):
            return 255 - pictures

    found, plain = load(images, Augment(CROP, Inverted())), load(images, CROP)
    assert all(torch.equal(found[number], 255 - plain[number]) for number in plain)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_same_pictures():
    batch = torch.randint(0, 256, (64, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    how = Augment(CROP, RandomVerticalFlip(), jitter, RandomGrayscale(0.2), GaussianBlur(23, (0.1, 2.0), p=0.5))
    draws = how.draw(0, 0, np.arange(64))
    assert torch.equal(how.apply(batch.cuda(), draws).cpu(), how.apply(batch, draws))
    for finish in (Normalize(MEAN, STD), Normalize(MEAN, STD, torch.float16, channels_last=True)):
        there = finish.apply(batch.cuda(), draws)
        assert torch.allclose(there.cpu(), finish.apply(batch, draws), rtol=0, atol=1e-6)
        assert there.is_contiguous(memory_format=torch.channels_last) == finish.channels_last
