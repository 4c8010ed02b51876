"""Loaders over datasets with images that cannot be decoded: raise, skip, replace."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concurrent_loader import (
    Batch,
    CenterCrop,
    ConcurrentDataLoader,
    DecodeError,
    Mixture,
    ObjectDataset,
    RandomResizedCrop,
    ShardDataset,
    TooManyDecodeErrors,
    TransformError,
)
from concurrent_loader.pipeline.error_limit import ErrorPolicy
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError

sys.path.append(str(Path(__file__).parent))  # workers import it from there, too
import failed_image_transforms as transforms

NUM_SAMPLES, SIZE = 40, 8
BROKEN = frozenset(
    {2, 3, 12, 16, 17, 18, 19, 20, 21, 22, 23, 39}
)  # of eight in a batch the third has none that is sound
CROP = RandomResizedCrop((20, 24))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, make_jpeg: Any) -> str:
    folder = str(tmp_path_factory.mktemp("broken") / "dataset")
    write(folder, make_jpeg, BROKEN)
    return folder


def write(folder: str, make_jpeg: Any, broken: frozenset[int]) -> None:
    with ShardWriter(folder, columns={"image": "jpeg", "label": "int64", "name": "str"}, shard_size="6KiB") as writer:
        for number in range(NUM_SAMPLES):
            image = make_jpeg(number)
            cut = {0: len(image) // 2, 1: 20}[number % 2] if number in broken else None
            writer.write({"image": image[:cut], "label": number, "name": f"n{number}"})


@pytest.fixture
def dataset(url: str) -> Any:
    with ShardDataset(url) as dataset:
        yield dataset


def load(dataset: Any, on_error: str, **options: Any) -> list[Any]:
    return list(loader(dataset, on_error, **options))


def loader(dataset: Any, on_error: str, **options: Any) -> ConcurrentDataLoader:
    usual = {"batch_size": SIZE, "decode": {"image": CROP}, "max_errors": NUM_SAMPLES, "seed": 4}
    return ConcurrentDataLoader(dataset, on_error=on_error, **{**usual, **options})


def sound(step: int) -> list[int]:
    return [number for number in range(step * SIZE, (step + 1) * SIZE) if number not in BROKEN]


def same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert (a.step, a.num_padded, a.sample_ids.tolist()) == (b.step, b.num_padded, b.sample_ids.tolist())
        for name in a:
            if isinstance(a[name], torch.Tensor):
                assert torch.equal(a[name], b[name])
            elif name == "image":
                assert all(torch.equal(x, y) for x, y in zip(a[name], b[name], strict=True))
            else:
                assert a[name] == b[name]


DECODES: list[Any] = [CROP, "rgb", "gray"]


@pytest.mark.parametrize("transform", [None, transforms.keep])
@pytest.mark.parametrize("how", DECODES)
def test_skipped_samples_are_left_out(dataset: Any, how: Any, transform: Any) -> None:
    made = loader(dataset, "skip", decode={"image": how}, transform=transform)
    batches = list(made)
    assert len(batches) == len(made) == 5
    for step, batch in enumerate(batches):
        expected = sound(step) or [16]
        assert batch.sample_ids.tolist() == batch["label"].tolist() == expected
        assert list(batch["name"]) == [f"n{number}" for number in expected]
        assert len(batch["image"]) == len(expected)
        assert batch.num_padded == (1 if step == 2 else 0)
    assert not batches[2]["image"].any()
    assert (made.stats.num_skipped, made.stats.num_replaced, made.stats.num_samples) == (12, 0, 28)


@pytest.mark.parametrize("transform", [None, transforms.keep])
@pytest.mark.parametrize("how", DECODES)
def test_the_nearest_stands_in_with_all_of_its_columns(dataset: Any, how: Any, transform: Any) -> None:
    made = loader(dataset, "replace", decode={"image": how}, transform=transform)
    batches = list(made)
    assert [len(batch["label"]) for batch in batches] == [8] * 5
    expected = [
        [0, 1, 1, 4, 4, 5, 6, 7],
        [8, 9, 10, 11, 11, 13, 14, 15],
        [16, 17, 18, 19, 20, 21, 22, 23],
        [24, 25, 26, 27, 28, 29, 30, 31],
        [32, 33, 34, 35, 36, 37, 38, 38],
    ]
    assert [batch["label"].tolist() for batch in batches] == expected
    assert [batch.sample_ids.tolist() for batch in batches] == expected
    assert [batch.num_padded for batch in batches] == [0, 0, 8, 0, 0]
    assert torch.equal(batches[0]["image"][2], batches[0]["image"][1])
    assert not batches[2]["image"].any()
    assert (made.stats.num_skipped, made.stats.num_replaced, made.stats.num_samples) == (0, 12, 32)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("how", DECODES)
def test_sound_pictures_are_those_of_a_sound_data_set(
    dataset: Any, tmp_path: Path, make_jpeg: Any, on_error: str, how: Any
) -> None:
    write(str(tmp_path / "sound"), make_jpeg, frozenset())
    with ShardDataset(str(tmp_path / "sound")) as whole:
        images = {
            number: image
            for batch in load(whole, "raise", decode={"image": how})
            for number, image in zip(batch.sample_ids.tolist(), batch["image"], strict=True)
        }
    for batch in load(dataset, on_error, decode={"image": how}):
        if batch.step != 2:
            for number, image in zip(batch.sample_ids.tolist(), batch["image"], strict=True):
                assert torch.equal(image, images[number])


def test_raise_is_the_default_and_names_the_sample(dataset: Any) -> None:
    with pytest.raises(DecodeError) as caught:
        list(ConcurrentDataLoader(dataset, SIZE, decode={"image": CROP}))
    assert (caught.value.sample, caught.value.column) == (2, "image")
    assert caught.value.key is not None


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("how", DECODES)
def test_threads_and_workers_change_nothing(dataset: Any, on_error: str, how: Any) -> None:
    expected = load(dataset, on_error, decode={"image": how}, shuffle=True, num_threads=1)
    same(load(dataset, on_error, decode={"image": how}, shuffle=True, num_threads=4), expected)


@pytest.mark.processes
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("transform", [None, transforms.keep])
def test_workers_tell_what_they_met(dataset: Any, on_error: str, transform: Any, no_leaks: Any) -> None:
    expected = load(dataset, on_error, transform=transform, decode={"image": RandomResizedCrop(96)})
    made = loader(dataset, on_error, transform=transform, decode={"image": RandomResizedCrop(96)}, num_workers=2)
    same(list(made), expected)
    assert made.stats.num_skipped + made.stats.num_replaced == 12


@pytest.mark.processes
def test_workers_stop_at_the_bound(dataset: Any, no_leaks: Any) -> None:
    batches = iter(loader(dataset, "skip", max_errors=3, num_workers=2))
    assert [len(next(batches)["label"]) for _ in range(2)] == [6, 7]
    with pytest.raises(TooManyDecodeErrors):
        next(batches)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_epoch_goes_on_with_the_next_batch(dataset: Any, on_error: str, stop: int) -> None:
    expected = load(dataset, on_error, shuffle=True)
    first = loader(dataset, on_error, shuffle=True)
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = first.state_dict()
    del batches
    again = loader(dataset, on_error, shuffle=True)
    again.load_state_dict(state)
    same(list(again), expected[stop:])


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_ranks_have_the_same_number_of_steps(dataset: Any, on_error: str) -> None:
    ranks = [load(dataset, on_error, batch_size=2, rank=rank, world_size=4, shuffle=True) for rank in range(4)]
    assert {len(batches) for batches in ranks} == {5}
    seen = [n for batches in ranks for b in batches for n in b.sample_ids[: len(b.sample_ids) - b.num_padded].tolist()]
    if on_error == "skip":
        assert sorted(seen) == sorted(set(range(NUM_SAMPLES)) - BROKEN)
    else:
        assert not set(seen) & BROKEN


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_batch_of_one_becomes_a_blank(dataset: Any, on_error: str) -> None:
    for batch in load(dataset, on_error, batch_size=1, decode={"image": CenterCrop(16)}):
        is_broken = int(batch.sample_ids[0]) in BROKEN
        assert batch["image"].shape == (1, 3, 16, 16)
        assert batch.num_padded == int(is_broken)
        assert bool(batch["image"].any()) is not is_broken


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_padding_is_no_sample_and_is_counted_once(dataset: Any, on_error: str) -> None:
    made = loader(dataset, on_error, batch_size=15, last_batch="pad")
    batches = list(made)
    assert made.stats.num_skipped + made.stats.num_replaced == 12
    last = batches[-1]  # 30 … 39 and 0 … 4, of which 39, 2 and 3 are broken
    if on_error == "skip":
        assert last.sample_ids.tolist() == [*range(30, 39), 0, 1, 4]
        assert last.num_padded == 3
    else:
        assert last.sample_ids.tolist() == [*range(30, 39), 38, 0, 1, 1, 4, 4]
        assert last.num_padded == 5


@pytest.mark.parametrize("per", ["batch", "sample"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_mixtures(dataset: Any, tmp_path: Path, make_jpeg: Any, on_error: str, per: Any) -> None:
    write(str(tmp_path / "sound"), make_jpeg, frozenset())
    with ShardDataset(str(tmp_path / "sound")) as whole:
        mixture = Mixture([dataset, whole], per=per, stop="longest")
        for batch in load(mixture, on_error, shuffle=True):
            rows = zip(batch.sources.tolist(), batch.sample_ids.tolist(), batch["label"].tolist(), strict=True)
            assert len(batch["image"]) == len(batch["label"]) == len(batch.sources)
            for source, number, label in list(rows)[: len(batch["label"]) - batch.num_padded]:
                assert number == label
                assert source == 1 or number not in BROKEN


def test_objects(tmp_path: Path, make_jpeg: Any) -> None:
    for number in range(10):
        (tmp_path / f"{number}.jpg").write_bytes(make_jpeg(number)[: 100 if number == 6 else None])
    with ObjectDataset(str(tmp_path)) as objects:
        batches = load(objects, "skip", batch_size=5, shuffle=True)
        assert sorted(len(batch["image"]) for batch in batches) == [4, 5]
        assert {key for batch in batches for key in batch["key"]} == {f"{n}.jpg" for n in range(10) if n != 6}


# -- the user's code ---------------------------------------------------------------------------------------------------


def test_collate_fn_gets_what_is_there(dataset: Any) -> None:
    found = load(dataset, "skip", collate_fn=transforms.labels)
    assert found == [sound(0), sound(1), [16], sound(3), sound(4)]
    found = load(dataset, "replace", collate_fn=transforms.pop_labels)
    assert found[0] == [0, 1, 1, 4, 4, 5, 6, 7]


def test_transforms_that_fail_are_raised(dataset: Any) -> None:
    with pytest.raises(TransformError):
        load(dataset, "skip", transform=transforms.fail)


def test_decode_functions_fall_under_it_but_have_no_blank(dataset: Any) -> None:
    batches = iter(loader(dataset, "skip", decode={"image": transforms.decode}))
    assert next(batches).sample_ids.tolist() == sound(0)
    assert next(batches).sample_ids.tolist() == sound(1)
    with pytest.raises(DecodeError, match="decode function failed") as caught:
        next(batches)
    assert caught.value.sample == 16


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_errors", "num_batches"), [(12, 5), (11, 4), (10, 2), (3, 2), (2, 1), (0, 0), (0.3, 5), (0.25, 2), (1.0, 5)]
)
def test_so_many_and_no_more(dataset: Any, max_errors: float, num_batches: int) -> None:
    made = loader(dataset, "skip", max_errors=max_errors)
    seen = 0
    if num_batches == 5:
        assert len(list(made)) == 5
        return
    with pytest.raises(TooManyDecodeErrors, match="max_errors") as caught:
        for _ in made:
            seen += 1
    assert seen == num_batches
    assert made.state_dict()["step"] == num_batches
    assert "sample=2" in str(caught.value)
    assert isinstance(caught.value.__cause__, DecodeError)
    assert len(str(caught.value)) < 3000


def test_each_epoch_counts_anew(dataset: Any) -> None:
    made = loader(dataset, "replace", max_errors=12)
    assert len(list(made)) + len(list(made)) == 10
    assert made.stats.num_replaced == 24


def test_the_first_ones_are_logged(dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="concurrent_loader.pipeline.error_limit"):
        load(dataset, "skip")
    assert len(caplog.records) == 6
    assert all("sample=" in record.getMessage() for record in caplog.records[:5])
    assert "no longer logged" in caplog.records[5].getMessage()


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_error": "ignore"},
        {"max_errors": -1},
        {"max_errors": 1.5},
        {"max_errors": True},
        {"max_errors": float("nan")},
        {"max_errors": "1 %"},
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ErrorPolicy(**arguments)


def test_a_loader_refuses_them_at_once(dataset: Any) -> None:
    for arguments in ({"on_error": "no"}, {"max_errors": -1}, {"decoder": "cv2"}, {"max_pixels": 0}):
        with pytest.raises(ConfigurationError):
            ConcurrentDataLoader(dataset, SIZE, decode={"image": "rgb"}, **arguments)


def test_the_cap_on_pixels_is_an_argument(dataset: Any) -> None:
    with pytest.raises(DecodeError, match="too large"):
        list(ConcurrentDataLoader(dataset, SIZE, decode={"image": "rgb"}, max_pixels=48 * 32 - 1))


@pytest.mark.parametrize("decoder", ["torchcodec", "torchvision", "simplejpeg", "pillow"])
def test_the_library_is_an_argument(dataset: Any, decoder: Any) -> None:
    expected = load(dataset, "skip", decode={"image": "rgb"})
    same(load(dataset, "skip", decode={"image": "rgb"}, decoder=decoder), expected)


@pytest.mark.processes
def test_an_iteration_that_is_left_leaves_nothing(dataset: Any, no_leaks: Any) -> None:
    made = loader(dataset, "skip", decode={"image": RandomResizedCrop(96)}, num_workers=2, persistent_workers=True)
    for _ in range(2):
        for batch in made:
            assert batch["image"].shape[1:] == (3, 96, 96)
            break


# -- memory ------------------------------------------------------------------------------------------------------------


def test_crops_are_written_where_they_belong(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    monkeypatch.setattr(np, "stack", lambda *args, **options: copied.append(args))
    view = dataset.subset(sorted(set(range(NUM_SAMPLES)) - BROKEN))
    for batch in load(view, "raise", shuffle=True, batch_size=16, num_threads=2):
        assert batch["image"].is_contiguous()
        assert batch["image"].storage_offset() == 0
    assert not copied
