"""Valid values of ``decode``, and columns that do not follow an image's crop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from concurrent_loader import CenterCrop, ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.errors import CollateError
from concurrent_loader.storage import ConfigurationError, ShardWriter


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ("rgb", "must map columns"),
        (["image"], "must map columns"),
        (RandomResizedCrop(8), "must map columns"),
        ({"image": RandomResizedCrop}, r"write RandomResizedCrop\(…\)"),
        ({"image": v2.Resize(8)}, r"not take torchvision transforms.*transform="),
        ({"image": v2.Resize}, r"not take torchvision transforms.*transform="),
        ({"image": 3}, "invalid value for a column"),
        ({"photo": "rgb"}, "names a column that"),
    ],
)
def test_what_decode_cannot_be_names_the_form(decode: Any, words: str, image_url: str) -> None:
    with ShardDataset(image_url) as dataset, pytest.raises(ConfigurationError, match=words):
        ConcurrentDataLoader(dataset, decode=decode)


@pytest.mark.parametrize("device", ["xpu", "mps", "hpu:0", "nothing"])
def test_a_device_that_is_not_here_is_an_error(device: str, image_url: str) -> None:
    with ShardDataset(image_url) as dataset, pytest.raises(ConfigurationError, match="device"):
        ConcurrentDataLoader(dataset, device=device)


def warnings_of(make_jpeg: Callable[..., bytes], columns: dict[str, str], decode: Any) -> list[str]:
    url = "memory://companions"
    values = {"jpeg": make_jpeg(0), "float32[4]": [0, 0, 1, 1], "int64": 3}
    with ShardWriter(url, columns=columns, overwrite=True) as writer:
        writer.write({name: values[kind] for name, kind in columns.items()})
    with ShardDataset(url) as dataset, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ConcurrentDataLoader(dataset, decode=decode)
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


CROP = RandomResizedCrop(8)


@pytest.mark.parametrize(
    ("columns", "decode", "words"),
    [
        (("image", "mask"), {"image": CROP, "mask": CROP}, ["'mask', which looks like a mask"]),
        (("image", "seg_map"), {"image": CROP, "seg_map": "unchanged"}, ["'seg_map' of the same samples"]),
        (("image", "box"), {"image": CenterCrop(8)}, ["'box' of the same samples"]),
        (("image", "gt_bboxes", "label"), {"image": CROP}, ["'gt_bboxes' of the same samples"]),
        (("image", "box", "mask"), {"image": "rgb", "mask": "gray"}, []),
        (("image", "label", "boxer", "segment_id"), {"image": CROP}, []),
        (("left", "right"), {"left": CROP, "right": CROP}, []),
    ],
)
def test_masks_and_boxes_that_do_not_follow_a_crop_are_named(
    columns: tuple[str, ...], decode: Any, words: list[str], make_jpeg: Callable[..., bytes]
) -> None:
    images = {"image", "mask", "seg_map", "left", "right"}
    kinds = {
        name: "jpeg" if name in images else "int64" if name in {"label", "segment_id"} else "float32[4]"
        for name in columns
    }
    said = warnings_of(make_jpeg, kinds, decode)
    assert len(said) == len(words)
    assert all(part in text for part, text in zip(words, said, strict=True)), said


def test_drop_last_that_leaves_nothing_is_warned_of(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        with pytest.warns(UserWarning, match=r"leaves no batch.*41"):
            assert len(ConcurrentDataLoader(dataset, 41, drop_last=True)) == 0
        assert len(ConcurrentDataLoader(dataset, 40, drop_last=True)) == 1


def test_a_batch_of_two_columns_cannot_be_unpacked(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        loader = ConcurrentDataLoader(dataset, 40, decode={"image": "rgb"})
        with pytest.raises(TypeError, match=r"as_tuple=\('image', 'label'\)"):
            for _images, _labels in loader:
                pass
        (batch,) = loader
    with pytest.raises(TypeError, match="cannot be unpacked"):
        _images, *_rest = batch
    images, labels = batch.values()
    assert (images.shape[0], labels.shape) == (40, (40,))


def test_columns_are_delivered_as_a_tuple(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        loader = ConcurrentDataLoader(dataset, 16, decode={"image": CenterCrop(8)}, as_tuple=("label", "image"))
        sizes = []
        for labels, images in loader:
            assert labels.shape == (len(images),)
            assert images.shape[1:] == (3, 8, 8)
            sizes.append(len(images))
    assert sizes == [16, 16, 8]
    assert loader.stats.num_samples == 40


def test_companions_of_ragged_columns_are_delivered_in_tuples(image_url: str) -> None:
    options: Any = {"decode": {"image": "rgb"}, "ragged": {"image": "pad"}, "as_tuple": ["image", "image_sizes"]}
    with ShardDataset(image_url) as dataset:
        images, sizes = next(iter(ConcurrentDataLoader(dataset, 4, **options)))
    assert sizes.tolist() == [list(images.shape[2:])] * 4


@pytest.mark.parametrize("names", ["image", (), ("image", 1), {"image": 1}])
def test_as_tuple_must_be_names(names: Any, image_url: str) -> None:
    with ShardDataset(image_url) as dataset, pytest.raises(ConfigurationError, match="sequence of column names"):
        ConcurrentDataLoader(dataset, as_tuple=names)


def test_a_column_of_a_tuple_must_exist(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        with pytest.raises(ConfigurationError, match="the batches do not have"):
            ConcurrentDataLoader(dataset, as_tuple=("image", "labels"))
        loader: Any = ConcurrentDataLoader(dataset, 2, as_tuple=("image", "labels"), transform=dict)
        with pytest.raises(CollateError, match=r"the batch does not have.*column='labels'"):
            next(iter(loader))
        loader = ConcurrentDataLoader(dataset, 2, as_tuple=("image",), collate_fn=list)
        with pytest.raises(CollateError, match="needs a batch with named columns"):
            next(iter(loader))


def test_a_batch_stays_a_mapping(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        (batch,) = ConcurrentDataLoader(dataset, 40, decode={"image": "rgb"})
    names = ["image", "label"]
    assert list(batch) == [*batch] == [name for name in batch] == names  # noqa: C416 - each a way of its own
    assert list(dict(batch)) == list({**batch}) == list(batch | {}) == names
    assert dict(**batch).keys() == batch.keys()
    assert [(name, value is batch[name]) for name, value in batch.items()] == [(name, True) for name in names]
    converted = torch.utils.data.default_convert(batch)
    assert list(converted) == names
    assert dict.fromkeys(batch, 1) == dict.fromkeys(names, 1)
