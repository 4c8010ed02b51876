"""Converting an adopted dataset: the same samples under the same numbers, in the same order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset, add_column, drop_column, rename_column
from concurrent_loader.storage import compact, delete
from concurrent_loader.storage.adopt import adopt, convert
from concurrent_loader.storage.errors import AlreadyExists, SchemaError, StorageError
from concurrent_loader.storage.shards.writing.writer import ShardWriter

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines

module = sys.modules["concurrent_loader.storage.adopt.adopt"]
converting = sys.modules["concurrent_loader.storage.adopt.convert"]


@pytest.fixture
def adopted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_format", lambda name, **options: Lines())
    (tmp_path / "source").mkdir()
    for file in range(3):
        lines = (b"%d:%b\n" % (1000 * file + row, bytes([97 + row % 26]) * 300) for row in range(500))
        (tmp_path / "source" / f"{file}.lines").write_bytes(b"".join(lines))
    adopt("lines", tmp_path / "source", tmp_path / "index", shard_size="64KiB")
    return tmp_path / "index"


def batches(loader):
    return [(batch["label"].tolist(), [bytes(text) for text in batch["body"]], batch["name"]) for batch in loader]


@pytest.mark.slow
def test_samples_and_order_stay(adopted, tmp_path):
    seen = []
    manifest = convert(adopted, tmp_path / "native", on_progress=lambda now: seen.append(now.num_bytes))
    assert manifest.num_samples == 1500
    assert seen[-1] > seen[0] > 0
    assert manifest.table.ranges is None
    with ShardDataset(adopted) as before, ShardDataset(tmp_path / "native") as after:
        assert after[:] == before[:]
        assert after.manifest.statistics == before.manifest.statistics
        assert after.column("label").tolist() == before.column("label").tolist()
        for epoch in range(2):
            loaders = [ConcurrentDataLoader(each, batch_size=32, shuffle=True, seed=3) for each in (before, after)]
            for loader in loaders:
                loader.set_epoch(epoch)
            assert batches(loaders[0]) == batches(loaders[1])


@pytest.mark.slow
def test_columns_that_were_added_to_adopted_data(adopted, tmp_path):
    first = ShardDataset(adopted)
    rename_column(adopted, "name", "title")
    add_column(adopted, "rank", "int64", range(1500))
    add_column(adopted, "size", "int32", lambda sample: len(sample["body"]) + sample["label"], inputs=["body", "label"])
    with first, ShardDataset(adopted) as dataset:
        assert dataset.fingerprint == first.fingerprint
        assert dataset[7:9] == [
            {"title" if name == "name" else name: value for name, value in first[number].items()}
            | {"rank": number, "size": len(first[number]["body"]) + first[number]["label"]}
            for number in (7, 8)
        ]
        convert(adopted, tmp_path / "native")
        with ShardDataset(tmp_path / "native") as after:
            assert after[::100] == dataset[::100]
            assert after.column("size").tolist() == dataset.column("size").tolist()
    rename_column(adopted, "title", "name")
    for name in ("rank", "size"):
        drop_column(adopted, name)
    (tmp_path / "source" / "3.lines").write_bytes(b"1:a\n")
    with pytest.raises(SchemaError, match="an index of its own"):
        adopt("lines", tmp_path / "source", adopted, append=True)


@pytest.mark.slow
def test_a_run_switches_in_the_middle_of_an_epoch(adopted, tmp_path):
    with ShardDataset(adopted) as dataset:
        whole = batches(ConcurrentDataLoader(dataset, batch_size=32, shuffle=True, seed=3))
        loader = ConcurrentDataLoader(dataset, batch_size=32, shuffle=True, seed=3)
        iterator = iter(loader)
        begun = batches([next(iterator) for _ in range(20)])
        state = loader.state_dict()
    convert(adopted, tmp_path / "native")
    with ShardDataset(tmp_path / "native") as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=32, shuffle=True, seed=3)
        loader.load_state_dict(state)
        assert begun + batches(loader) == whole
    # A later snapshot has other samples, so the state does not fit it.
    with ShardWriter(
        tmp_path / "native", columns={"body": "bytes", "label": "int64", "name": "str"}, append=True
    ) as more:
        more.write({"body": b"", "label": 1, "name": ""})
    with ShardDataset(tmp_path / "native") as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=32, shuffle=True, seed=3)
        with pytest.raises(Exception, match="fingerprint"):
            loader.load_state_dict(state)


@pytest.mark.slow
def test_an_interrupted_conversion_goes_on(adopted, tmp_path, monkeypatch):
    rebuild, done = converting._rebuild, []

    def failing(manifest, entries, *rest):
        if len(done) == 5:
            raise StorageError("the machine stops")
        done.append(entries[0].digest)
        return rebuild(manifest, entries, *rest)

    monkeypatch.setattr(converting, "_rebuild", failing)
    with pytest.raises(StorageError, match="the machine stops"):
        convert(adopted, tmp_path / "native")
    with pytest.raises(StorageError):
        ShardDataset(tmp_path / "native")
    kept = len(list((tmp_path / "native").glob("unfinished/*/*.json")))
    assert kept >= 1
    again = []
    monkeypatch.setattr(converting, "_rebuild", lambda *args: again.append(args[1]) or rebuild(*args))
    manifest = convert(adopted, tmp_path / "native")
    assert len(again) == len(manifest.shards) - kept
    assert not list((tmp_path / "native").glob("unfinished/*/*.json"))
    with ShardDataset(adopted) as before, ShardDataset(tmp_path / "native") as after:
        assert after[:] == before[:]
    with pytest.raises(AlreadyExists):
        convert(adopted, tmp_path / "native")


@pytest.mark.slow
def test_deleted_samples_are_not_copied(adopted, tmp_path):
    """Order and states stay nevertheless, because each shard has the same live samples."""
    delete(adopted, where="label < 1010 or label in [1250, 2499]")
    convert(adopted, tmp_path / "native")
    with ShardDataset(adopted) as before, ShardDataset(tmp_path / "native") as after:
        assert after.manifest.deleted is None
        assert after.manifest.num_stored_samples == len(before) < 1500
        assert after[:] == before[:]
        assert after.fingerprint == before.fingerprint
        loaders = [ConcurrentDataLoader(each, batch_size=32, shuffle=True, seed=3) for each in (before, after)]
        assert batches(loaders[0]) == batches(loaders[1])


@pytest.mark.slow
def test_compacting_makes_own_shards(adopted):
    delete(adopted, where="label < 1010")
    with ShardDataset(adopted) as dataset:
        expected = dataset[:]
        num_virtual = int(dataset.manifest.table.ranges.is_virtual.sum())
    assert compact(adopted, below=1, source_options={}).num_rewritten > 1
    with ShardDataset(adopted) as dataset:
        assert dataset[:] == expected
        assert 0 < dataset.manifest.table.ranges.is_virtual.sum() < num_virtual
