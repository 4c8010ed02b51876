from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.importers import LanceDataset
from concurrent_loader.storage.importers.ingest import ingest

# Lance keeps threads of its own, so that these tests do not ask for `no_leaks`.


def table(encoded: Any, start: int = 0) -> pa.Table:
    rows = range(start, start + 100)
    return pa.table(
        {
            "image": [encoded(row) for row in rows],
            "label": pa.array(rows, pa.int32()),
            "vector": pa.array([[row, -row] for row in rows], pa.list_(pa.float32(), 2)),
            "text": [f"é{row}" for row in rows],
        }
    )


def test_everything_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    path = tmp_path / "x.lance"
    lance.write_dataset(table(encoded), path)
    lance.write_dataset(table(encoded, 100), path, mode="append")
    report = ingest(LanceDataset(path, columns={"label": "int64"}), url, append=True)
    assert report.manifest.schema == {"image": "jpeg", "label": "int64", "vector": "float32[2]", "text": "str"}
    samples = samples_of(url)
    assert [sample["image"] for sample in samples] == [encoded(row) for row in range(200)]
    assert [(sample["label"], sample["text"]) for sample in samples] == [(row, f"é{row}") for row in range(200)]
    assert [sample["vector"].tolist() for sample in samples] == [[row, -row] for row in range(200)]
    assert ingest(LanceDataset(path, columns={"label": "int64"}), url, append=True).repeats


def test_a_version_and_columns_left_out(tmp_path: Path, url: str, encoded: Any) -> None:
    path = tmp_path / "x.lance"
    for mode in ("create", "append"):
        lance.write_dataset(table(encoded), path, mode=mode)
    report = ingest(LanceDataset(path, version="1", drop=["image", "vector"]), url)
    assert (report.num_samples, report.manifest.schema) == (100, {"label": "int32", "text": "str"})
    with pytest.raises(FormatError, match="cannot be read"):
        ingest(LanceDataset(path, version=9), url, overwrite=True)


def test_sources_that_are_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(NotFound):
        LanceDataset(tmp_path / "none.lance")
    with pytest.raises(ConfigurationError, match="number"):
        LanceDataset(tmp_path, version="x")
    with pytest.raises(FormatError, match="cannot be read"):
        ingest(LanceDataset(tmp_path), url)


def test_damaged_files(tmp_path: Path, url: str, encoded: Any) -> None:
    path = tmp_path / "x.lance"
    lance.write_dataset(table(encoded), path)
    (data,) = (path / "data").iterdir()
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(FormatError):
        ingest(LanceDataset(path), url)
