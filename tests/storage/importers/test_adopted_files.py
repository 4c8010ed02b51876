"""Importing formats that can be read in place: the samples are those of the adopted source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ShardDataset, adopt, ingest
from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.importers import LitDataChunks, MDSShards, TFRecordFiles

GOLDEN = Path(__file__).parent.parent / "adopt" / "golden"


@pytest.mark.parametrize(
    ("importer", "case", "options"),
    [
        (MDSShards, "all", {}),
        (MDSShards, "zstd", {}),
        (LitDataChunks, "all", {}),
        (LitDataChunks, "tokens", {"block_size": 4}),
        (TFRecordFiles, "all", {}),
    ],
)
def test_samples_are_those_of_the_adopted_source(importer: Any, case: str, options: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / importer.NAME / case, source, ignore=shutil.ignore_patterns("expected.json"))
    adopted = adopt(importer.NAME, source, tmp_path / "index", **options)
    report = ingest(importer(source, **{name: str(value) for name, value in options.items()}), tmp_path / "native")
    assert report.num_samples == adopted.num_samples > 0
    again = ingest(importer(source, **options), tmp_path / "native", append=True)
    assert again.manifest.snapshot == 1  # the same source is added once
    with ShardDataset(tmp_path / "native") as native, ShardDataset(tmp_path / "index") as index:
        assert native.manifest.schema == index.manifest.schema
        assert native.manifest.table.ranges is None
        assert repr(native[:]) == repr(index[:])


def test_chosen_columns_and_types(tmp_path: Path) -> None:
    columns = ingest(MDSShards(GOLDEN / "mds" / "zstd"), tmp_path / "all").manifest.schema
    name = next(each for each, type_ in columns.items() if type_ != "bytes")
    chosen = MDSShards(
        GOLDEN / "mds" / "zstd", columns={name: "bytes"}, drop=[each for each in columns if each != name]
    )
    assert ingest(chosen, tmp_path / "one").manifest.schema == {name: "bytes"}


def test_errors_are_typed_and_name_the_object(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="integer"):
        LitDataChunks(tmp_path, block_size="many")
    with pytest.raises(FormatError, match="pickled"):
        ingest(MDSShards(GOLDEN / "mds" / "pickled"), tmp_path / "native")
    shutil.copytree(GOLDEN / "tfrecord" / "all", tmp_path / "damaged")
    file = tmp_path / "damaged" / "train-00001-of-00002"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=file.name):
        ingest(TFRecordFiles(tmp_path / "damaged"), tmp_path / "native")
