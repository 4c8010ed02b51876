from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import export
from concurrent_loader.storage.errors import ConfigurationError, SchemaError

pytestmark = pytest.mark.usefixtures("no_leaks")


def members(folder: Path) -> list[tuple[str, bytes]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(each.name, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr]
    return found


def grouped(folder: Path) -> dict[str, dict[str, bytes]]:
    """Samples as WebDataset groups them: the key ends at the first dot of the last part of the path."""
    found: dict[str, dict[str, bytes]] = {}
    for name, data in members(folder):
        directory, _, base = name.rpartition("/")
        key, _, field = base.partition(".")
        fields = found.setdefault(f"{directory}/{key}" if directory else key, {})
        assert field not in fields
        fields[field] = data
    return found


def test_every_value_is_a_member_that_webdataset_decodes(dataset, samples, tmp_path):
    report = export(dataset, tmp_path, "webdataset", shard_size="4KiB")
    found = grouped(tmp_path)
    assert list(found) == [f"{number:06d}" for number in range(20)]
    assert report.num_files == len(list(tmp_path.glob("*.tar"))) > 3
    for got, expected in zip(found.values(), samples, strict=True):
        assert got.pop("image.jpg") == expected["image"]
        assert int(got.pop("label.cls")) == expected["label"]
        assert got.pop("name.de.txt").decode() == expected["name.de"]
        assert json.loads(got.pop("info.json")) == expected["info"]
        assert got.pop("raw.bin") == expected["raw"]
        assert json.loads(got.pop("weight.json")) == expected["weight"]
        assert json.loads(got.pop("flag.json")) is expected["flag"]
        for name in ("box", "points"):
            array = np.load(io.BytesIO(got.pop(f"{name}.npy")), allow_pickle=False)
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])
        assert not got


def test_the_index_names_every_file_with_its_samples(dataset, tmp_path):
    report = export(dataset, tmp_path, "webdataset", shard_size="4KiB", columns=["image", "label"])
    index = json.loads((tmp_path / "index.json").read_text())
    assert [shard["url"] for shard in index["shardlist"]] == [path.name for path in sorted(tmp_path.glob("*.tar"))]
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == 20
    for shard in index["shardlist"]:
        assert shard["filesize"] == (tmp_path / shard["url"]).stat().st_size
    assert sum(shard["filesize"] for shard in index["shardlist"]) == report.num_bytes
    assert index["columns"] == {"image": "jpeg", "label": "int64"}
    assert index["classes"] == {"label": ["cat", "dog", "owl"]}


def test_columns_named_like_their_endings_are_not_named_twice(dataset, samples, tmp_path):
    export(dataset, tmp_path, "webdataset", columns={"image": "jpg", "label": "cls"})
    assert [name for name, _ in members(tmp_path)[:2]] == ["000000.jpg", "000000.cls"]
    assert [data for name, data in members(tmp_path) if name.endswith(".jpg")] == [each["image"] for each in samples]


def test_the_same_samples_give_the_same_bytes(dataset, tmp_path):
    for name in "ab":
        export(dataset, tmp_path / name, "webdataset")
    first, second = ((tmp_path / name / "shard-000000.tar").read_bytes() for name in "ab")
    assert first == second


def test_a_key_column_names_the_samples(write, tmp_path, make_picture):
    rows: list[dict[str, Any]] = [{"image": make_picture(n), "path": f"v1.0/cat/{n}.JPG"} for n in range(3)]
    write(tmp_path / "in", rows, {"image": "jpeg", "path": "str"}, None)
    export(tmp_path / "in", tmp_path / "out", "webdataset", columns=["image"], key_column="path")
    assert members(tmp_path / "out") == [(f"v1.0/cat/{n}.image.jpg", rows[n]["image"]) for n in range(3)]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["a", "a"], "same key"),
        (["a.jpg", "a.png"], "same key"),
        (["a.b"], "has a dot"),
        (["../a"], "cannot be the name"),
        (["/a"], "cannot be the name"),
        (["a//b"], "cannot be the name"),
        ([""], "cannot be the name"),
        (["a\nb"], "cannot be the name"),
        (["x" * 201], "cannot be the name"),
        (["x/" * 500 + "x"], "cannot be the name"),
    ],
)
def test_a_key_that_is_no_name_is_refused(write, tmp_path, keys, what):
    write(tmp_path / "in", [{"key": key} for key in keys], {"key": "str"}, None)
    with pytest.raises(SchemaError, match=what) as caught:
        export(tmp_path / "in", tmp_path / "out", "webdataset", key_column="key")
    assert caught.value.sample == len(keys) - 1
    assert not list((tmp_path / "out").glob("*.tar"))


def test_columns_that_differ_only_in_case_are_refused(write, tmp_path):
    write(tmp_path / "in", [{"a": 1, "A": 2}], {"a": "int64", "A": "int64"}, None)
    with pytest.raises(ConfigurationError, match="only in case"):
        export(tmp_path / "in", tmp_path / "out", "webdataset")
    export(tmp_path / "in", tmp_path / "out", "webdataset", columns={"a": "a", "A": "b"})
    assert grouped(tmp_path / "out") == {"000000": {"a.json": b"1", "b.json": b"2"}}


def test_an_empty_dataset_has_an_index_only(write, tmp_path):
    write(tmp_path / "in", [], allow_empty=True)
    report = export(tmp_path / "in", tmp_path / "out", "webdataset")
    assert (report.num_samples, report.num_files) == (0, 0)
    assert json.loads((tmp_path / "out" / "index.json").read_text())["shardlist"] == []


def test_mixed_images_keep_their_endings(write, tmp_path, make_picture):
    rows = [{"image": make_picture(number, kind)} for number, kind in enumerate(("JPEG", "PNG", "WEBP", "GIF"))]
    write(tmp_path / "in", rows, {"image": "image"}, None)
    export(tmp_path / "in", tmp_path / "out", "webdataset")
    endings = ("jpg", "png", "webp", "gif")
    assert members(tmp_path / "out") == [
        (f"{number:06d}.image.{ending}", rows[number]["image"]) for number, ending in enumerate(endings)
    ]
