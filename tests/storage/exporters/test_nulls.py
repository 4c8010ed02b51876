from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from concurrent_loader import export
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import SchemaError

TYPES = {
    "image": "jpeg?", "label": "int16?", "weight": "float32?", "flag": "bool?", "box": "float32[2,2]?",
    "points": "int8[...]?", "name": "str?", "info": "json?", "raw": "bytes?",
}  # fmt: skip
FULL: dict[str, Any] = {
    "image": b"\xff\xd8\xffa", "label": 3, "weight": 0.5, "flag": True, "box": np.ones((2, 2), np.float32),
    "points": np.array([1, 2], np.int8), "name": "n", "info": {"a": None}, "raw": b"",
}  # fmt: skip
EMPTY = dict.fromkeys(TYPES)


@pytest.fixture
def url(tmp_path: Path) -> str:
    with ShardWriter(tmp_path / "data", columns=TYPES) as writer:
        for sample in (FULL, EMPTY, FULL):
            writer.write(sample)
    return str(tmp_path / "data")


def test_parquet_has_nulls(url: str, tmp_path: Path) -> None:
    export(url, tmp_path / "out", "parquet")
    (file,) = (tmp_path / "out").glob("*.parquet")
    first, second, third = pq.read_table(file).to_pylist()
    assert second == EMPTY
    assert first["image"]["bytes"] == FULL["image"]
    assert (first["box"], first["points"]["values"]) == ([[1.0, 1.0], [1.0, 1.0]], [1, 2])
    assert {**third, "image": None} == {**first, "image": None}
    assert json.loads(first["info"]) == FULL["info"]


def test_parquet_of_nulls_alone(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "data", columns=TYPES) as writer:
        writer.write(EMPTY)
    export(tmp_path / "data", tmp_path / "out", "parquet")
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == [EMPTY]


def test_webdataset_leaves_members_out(url: str, tmp_path: Path) -> None:
    export(url, tmp_path / "out", "webdataset")
    (file,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(fileobj=io.BytesIO(file.read_bytes())) as tar:
        numbers = [name.partition(".")[0] for name in tar.getnames()]
    assert {number: numbers.count(number) for number in set(numbers)} == {"000000": 9, "000002": 9}
    assert json.loads((tmp_path / "out" / "index.json").read_text())["columns"]["label"] == "int16?"


def test_formats_without_nulls_refuse_them(url: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="MDS has no nulls") as caught:
        export(url, tmp_path / "mds", "mds", columns=["label"])
    assert (caught.value.column, caught.value.sample) == ("label", 1)
    with pytest.raises(SchemaError, match="no place in a folder of images"):
        export(url, tmp_path / "folder", "image-folder", columns=["image", "label"])
