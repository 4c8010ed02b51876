"""Masks, boxes and keypoints that follow an image's crop through the loader: CPU and device, threads and workers."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from concurrent_loader import (
    Augment,
    Batch,
    CenterCrop,
    ColorJitter,
    ConcurrentDataLoader,
    Mixture,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    SampleContext,
    ShardDataset,
)
from concurrent_loader.device import open_device
from concurrent_loader.errors import DecodeError
from concurrent_loader.pipeline.sample_context import takes_context
from concurrent_loader.storage import ConfigurationError, ShardWriter

sys.path.append(str(Path(__file__).parent / "device"))
from fake_device import FakeDevice

NUM_SAMPLES = 24
LABELS = (0, 7, 255)
COLUMNS = {
    "image": "jpeg", "mask": "png", "boxes": "float32[...]", "classes": "int64[...]", "names": "json",
    "points": "float32[...]", "pose": "json", "face": "float32[4]", "label": "int64",
}  # fmt: skip


def scene(number: int, *, size: tuple[int, int] | None = None) -> dict[str, Any]:
    """Colored rectangles on black; the mask has their labels, the boxes their corners, the points their centers."""
    rng = np.random.default_rng(number)
    height, width = size or (64 + 8 * (number % 3), 80 - 8 * (number % 2))
    image, mask = np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.uint8)
    boxes = np.zeros((number % 4, 4), np.float32)
    for row in range(len(boxes)):
        y0, x0 = int(rng.integers(height - 16)), int(rng.integers(width - 16))
        y1, x1 = y0 + int(rng.integers(8, 16)), x0 + int(rng.integers(8, 16))
        image[y0:y1, x0:x1], mask[y0:y1, x0:x1] = (255, 255, 255), LABELS[1 + row % 2]
        boxes[row] = x0, y0, x1, y1
    files = [io.BytesIO(), io.BytesIO()]
    Image.fromarray(image).save(files[0], "JPEG", quality=95)
    Image.fromarray(mask).save(files[1], "PNG")
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    return {
        "image": files[0].getvalue(), "mask": files[1].getvalue(), "boxes": boxes, "label": number,
        "classes": np.arange(len(boxes)) + 10 * number, "names": [f"{number}-{row}" for row in range(len(boxes))],
        "points": centers.reshape(-1, 1, 2), "pose": [[float(x), float(y), 2.0] for x, y in centers],
        "face": np.array([10, 10, 30, 30], np.float32),
    }  # fmt: skip


def links(crop: Any) -> dict[str, Any]:
    return {
        "image": crop,
        "mask": crop.like("image", interpolation="nearest"),
        "boxes": crop.like("image", boxes="xyxy", min_visible=0.1),
        "classes": crop.like("boxes"),
        "names": crop.like("boxes"),
        "points": crop.like("boxes", keypoints=True),
        "pose": crop.like("boxes", keypoints=True),
        "face": crop.like("image", boxes="xyxy"),
    }


CROP = RandomResizedCrop(48, scale=(0.3, 1.0))


@pytest.fixture(scope="module")
def scene_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("scenes"))
    with ShardWriter(url, columns=COLUMNS, shard_size="16KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write(scene(number))
    return url


@pytest.fixture
def dataset(scene_url: str) -> Iterator[ShardDataset]:
    with ShardDataset(scene_url) as dataset:
        yield dataset


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """The device that loaders get where they ask for CUDA."""
    fake = FakeDevice()
    library = SimpleNamespace(
        resolve_cuda=lambda device: torch.device("cuda", device.index or 0), CudaBackend=lambda device, *, pinned: fake
    )
    monkeypatch.setattr(open_device, "_cuda", lambda: library)
    yield fake
    assert not fake.wrong


def load(dataset: Any, crop: Any = CROP, **options: Any) -> list[Batch]:
    arguments = {"batch_size": 5, "shuffle": True, "seed": 4, "decode": links(crop)}
    return list(ConcurrentDataLoader(dataset, **{**arguments, **options}))


def same(one: list[Batch], other: list[Batch], *, but: tuple[str, ...] = ()) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.sample_ids.tolist() == right.sample_ids.tolist()
        assert left.keys() == right.keys()
        for name in set(right) - set(but):
            for each, expected in zip(left[name], right[name], strict=True):
                if isinstance(expected, torch.Tensor):
                    assert type(each) is torch.Tensor
                    assert each.dtype == expected.dtype
                    assert torch.equal(each, expected), name
                else:
                    assert each == expected


@pytest.mark.parametrize(
    "crop",
    [
        CROP,
        CenterCrop(32),
        Augment(CROP, RandomVerticalFlip(0.5), RandomHorizontalFlip(0.5), ColorJitter(brightness=0.1)),
    ],
    ids=["random", "center", "flips"],
)
def test_masks_boxes_and_points_show_what_the_image_shows(dataset: ShardDataset, crop: Any) -> None:
    num_boxes = 0
    for batch in load(dataset, crop):
        assert batch["mask"].shape == (len(batch["label"]), *crop.size)
        assert set(batch["mask"].unique().tolist()) <= set(LABELS)
        for at, number in enumerate(batch["label"].tolist()):
            bright = batch["image"][at].float().mean(0) > 100
            labeled = batch["mask"][at] > 0
            assert (bright != labeled).float().mean() < 0.08  # of edges, which the image interpolates
            boxes, classes = batch["boxes"][at], batch["classes"][at].tolist()
            assert batch["names"][at] == [f"{number}-{each - 10 * number}" for each in classes]
            assert len(boxes) == len(classes) == len(batch["points"][at]) == len(batch["pose"][at])
            for row, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
                num_boxes += 1
                inside = labeled[round(y0) : round(y1), round(x0) : round(x1)]
                assert not inside.numel() or inside.float().mean() > 0.7
                x, y, visible = (
                    batch["pose"][at][0][row].tolist()
                    if batch["pose"][at].dim() == 3
                    else batch["pose"][at][row].tolist()
                )
                assert batch["points"][at][row, 0].tolist() == [x, y]
                if visible:
                    assert x0 <= x <= x1
                    assert y0 <= y <= y1
            inside = torch.zeros(crop.size, dtype=torch.bool)
            for x0, y0, x1, y1 in boxes.tolist():
                inside[max(0, int(y0) - 1) : int(y1) + 2, max(0, int(x0) - 1) : int(x1) + 2] = True
            assert (labeled & ~inside).sum() <= 0.1 * 16 * 16 * 4  # pixels of dropped boxes
    assert num_boxes > 10


def test_boxes_of_one_size_are_one_tensor(dataset: ShardDataset) -> None:
    batches = load(dataset, ragged={"boxes": "pad", "classes": "packed", "points": "list"})
    for batch in batches:
        assert batch["face"].shape == (len(batch["label"]), 4)
        assert batch["boxes"].shape[0] == len(batch["label"])
        assert batch["classes"].shape == (int(batch["boxes_lengths"].sum()),)
        assert batch["classes_seq_lens"].tolist() == batch["boxes_lengths"].tolist()
        assert [len(points) for points in batch["points"]] == batch["boxes_lengths"].tolist()


@pytest.mark.slow
def test_the_device_gives_the_same_numbers(dataset: ShardDataset, cuda: FakeDevice) -> None:
    for crop in (CROP, Augment(CROP, RandomVerticalFlip(0.5))):
        expected = load(dataset, crop)
        got = load(dataset, crop, device="cuda")
        same(got, expected, but=("image",))
        for one, other in zip(got, expected, strict=True):
            assert float((one["image"].float() - other["image"].float()).abs().mean()) < 1.0


@pytest.mark.processes
def test_workers_give_what_threads_give(dataset: ShardDataset) -> None:
    same(load(dataset, num_workers=1, transform=Jitter()), load(dataset, transform=Jitter()))


def test_a_resume_and_other_threads_give_the_same(dataset: ShardDataset) -> None:
    expected = load(dataset, num_threads=3)
    loader: Any = ConcurrentDataLoader(dataset, 5, shuffle=True, seed=4, decode=links(CROP), num_threads=1)
    iterator = iter(loader)
    begun = [next(iterator), next(iterator)]
    again: Any = ConcurrentDataLoader(dataset, 5, shuffle=True, seed=4, decode=links(CROP))
    again.load_state_dict(loader.state_dict())
    same([*begun, *again], expected)


def test_links_work_in_mixtures(dataset: ShardDataset, scene_url: str) -> None:
    with ShardDataset(scene_url) as other:
        for batch in load(Mixture([dataset, other])):
            assert batch["mask"].shape[1:] == (48, 48)


# -- transforms --------------------------------------------------------------------------------------------------------


class Jitter:
    """A transform with random numbers of its own."""

    def __call__(self, sample: dict[str, Any], context: SampleContext) -> dict[str, Any]:
        noise = torch.randn(3, generator=context.generator())
        return {**sample, "noise": noise, "id": context.sample_id, "epoch": context.epoch, "seed": context.seed}


def test_a_transform_gets_tensors_of_torchvision(dataset: ShardDataset) -> None:
    seen: list[dict[str, Any]] = []

    def look(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append(sample)
        return v2.Compose(
            [v2.RandomHorizontalFlip(1.0), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None})]
        )(sample)

    got, plain = load(dataset, transform=look, num_threads=1), load(dataset)
    sample = next(each for each in seen if len(each["classes"]))
    assert type(sample["image"]) is tv_tensors.Image
    assert type(sample["mask"]) is tv_tensors.Mask
    assert type(sample["boxes"]) is tv_tensors.BoundingBoxes
    assert sample["boxes"].canvas_size == (48, 48)
    assert type(sample["points"]) is tv_tensors.KeyPoints
    for flipped, batch in zip(got, plain, strict=True):
        assert type(flipped["image"]) is type(flipped["mask"]) is torch.Tensor
        assert flipped["image"].dtype == torch.float32
        assert torch.equal(flipped["mask"].flip(-1), batch["mask"])
        for one, other in zip(flipped["boxes"], batch["boxes"], strict=True):
            assert type(one) is torch.Tensor
            assert torch.allclose(48 - one[:, [2, 0]], other[:, [0, 2]])


def test_random_transforms_repeat_after_a_resume(dataset: ShardDataset) -> None:
    def make() -> Any:
        return ConcurrentDataLoader(
            dataset.select_columns(["label"]), 5, shuffle=True, seed=4, transform=Jitter(), num_threads=2
        )

    expected = [batch for _ in range(2) for batch in make()]
    assert len({tuple(noise) for batch in expected for noise in batch["noise"].tolist()}) == NUM_SAMPLES
    loader = make()
    epochs = [list(loader), list(loader)]
    noises = torch.cat([batch["noise"] for epoch in epochs for batch in epoch])
    assert len({tuple(noise) for noise in noises.tolist()}) == 2 * NUM_SAMPLES  # another epoch has other numbers
    for batch in (batch for epoch in epochs for batch in epoch):
        assert batch["id"].tolist() == batch.sample_ids.tolist() == batch["label"].tolist()
        assert set(batch["epoch"].tolist()) == {batch.epoch}
    resumed = make()
    iterator = iter(resumed)
    next(iterator)
    again = make()
    again.load_state_dict(resumed.state_dict())
    same([*again], epochs[0][1:])


def test_which_transforms_take_a_context() -> None:
    class Module(torch.nn.Module):
        def forward(self, sample: Any, context: Any) -> Any:
            return sample, context

    def with_default(sample: Any, scale: float = 2.0) -> Any:
        return sample, scale

    def optional(sample: Any, context: Any = None) -> Any:
        return sample, context

    assert all(map(takes_context, (Jitter(), Module(), optional, lambda sample, more: (sample, more))))
    assert not any(map(takes_context, (None, dict, with_default, v2.Identity(), v2.Compose([v2.Identity()]), len)))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_columns_before_their_boxes_name_the_column_that_is_wrong() -> None:
    url = "memory://scenes-in-another-order"
    with ShardWriter(
        url, columns={"classes": "int64[...]", "boxes": "json", "image": "jpeg"}, overwrite=True
    ) as writer:
        for number in range(6):
            sample = scene(number)
            boxes = sample["boxes"].tolist() if number != 5 else [[1, 2, 3]]
            writer.write({"classes": sample["classes"], "boxes": boxes, "image": sample["image"]})
    decode = {name: how for name, how in links(CROP).items() if name in ("image", "boxes", "classes")}
    with ShardDataset(url) as dataset:
        (batch,) = load(dataset.subset(range(5)), decode=decode, batch_size=6)
        assert list(map(len, batch["boxes"])) == list(map(len, batch["classes"]))
        with pytest.raises(DecodeError, match=r"must be \(N, 4\).*column='boxes'") as caught:
            load(dataset, decode=decode)
    assert caught.value.sample == 5


def broken(writes: Callable[[dict[str, Any]], dict[str, Any]], **options: Any) -> list[Batch]:
    url = "memory://broken-scenes"
    with ShardWriter(url, columns=COLUMNS, overwrite=True) as writer:
        for number in range(6):
            sample = scene(number)
            writer.write(writes(sample) if number == 3 else sample)
    with ShardDataset(url) as dataset:
        return load(dataset, batch_size=6, max_errors=6, **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": scene(1)["mask"]}, r"does not have the size of 'image'.*column='mask'"),
        ({"mask": scene(3)["mask"][:40]}, r"column='mask'"),
        ({"image": scene(3)["image"][:40]}, r"column='image'"),
        ({"boxes": np.zeros((2, 5), np.float32)}, r"must be \(N, 4\).*column='boxes'"),
        ({"boxes": np.full((3, 4), np.nan, np.float32)}, r"must be \(N, 4\).*column='boxes'"),
        ({"classes": np.arange(5)}, r"one row per box.*column='classes'"),
        ({"names": {"a": 1}}, r"one row per box.*column='names'"),
        ({"points": np.zeros((3, 4), np.float32)}, r"keypoints must be.*column='points'"),
        ({"pose": ["a", "b", "c"]}, r"not an array of numbers.*column='pose'"),
    ],
)
def test_a_value_that_does_not_fit_names_its_sample(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        broken(lambda sample: {**sample, **change})
    assert caught.value.sample == 3


@pytest.mark.parametrize("name", ["image", "mask"])
@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_sample_without_image_or_mask_is_left_out_as_a_whole(name: str, device: str | None, cuda: FakeDevice) -> None:
    for end in (40, -40):  # damage that the header shows, and damage that it does not show
        (batch,) = broken(lambda sample: {**sample, name: sample[name][:end]}, on_error="skip", device=device)  # noqa: B023
        assert sorted(batch["label"].tolist()) == [0, 1, 2, 4, 5]
        assert [len(value) for value in batch["classes"]] == [len(value) for value in batch["boxes"]]
        for label, names in zip(batch["label"].tolist(), batch["names"], strict=True):
            assert all(each.startswith(f"{label}-") for each in names)


def test_a_batch_without_a_sound_image_is_blank() -> None:
    url = "memory://blank-scenes"
    with ShardWriter(url, columns=COLUMNS, overwrite=True) as writer:
        writer.write({**scene(3), "image": b"\xff\xd8\xff"})
    with ShardDataset(url) as dataset:
        (batch,) = load(dataset, on_error="skip", max_errors=1)
    assert batch.num_padded == 1
    assert batch["mask"].tolist() == torch.zeros(1, 48, 48).tolist()
    assert len(batch["boxes"][0]) == 0


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ({"mask": CROP.like("image", interpolation="nearest")}, "needs a column of the dataset that decode crops"),
        ({"image": "rgb", "mask": CROP.like("image", interpolation="nearest")}, "needs a column of the dataset"),
        ({"image": CenterCrop(8), "mask": CROP.like("image", interpolation="nearest")}, "called on another crop"),
        ({"image": CROP, "mask": CROP.like("image")}, "say what the column holds"),
        ({"image": CROP, "label": CROP.like("image", interpolation="nearest")}, "only a column of images"),
        ({"image": CROP, "label": CROP.like("image", boxes="xyxy")}, "must be arrays or JSON"),
        ({**links(CROP), "mask": CROP.like("boxes", interpolation="nearest")}, "a mask follows its image"),
        ({**links(CROP), "face": CROP.like("boxes", boxes="xyxy")}, "boxes follow an image"),
    ],
)
def test_links_that_cannot_work_are_refused_at_once(decode: Any, words: str, dataset: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ConcurrentDataLoader(dataset, 4, decode=decode)


def test_linked_columns_are_not_warned_of(dataset: ShardDataset) -> None:
    scenes = dataset.select_columns(["image", "mask", "boxes"])
    decode = links(CROP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConcurrentDataLoader(scenes, 4, decode={name: decode[name] for name in ("image", "mask", "boxes")})
    with pytest.warns(UserWarning, match=r"'boxes' of the same samples do not follow.*crop\.like"):
        ConcurrentDataLoader(scenes, 4, decode={name: decode[name] for name in ("image", "mask")})


@pytest.mark.parametrize("crop", [CenterCrop(32), RandomResizedCrop(32, scale=(0.3, 1.0))])
def test_boxes_follow_turned_files_of_every_format(tmp_path: Path, crop: Any) -> None:
    upright = np.zeros((90, 60, 3), np.uint8)
    upright[30:62, 20:42] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a viewer turns the stored picture by a quarter clockwise
    stored = Image.fromarray(np.rot90(upright).copy())
    with ShardWriter(str(tmp_path), columns={"image": "image", "boxes": "float32[...]"}) as writer:
        for file_format, options in (("JPEG", {"quality": 100}), ("PNG", {}), ("WEBP", {"lossless": True})):
            file = io.BytesIO()
            stored.save(file, file_format, exif=exif, **options)
            writer.write({"image": file.getvalue(), "boxes": np.array([[20, 30, 42, 62]], np.float32)})
    decode = {"image": crop, "boxes": crop.like("image", boxes="xyxy", min_visible=0.0)}
    with ShardDataset(str(tmp_path)) as dataset:
        for epoch in range(4):
            for number in range(3):  # the same place in the epoch, and so the same crop
                loader = ConcurrentDataLoader(dataset.subset([number]), 1, decode=decode, seed=3 + epoch)
                (batch,) = loader
                bright = (batch["image"][0, 0] > 127).nonzero()
                (box,) = batch["boxes"][0]
                assert abs(float(bright[:, 1].min()) - float(box[0])) < 2.5
                assert abs(float(bright[:, 0].max()) + 1 - float(box[3])) < 2.5
