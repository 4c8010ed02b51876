"""Golden files of the peers' own writers, adopted and read like any dataset: the values are those of the peers."""

from __future__ import annotations

import shutil
import sys
from operator import attrgetter
from typing import Any

import cramjam
import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.adopt import adopt, convert
from concurrent_loader.storage.adopt.formats import find_format
from concurrent_loader.storage.adopt.formats.litdata import LitDataFormat
from concurrent_loader.storage.adopt.formats.mds import MdsFormat
from concurrent_loader.storage.adopt.formats.tfrecord import TfRecordFormat
from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.shards.format.transforms import transform

FORMATS = {"litdata": LitDataFormat, "mds": MdsFormat, "tfrecord": TfRecordFormat}
SOURCES = [
    *(("mds", case) for case in ("all", "bits", "br", "bz2", "gz", "modes", "parts", "snappy", "zstd")),
    *(("litdata", case) for case in ("all", "batch", "chunk", "leaf", "sample", "tokens")),
    ("tfrecord", "all"),
]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray) or isinstance(theirs, np.ndarray):
        return np.asarray(ours).dtype == np.asarray(theirs).dtype and np.array_equal(ours, theirs, equal_nan=True)
    if isinstance(ours, bytes | memoryview):
        return bytes(ours) == bytes(theirs)
    return ours == theirs or (ours != ours and theirs != theirs)


@pytest.mark.parametrize(("name", "case"), SOURCES)
def test_an_adopted_source_has_the_values_of_its_own_reader(sources: Any, tmp_path: Any, name: str, case: str) -> None:
    shutil.copytree(sources.golden / name / case, tmp_path / "source")
    (tmp_path / "source" / "expected.json").unlink(missing_ok=True)
    read = sources.read(
        FORMATS[name](),
        sources.folder(name, case),
        decompress=lambda source, data: transform(source.info["compression"], data, max_bytes=1 << 24),
    )
    report = adopt(name, tmp_path / "source", tmp_path / "index", shard_size="64KiB")
    convert(tmp_path / "index", tmp_path / "native")
    assert report.num_samples == len(read.samples)
    for url in (tmp_path / "index", tmp_path / "native"):
        with ShardDataset(url) as dataset:
            for ours, theirs in zip(dataset[:], read.samples, strict=True):
                assert ours.keys() == theirs.keys()
                for column in ours:
                    assert same(ours[column], theirs[column]), column
            assert sum(len(batch) for batch in ConcurrentDataLoader(dataset, batch_size=3, collate_fn=list)) == len(
                dataset
            )


@pytest.mark.parametrize(
    ("name", "case"),
    [("mds", "pickled"), ("litdata", "arrow"), ("litdata", "pickled"), ("tfrecord", "gzip")],
)
def test_what_cannot_be_read_in_place_names_the_way_out(sources: Any, tmp_path: Any, name: str, case: str) -> None:
    with pytest.raises((ConfigurationError, FormatError), match="ingest"):
        adopt(name, sources.golden / name / case, tmp_path / "index")


@pytest.mark.parametrize(("name", "compress"), [("br", "brotli.compress"), ("snappy", "snappy.compress_raw")])
def test_br_and_snappy_are_bounded_and_optional(monkeypatch: pytest.MonkeyPatch, name: str, compress: str) -> None:
    data = bytes(attrgetter(compress)(cramjam)(bytes(1 << 20)))
    assert transform(name, data, max_bytes=1 << 20) == bytes(1 << 20)
    for damaged, max_bytes in ((data, 1000), (data, (1 << 20) - 1), (data[:-1], 1 << 20), (b"", 1 << 20)):
        with pytest.raises(FormatError):
            transform(name, damaged, max_bytes=max_bytes)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ConfigurationError, match="pip install cramjam"):
        transform(name, data, max_bytes=1 << 20)


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="webdataset"):
        find_format("floppy")
