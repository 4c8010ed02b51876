from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ImageFolder, ShardDataset, export, ingest, open_store
from concurrent_loader.storage.errors import ConfigurationError, SchemaError

pytestmark = pytest.mark.usefixtures("no_leaks")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != ".concurrent-loader"
    }


def metadata(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_images_are_files_in_the_folders_of_their_classes(dataset, samples, tmp_path):
    report = export(dataset, tmp_path, "image-folder", columns=["image", "label"])
    names = ("cat", "dog", "owl")
    expected = {f"{names[number % 3]}/{number:06d}.jpg": each["image"] for number, each in enumerate(samples)}
    assert files(tmp_path) == expected
    assert (report.num_files, report.num_bytes) == (20, sum(map(len, expected.values())))
    assert not list(tmp_path.glob(".concurrent-loader/*.jsonl"))


def test_our_own_importer_reads_the_same_images_and_labels(dataset, samples, tmp_path):
    export(dataset, tmp_path / "images", "image-folder", columns=["image", "label"])
    ingest(ImageFolder(open_store(tmp_path / "images"), shuffle_seed=None), tmp_path / "again", shard_size="8KiB")
    with ShardDataset(tmp_path / "again") as again:
        found = {Path(row["path"]).stem: (row["image"], row["label"]) for row in map(again.__getitem__, range(20))}
    assert found == {f"{number:06d}": (each["image"], each["label"]) for number, each in enumerate(samples)}


def test_other_columns_are_in_the_metadata(dataset, samples, tmp_path):
    columns = ["image", "label", "name.de", "info", "box", "points", "weight", "flag"]
    export(dataset, tmp_path, "image-folder", columns=columns, shard_size="4KiB")
    found = metadata(tmp_path)
    assert len(found) == 20
    for line, expected in zip(found, samples, strict=True):
        assert (tmp_path / line.pop("file_name")).read_bytes() == expected["image"]
        assert line.pop("box") == expected["box"].tolist()
        assert line.pop("points") == expected["points"].tolist()
        assert line == {name: expected[name] for name in ("label", "name.de", "info", "weight", "flag")}
    assert not list(tmp_path.glob(".concurrent-loader/*.jsonl"))


@pytest.mark.slow  # imports Hugging Face datasets
def test_hugging_face_datasets_reads_images_and_metadata(dataset, samples, tmp_path, monkeypatch):
    import datasets
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # no thread
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    datasets.disable_progress_bars()
    export(dataset, tmp_path / "out", "image-folder", columns=["image", "label", "name.de"])
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(loaded) == 20
    assert {row["name.de"]: row["label"] for row in loaded} == {each["name.de"]: each["label"] for each in samples}


def test_without_class_names_folders_are_numbers(write, samples, tmp_path):
    write(tmp_path / "in", samples[:3], classes=None)
    export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label"])
    assert list(files(tmp_path / "out")) == ["00000/000000.jpg", "00001/000001.jpg", "00002/000002.jpg"]


def test_without_a_label_there_are_no_folders(dataset, samples, tmp_path):
    export(dataset, tmp_path, "image-folder", columns=["image"])
    assert list(files(tmp_path).values()) == [each["image"] for each in samples]
    assert "000000.jpg" in files(tmp_path)


def test_a_key_column_gives_files_their_old_names(write, tmp_path, make_picture):
    rows = [
        {"image": make_picture(0), "label": 0, "path": "cat/a.1.jpg"},
        {"image": make_picture(1, "PNG"), "label": 1, "path": "x/b"},
    ]
    write(tmp_path / "in", rows, {"image": "image", "label": "int64", "path": "str"})
    export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label"], key_column="path")
    assert files(tmp_path / "out") == {"cat/a.1.jpg": rows[0]["image"], "dog/x/b.png": rows[1]["image"]}


def test_two_samples_with_one_key_are_an_error_and_not_one_file(write, tmp_path, make_picture):
    rows = [{"image": make_picture(number), "key": f"{min(number, 2)}"} for number in range(4)]
    write(tmp_path / "in", rows, {"image": "jpeg", "key": "str"}, None)
    with pytest.raises(SchemaError, match="two samples may have the same key") as caught:
        export(
            tmp_path / "in", tmp_path / "out", "image-folder", columns=["image"], key_column="key", shard_size="1KiB"
        )
    assert (caught.value.expected, caught.value.got) == (4, 3)
    assert not (tmp_path / "out" / ".concurrent-loader" / "complete.json").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a\0b", "x" * 201, "a\\b"])
def test_a_class_name_that_is_no_folder_is_refused(write, samples, tmp_path, name):
    write(tmp_path / "in", samples[:1], classes={"label": [name]})
    with pytest.raises(SchemaError, match="class name"):
        export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label"])
    assert not (tmp_path / "out").exists()


def test_classes_with_the_same_name_are_refused(write, samples, tmp_path):
    write(tmp_path / "in", samples[:2], classes={"label": ["a", "a"]})
    with pytest.raises(SchemaError, match="two classes have the same name"):
        export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label"])


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_without_a_class_name_is_refused(write, samples, tmp_path, label):
    write(tmp_path / "in", [samples[0], {**samples[1], "label": label}])
    with pytest.raises(SchemaError, match="no class name") as caught:
        export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label"])
    assert (caught.value.column, caught.value.sample, caught.value.got) == ("label", 1, label)


def test_columns_that_it_cannot_hold_are_refused(dataset, write, samples, tmp_path):
    with pytest.raises(ConfigurationError, match="the bytes of column raw"):
        export(dataset, tmp_path / "out", "image-folder")
    with pytest.raises(ConfigurationError, match="exactly one image column"):
        export(dataset, tmp_path / "out", "image-folder", columns=["label"])
    with pytest.raises(ConfigurationError, match="path of a file"):
        export(dataset, tmp_path / "out", "image-folder", columns={"image": "image", "name.de": "file_name"})
    assert not (tmp_path / "out").exists()
    write(tmp_path / "in", [{**samples[0], "weight": float("nan")}])
    with pytest.raises(SchemaError, match="NaN"):
        export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "weight"])


def test_an_empty_dataset(write, tmp_path):
    write(tmp_path / "in", [], allow_empty=True)
    report = export(tmp_path / "in", tmp_path / "out", "image-folder", columns=["image", "label", "weight"])
    assert report.num_files == 0
    assert files(tmp_path / "out") == {"metadata.jsonl": b""}


def test_lossless_images_become_pngs_with_the_same_pixels(write, tmp_path):
    from PIL import Image

    from concurrent_loader.storage.lossless import encode

    pictures = [
        np.random.default_rng(number).integers(0, 256, (channels, 9, 11)).astype(np.uint8)
        for number, channels in enumerate((1, 2, 3, 4))
    ] + [np.arange(99, dtype=np.uint16).reshape(1, 9, 11) * 600]
    write(tmp_path / "in", [{"image": encode(each)} for each in pictures], {"image": "image/lossless"}, None)
    export(tmp_path / "in", tmp_path / "out", "image-folder")
    for number, expected in enumerate(pictures):
        with Image.open(tmp_path / "out" / f"{number:06d}.png") as image:
            pixels = np.asarray(image)
        pixels = pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        np.testing.assert_array_equal(pixels, expected)
