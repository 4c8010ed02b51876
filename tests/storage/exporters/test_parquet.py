from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from concurrent_loader import export
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.exporters import parquet

pytestmark = pytest.mark.usefixtures("no_leaks")


def rows(folder: Path) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_every_value_is_in_its_row(dataset, samples, tmp_path):
    report = export(dataset, tmp_path, "parquet", shard_size="8KiB")
    names = sorted(path.name for path in tmp_path.glob("*"))
    count = report.num_files
    assert count > 1
    assert names == [".concurrent-loader", *(f"train-{number:05d}-of-{count:05d}.parquet" for number in range(count))]
    found = rows(tmp_path)
    assert len(found) == 20
    for number, (got, expected) in enumerate(zip(found, samples, strict=True)):
        assert got["image"] == {"bytes": expected["image"], "path": f"{number:06d}.jpg"}
        assert json.loads(got["info"]) == expected["info"]
        assert got["box"] == expected["box"].tolist()
        assert got["points"] == {"shape": list(expected["points"].shape), "values": expected["points"].ravel().tolist()}
        assert {name: got[name] for name in ("label", "name.de", "raw", "weight", "flag")} == {
            name: expected[name] for name in ("label", "name.de", "raw", "weight", "flag")
        }


@pytest.mark.slow  # imports Hugging Face datasets
def test_hugging_face_datasets_shows_images_and_class_names(dataset, samples, tmp_path, monkeypatch):
    import datasets
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # no thread
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "downloads")
    datasets.disable_progress_bars()
    export(dataset, tmp_path / "out", "parquet", shard_size="8KiB")
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.features["image"] == datasets.Image()
    assert loaded.features["label"] == datasets.ClassLabel(names=["cat", "dog", "owl"])
    assert len(loaded) == 20
    with Image.open(io.BytesIO(samples[4]["image"])) as expected:
        np.testing.assert_array_equal(np.asarray(loaded[4]["image"]), np.asarray(expected))
    assert loaded[4]["label"] == 1
    raw = loaded.cast_column("image", datasets.Image(decode=False))
    assert [row["image"]["bytes"] for row in raw] == [each["image"] for each in samples]


def test_row_groups_are_bounded_by_bytes(dataset, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 2048)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1000)
    export(dataset, tmp_path, "parquet")
    file = pq.ParquetFile(tmp_path / "train-00000-of-00001.parquet")
    assert file.metadata.num_row_groups > 5
    assert [row["image"]["bytes"] for row in file.read().to_pylist()] == [each["image"] for each in samples]
    assert [row["image"]["path"] for row in file.read().to_pylist()] == [f"{number:06d}.jpg" for number in range(20)]


def test_row_groups_of_json_are_bounded_by_bytes(write, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 2048)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1000)
    values = [{"text": "x" * 300, "number": number} for number in range(40)]
    write(tmp_path / "in", [{"facts": value} for value in values], {"facts": "json"}, None)
    export(tmp_path / "in", tmp_path / "out", "parquet")
    file = pq.ParquetFile(tmp_path / "out" / "train-00000-of-00001.parquet")
    assert file.metadata.num_row_groups > 5
    assert [json.loads(row["facts"]) for row in file.read().to_pylist()] == values


@pytest.mark.parametrize(
    "name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
def test_numbers_keep_their_types(write, tmp_path, name):
    dtype = np.dtype(name)
    if dtype.kind == "f":
        numbers = [float(np.finfo(dtype).max), -0.5, float("inf")]
    else:
        numbers = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), 0]
    columns = {"one": name, "fixed": f"{name}[3]", "ragged": f"{name}[...]"}
    values = np.array(numbers, dtype)
    write(tmp_path / "in", [{"one": each, "fixed": values, "ragged": values} for each in numbers], columns, None)
    export(tmp_path / "in", tmp_path / "out", "parquet")
    schema = pq.read_schema(tmp_path / "out" / "train-00000-of-00001.parquet")
    assert schema.field("one").type.to_pandas_dtype() == dtype.type
    assert schema.field("fixed").type.value_type.to_pandas_dtype() == dtype.type
    found = rows(tmp_path / "out")
    assert [row["one"] for row in found] == numbers
    assert found[0]["fixed"] == numbers
    assert found[0]["ragged"] == {"shape": [3], "values": numbers}


def test_arrays_without_numbers_or_dimensions(write, tmp_path):
    values = [np.zeros((0, 3), np.float32), np.float32(2.5) * np.ones((), np.float32), np.ones((1, 2, 1), np.float32)]
    write(tmp_path / "in", [{"x": value} for value in values], {"x": "float32[...]"}, None)
    export(tmp_path / "in", tmp_path / "out", "parquet")
    assert [row["x"] for row in rows(tmp_path / "out")] == [
        {"shape": [0, 3], "values": []},
        {"shape": [], "values": [2.5]},
        {"shape": [1, 2, 1], "values": [1.0, 1.0]},
    ]


def test_an_empty_dataset_is_one_file_with_its_columns(write, tmp_path):
    write(tmp_path / "in", [], allow_empty=True)
    export(tmp_path / "in", tmp_path / "out", "parquet")
    table = pq.read_table(tmp_path / "out" / "train-00000-of-00001.parquet")
    assert table.num_rows == 0
    assert table.schema.names[:3] == ["image", "label", "name.de"]


def test_without_pyarrow_the_error_says_what_to_install(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match="pip install pyarrow"):
        export(dataset, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()
