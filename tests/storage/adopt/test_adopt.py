"""Adopting data of another format: what is found is a dataset like any other, and nothing in the source changes."""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset, convert, export
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    DatasetChanged,
    FormatError,
    SchemaError,
    StorageError,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import MemoryStore, open_store
from concurrent_loader.storage.stores.backends.local import LocalStore

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines

module = sys.modules["concurrent_loader.storage.adopt.adopt"]


@pytest.fixture(autouse=True)
def _lines(monkeypatch):
    monkeypatch.setattr(module, "find_format", lambda name, **options: Lines())


def body(file: int, row: int) -> bytes:
    return random.Random(f"{file}/{row}").randbytes(600).replace(b"\n", b" ")


def write(folder: Path, *, files=range(3), rows=400, compressed=()) -> list[tuple[bytes, int, str]]:
    folder.mkdir(exist_ok=True)
    expected = []
    for file in files:
        name = f"{file}.lines.gz" if file in compressed else f"{file}.lines"
        lines = [(body(file, row), 1000 * file + row, f"{name}/{row}") for row in range(rows)]
        data = b"".join(b"%d:%b\n" % (label, text) for text, label, _ in lines)
        (folder / name).write_bytes(gzip.compress(data) if file in compressed else data)
        expected += lines
    return expected


def samples(index, **options) -> list[tuple[bytes, int, str]]:
    with ShardDataset(index, **options) as dataset:
        return [(bytes(one["body"]), one["label"], one["name"]) for one in dataset[:]]


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize("cached", [False, True])
def test_samples_are_those_of_the_source(tmp_path, compressed, cached):
    expected = write(tmp_path / "source", compressed=compressed)
    (tmp_path / "source" / "notes.txt").write_text("not a sample")
    before = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    report = adopt("lines", tmp_path / "source", tmp_path / "index", shard_size="64KiB")
    assert report.num_samples == len(expected) == 1200
    assert report.plan.num_ignored == 1
    options = {"cache_dir": tmp_path / "cache"} if cached else {}
    assert samples(tmp_path / "index", **options) == expected
    with ShardDataset(tmp_path / "index", **options) as dataset:
        assert dataset.column("label").tolist() == [label for _, label, _ in expected]
        assert dataset[700]["body"] == expected[700][0]
        loaded = {}
        for batch in ConcurrentDataLoader(dataset, batch_size=64, shuffle=True):
            loaded.update(zip(batch["label"].tolist(), batch["body"], strict=True))
        assert {label: bytes(text) for label, text in loaded.items()} == {label: text for text, label, _ in expected}
    assert {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()} == before


@pytest.mark.parametrize("compressed", [(), (0, 1)])
def test_every_byte_is_verified(tmp_path, compressed):
    write(tmp_path / "source", files=range(2), compressed=compressed)
    adopt("lines", tmp_path / "source", tmp_path / "index", shard_size="64KiB")

    async def verify():
        engine = FetchEngine(open_store(str(tmp_path / "index")))
        return await verify_dataset(
            engine, await load_manifest(engine), open_source=lambda url: FetchEngine(open_store(url))
        )

    assert asyncio.run(verify()).problems == ()
    path = tmp_path / "source" / ("1.lines.gz" if compressed else "1.lines")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert asyncio.run(verify()).problems
    with pytest.raises(StorageError, match=r"1\.lines"), ShardDataset(tmp_path / "index") as dataset:
        for _ in ConcurrentDataLoader(dataset, batch_size=100):
            pass


def test_an_object_that_was_replaced_is_named(tmp_path):
    write(tmp_path / "source")
    adopt("lines", tmp_path / "source", tmp_path / "index")
    (tmp_path / "source" / "1.lines").write_bytes(b"1:other\n")
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset[0]["label"] == 0
        with pytest.raises(DatasetChanged, match=r"replaced; adopt its source again.*1\.lines"):
            dataset[500]
        (tmp_path / "source" / "2.lines").unlink()
        with pytest.raises(DatasetChanged, match=r"deleted; adopt its source again.*2\.lines"):
            dataset[900]


def test_an_etag_is_pinned_in_a_bucket():
    source, index = MemoryStore("memory://adopt-etag-source"), "memory://adopt-etag-index"
    asyncio.run(source.put("0.lines", b"1:one\n2:two\n"))
    adopt("lines", source.url, index)
    with ShardDataset(index) as dataset:
        assert dataset[1]["body"] == b"two"
    asyncio.run(source.put("0.lines", b"1:one\n2:two\n"))
    with ShardDataset(index) as dataset, pytest.raises(DatasetChanged, match="replaced"):
        dataset[1]


@pytest.mark.slow
def test_appending_adopts_new_objects_only(tmp_path):
    first = write(tmp_path / "source", files=range(2))
    adopt("lines", tmp_path / "source", tmp_path / "index")
    with pytest.raises(AlreadyExists, match="--append"):
        adopt("lines", tmp_path / "source", tmp_path / "index")
    more = write(tmp_path / "source", files=[5])
    report = adopt("lines", tmp_path / "source", tmp_path / "index", append=True)
    assert (report.plan.num_objects, report.num_samples) == (1, 400)
    assert samples(tmp_path / "index") == first + more
    again = adopt("lines", tmp_path / "source", tmp_path / "index", append=True)
    assert (again.num_samples, again.manifest.snapshot) == (0, 2)
    (tmp_path / "source" / "0.lines").write_bytes(b"1:x\n")
    with pytest.raises(DatasetChanged, match="--overwrite"):
        adopt("lines", tmp_path / "source", tmp_path / "index", append=True)
    adopt("lines", tmp_path / "source", tmp_path / "index", overwrite=True)
    assert samples(tmp_path / "index")[0] == (b"x", 1, "0.lines/0")


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    expected = write(tmp_path / "source")
    (tmp_path / "source" / "3.lines").write_bytes(b"1:one\n!:bad\n")
    with pytest.raises(FormatError, match="a field that the first samples lack"):
        adopt("lines", tmp_path / "source", tmp_path / "index", num_threads=1)
    with pytest.raises(StorageError):
        ShardDataset(tmp_path / "index")
    (tmp_path / "source" / "3.lines").write_bytes(b"1:one\n")
    walked = []
    walk = Lines.walk
    monkeypatch.setattr(
        Lines, "walk", lambda self, source, *rest: walked.append(source.entry.key) or walk(self, source, *rest)
    )
    report = adopt("lines", tmp_path / "source", tmp_path / "index")
    assert (report.num_resumed, walked) == (3, ["3.lines"])
    assert samples(tmp_path / "index")[:-1] == expected
    assert not list((tmp_path / "index").glob("unfinished/*/*"))


def test_chosen_columns(tmp_path):
    write(tmp_path / "source", files=[0], rows=3)
    (tmp_path / "source" / "1.lines").write_bytes(b"7:one\n!8:two\n")
    report = adopt("lines", tmp_path / "source", tmp_path / "index", only=["label"], columns={"label": "int16"})
    assert report.plan.columns == {"label": "int16"}
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset.column("label").tolist() == [0, 1, 2, 7, 0]
        assert dataset.column("label").dtype == np.int16
    with pytest.raises(SchemaError, match="no such column"):
        adopt("lines", tmp_path / "source", tmp_path / "other", only=["nothing"])


def test_a_value_that_does_not_fit_names_its_sample(tmp_path):
    write(tmp_path / "source", files=[0], rows=400)
    with pytest.raises(FormatError, match=r"sample 'line 128'.*--column label=TYPE"):
        adopt("lines", tmp_path / "source", tmp_path / "index", columns={"label": "int8"})


def test_a_dry_run_writes_nothing(tmp_path):
    write(tmp_path / "source")
    plan = adopt("lines", tmp_path / "source", tmp_path / "index", dry_run=True).plan
    assert (plan.num_objects, plan.num_requests, plan.num_ignored) == (3, 3, 0)
    assert plan.num_bytes == sum(path.stat().st_size for path in (tmp_path / "source").iterdir())
    assert not (tmp_path / "index").exists()


def test_a_strangers_index_does_not_open_other_stores(tmp_path):
    write(tmp_path / "source", files=[0], rows=3)
    adopt("lines", tmp_path / "source", "memory://adopt-stranger", source_options={})
    with ShardDataset("memory://adopt-stranger") as dataset, pytest.raises(ConfigurationError, match="source_options"):
        dataset[0]
    with pytest.raises(ConfigurationError, match="source_options"):
        convert("memory://adopt-stranger", tmp_path / "native")
    with pytest.raises(ConfigurationError, match="source_options"):
        export("memory://adopt-stranger", tmp_path / "tars", "webdataset")
    with ShardDataset("memory://adopt-stranger", source_options={}) as dataset:
        assert dataset[0]["label"] == 0
    assert convert("memory://adopt-stranger", tmp_path / "native", source_options={}).num_samples == 3


@pytest.mark.slow
def test_a_large_value_and_large_shards(tmp_path):
    (tmp_path / "source").mkdir()
    large = bytes(range(97, 122)) * 700_000
    (tmp_path / "source" / "0.lines").write_bytes(b"1:a\n2:" + large + b"\n3:c\n")
    adopt("lines", tmp_path / "source", tmp_path / "index")
    assert [text for text, _, _ in samples(tmp_path / "index")] == [b"a", large, b"c"]
    with ShardDataset(tmp_path / "index", cache_dir=tmp_path / "cache") as dataset:
        batches = list(ConcurrentDataLoader(dataset, batch_size=1))
        assert [bytes(batch["body"][0]) for batch in batches] == [b"a", large, b"c"]


def test_of_two_adoptions_at_once_the_second_commit_fails(tmp_path, monkeypatch):
    expected = write(tmp_path / "source", rows=20)
    walk = Lines.walk

    def late_walk(self, *args):
        monkeypatch.setattr(Lines, "walk", walk)
        adopt("lines", tmp_path / "source", tmp_path / "index")
        return walk(self, *args)

    monkeypatch.setattr(Lines, "walk", late_walk)
    with pytest.raises(CommitConflict, match="another writer committed meanwhile"):
        adopt("lines", tmp_path / "source", tmp_path / "index", num_threads=1)
    assert samples(tmp_path / "index") == expected
    report = adopt("lines", tmp_path / "source", tmp_path / "index", append=True)
    assert (report.num_samples, report.manifest.snapshot) == (0, 1)


def test_opening_reads_no_index_and_a_sample_reads_one(tmp_path, monkeypatch):
    write(tmp_path / "source", rows=2000)
    report = adopt("lines", tmp_path / "source", tmp_path / "index", shard_size="64KiB")
    assert len(report.manifest.shards) > 50
    assert report.index_bytes / report.num_samples < 40 + len("0.lines/1999") + 8  # the names and labels are in it
    reads = []
    get_range = LocalStore.get_range

    async def counted(self, key, start, end, **options):
        reads.append((key.split("/")[0], end - start))
        return await get_range(self, key, start, end, **options)

    monkeypatch.setattr(LocalStore, "get_range", counted)
    with ShardDataset(tmp_path / "index") as dataset:
        assert [folder for folder, _ in reads if folder != "manifests"] == []
        dataset[3000]
        assert sorted(folder for folder, _ in reads if folder != "manifests") == ["1.lines", "tails"]
        assert sum(size for folder, size in reads if folder == "tails") < report.index_bytes / 20


def test_nothing_to_adopt(tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(FormatError, match="no object of this format"):
        adopt("lines", tmp_path / "source", tmp_path / "index")
    with pytest.raises(ConfigurationError, match="same folder"):
        adopt("lines", tmp_path / "source", tmp_path / "source")
