"""`purge`: the bytes are gone, from every file, whatever happened before and meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader import ShardDataset, add_columns, drop_column
from concurrent_loader.storage import FetchEngine, ShardWriter, compact, delete, open_store, purge, verify_dataset
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, SnapshotDeleted, StorageError
from concurrent_loader.storage.shards.editing import purge_scan
from concurrent_loader.storage.shards.editing.purge import _Purge
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.stores import LocalStore

COLUMNS = {"data": "bytes", "face": "bytes", "label": "int64", "name": "str"}


def secret(number: int) -> bytes:
    return b"<secret %06d>" % number


def sample(number: int) -> dict[str, Any]:
    return {"data": secret(number) * 10, "face": b"", "label": 10**12 + number, "name": f"person-{number:06d}!"}


def traces(number: int) -> list[bytes]:
    """Every form in which a sample's values are in files."""
    return [secret(number), f"person-{number:06d}!".encode(), (10**12 + number).to_bytes(8, "little")]


def write(url: Path, numbers: Any, **options: Any) -> None:
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", **options) as writer:
        for number in numbers:
            writer.write(sample(number))


def found(folder: Path, number: int) -> list[str]:
    """The files that have any trace of a sample."""
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and any(trace in file.read_bytes() for trace in traces(number))
    ]


def check(url: Path, expected: list[int]) -> Manifest:
    with ShardDataset(url) as dataset:
        assert [each["label"] - 10**12 for each in dataset[:]] == expected
        assert (dataset.column("label") - 10**12).tolist() == expected
        manifest = dataset.manifest

    async def verify() -> Any:
        async with open_store(url) as store:
            return await verify_dataset(FetchEngine(store), manifest)

    assert asyncio.run(verify()).problems == ()
    return manifest


@pytest.fixture
def url(tmp_path: Path) -> Path:
    write(tmp_path / "data", range(100))
    return tmp_path / "data"


def test_the_bytes_are_gone(url: Path) -> None:
    assert found(url, 7)
    delete(url, ids=[7, 50, 99])
    live = [number for number in range(100) if number not in (7, 50, 99)]
    assert found(url, 7)
    report = purge(url)
    assert report.is_proved
    assert (report.num_rows, report.num_samples, report.snapshot) == (3, 97, 3)
    assert report.removed_snapshots == (1, 2)
    assert report.num_values_scanned == 2 * 97
    assert [found(url, number) for number in (7, 50, 99)] == [[], [], []]
    assert found(url, 8)
    manifest = check(url, live)
    assert manifest.deleted is None
    assert manifest.statistics["label"] == {"max": 10**12 + 98, "min": 10**12}  # 99 was the largest


def test_removed_snapshots_say_so(url: Path) -> None:
    delete(url, ids=[7])
    purge(url)
    for snapshot in (1, 2):
        with pytest.raises(SnapshotDeleted, match="was purged"):
            ShardDataset(url, snapshot=snapshot)
    with pytest.raises(NotFound, match="no such snapshot") as error:
        ShardDataset(url, snapshot=9)
    assert type(error.value) is NotFound
    write(url, [100], append=True)
    check(url, [*range(7), *range(8, 101)])


@pytest.mark.slow
def test_snapshots_without_the_rows_stay(url: Path) -> None:
    write(url, range(100, 200), append=True)
    write(url, range(500, 520), overwrite=True)
    delete(url, ids=[3])
    report = purge(url)
    assert report.is_proved
    assert report.removed_snapshots == (3, 4)
    for snapshot, count in ((1, 100), (2, 200)):
        with ShardDataset(url, snapshot=snapshot) as dataset:
            assert len(dataset) == len(dataset[:]) == count


def test_rows_that_were_compacted_away_are_in_earlier_snapshots(url: Path) -> None:
    delete(url, ids=range(20))
    compact(url, below=1)
    assert found(url, 5)
    report = purge(url)
    assert report.is_proved
    assert (report.removed_snapshots, report.num_rewritten, report.snapshot) == ((1, 2), 0, 3)
    assert [found(url, number) for number in range(20)] == [[]] * 20
    check(url, list(range(20, 100)))


def test_a_dry_run_changes_nothing(url: Path) -> None:
    delete(url, ids=[7])
    before = sorted(url.rglob("*"))
    report = purge(url, dry_run=True)
    assert (report.num_rows, report.num_rewritten, report.removed_snapshots) == (1, 1, (1, 2))
    assert not report.is_proved
    assert sorted(url.rglob("*")) == before
    assert purge(url).num_removed == report.num_removed


def test_nothing_to_purge(url: Path) -> None:
    for _ in range(2):
        report = purge(url)
        assert (report.num_rows, report.snapshot, report.removed_snapshots) == (0, 1, ())
    delete(url, ids=[1])
    purge(url)
    assert purge(url).num_rows == 0
    assert not (url / "purged" / "plan.json").exists()


def test_copies_in_other_samples_are_named(url: Path) -> None:
    """Nobody deleted the copy, so it stays; but the removal is not proved."""
    write(url, [7, 300], append=True)
    delete(url, ids=[7])
    report = purge(url)
    assert not report.is_proved
    assert [(copy.snapshot, copy.sample, copy.column) for copy in report.copies] == [(4, 99, "data")]
    again = purge(url)  # nothing is left to remove, but the copy is still there
    assert (again.is_proved, again.copies) == (False, report.copies)
    delete(url, ids=[99])
    report = purge(url)
    assert report.is_proved
    assert not (url / "purged" / "plan.json").exists()
    assert found(url, 7) == []
    check(url, [*range(7), *range(8, 100), 300])


@pytest.mark.slow
def test_the_same_shard_twice_of_which_one_row_is_deleted_once(url: Path) -> None:
    write(url, range(100), append=True)
    delete(url, ids=[107])
    report = purge(url)
    assert (report.num_rows, report.removed_snapshots) == (0, ())
    check(url, [*range(100), *range(7), *range(8, 100)])


def test_shards_of_no_snapshot_are_searched(url: Path, tmp_path: Path) -> None:
    """A writer that was killed has left a copy of a purged sample, and one that has nothing to do with it."""
    write(tmp_path / "other", [7])
    write(tmp_path / "another", [800])
    for other in ("other", "another"):
        for file in (tmp_path / other / "shards").iterdir():
            shutil.copy(file, url / "shards" / file.name)
    (url / "shards" / "README").write_text("not a shard")
    delete(url, ids=[7])
    report = purge(url)
    assert found(url, 7) == []
    assert len(found(url, 800)) == 1
    assert report.unreadable == ("shards/README",)
    assert not report.is_proved
    (url / "shards" / "README").unlink()


def test_bundles_of_no_snapshot_are_counted(url: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", [800])
    for file in (tmp_path / "other" / "columns").iterdir():
        shutil.copy(file, url / "columns" / file.name)
    delete(url, ids=[7])
    assert purge(url).num_unreferenced == 1


def test_manifests_that_wait_for_garbage_collection(url: Path) -> None:
    (url / "collected").mkdir()
    write(url, range(100, 110), append=True)
    delete(url, ids=[7])
    (url / "manifests" / "0000000001.clm").rename(url / "collected" / "0000000001.clm")
    assert purge(url).is_proved
    assert found(url, 7) == []
    assert not list(url.glob("collected/*"))


class Stop(StorageError):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("num_calls", range(1, 40, 3))
def test_stopped_anywhere_and_repeated(url: Path, num_calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store dies at the n-th change; another call finishes the work, and proves it."""
    delete(url, ids=[7, 50])
    left = [num_calls]

    def dying(real: Any) -> Any:
        async def call(self: LocalStore, *args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Stop("the machine stops")
            return await real(self, *args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("put", "put_if_absent", "delete"):
            patch.setattr(LocalStore, name, dying(getattr(LocalStore, name)))
        try:
            purge(url)
        except Stop:
            pass
        else:
            assert left[0] >= 0
    live = [number for number in range(100) if number not in (7, 50)]
    check(url, live)
    report = purge(url)
    assert not report.copies
    assert found(url, 7) == found(url, 50) == []
    check(url, live)
    assert not (url / "purged" / "plan.json").exists()
    for snapshot in (1, 2):
        with pytest.raises(SnapshotDeleted):
            ShardDataset(url, snapshot=snapshot)


def test_shards_that_were_written_again_after_an_interruption_stay(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same samples make shards of the same names."""
    delete(url, ids=[7])

    async def stop(*_: object) -> None:
        raise Stop("killed")

    with monkeypatch.context() as patch:
        patch.setattr(_Purge, "_remove", stop)
        with pytest.raises(Stop):
            purge(url)
    write(url, range(100), append=True)
    report = purge(url)
    assert not report.is_proved  # sample 7 is there again
    check(url, [*range(7), *range(8, 100), *range(100)])


@pytest.mark.slow
def test_another_writer_meanwhile(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delete(url, ids=[7])
    real, left = _Purge._rewritten, [1]

    async def late(self: _Purge, newest: Manifest) -> Any:
        made = await real(self, newest)
        if left:
            left.pop()
            await asyncio.to_thread(write, url, [500], append=True)
            await asyncio.to_thread(delete, url, ids=[0])
        return made

    monkeypatch.setattr(_Purge, "_rewritten", late)
    report = purge(url)
    assert report.is_proved
    assert (report.num_rows, report.removed_snapshots) == (2, (1, 2, 3, 4))
    assert found(url, 0) == found(url, 7) == []
    check(url, [*range(1, 7), *range(8, 100), 500])


def test_beside_an_unfinished_import(url: Path, tmp_path: Path) -> None:
    delete(url, ids=[7])
    source = tmp_path / "source"
    write(source, [7])
    plan = url / "unfinished" / "0" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("{}")
    before = sorted(url.rglob("*"))
    with pytest.raises(ConfigurationError, match=r"import.*unfinished.*commit.*gc"):
        purge(url)
    assert sorted(url.rglob("*")) == before
    assert purge(url, dry_run=True).num_rows == 1
    plan.unlink()
    assert purge(url).is_proved


def test_an_import_that_begins_meanwhile_keeps_its_shards(
    url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(url, ids=[7])
    write(tmp_path / "other", [7])
    plan = url / "unfinished" / "0" / "plan.json"
    real = _Purge._remove

    async def late(self: _Purge, *arguments: Any) -> None:
        await real(self, *arguments)
        plan.parent.mkdir(parents=True)
        plan.write_text("{}")
        for file in (tmp_path / "other" / "shards").iterdir():
            shutil.copy(file, url / "shards" / file.name)

    with monkeypatch.context() as patch:
        patch.setattr(_Purge, "_remove", late)
        with pytest.raises(ConfigurationError, match="unfinished"):
            purge(url)
    assert len(found(url, 7)) == 1
    plan.unlink()
    assert purge(url).is_proved
    assert found(url, 7) == []


def test_a_commit_during_the_proof_keeps_its_shards(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are read before shards are listed, so a shard of a commit between the two looks like a stray."""
    delete(url, ids=[7])
    real, left = purge_scan._listed, [1]

    async def late(engine: FetchEngine) -> Any:
        if left:
            left.pop()
            await asyncio.to_thread(write, url, [7], append=True)
        return await real(engine)

    monkeypatch.setattr(purge_scan, "_listed", late)
    report = purge(url)
    assert [copy.sample for copy in report.copies] == [99]
    assert not report.is_proved
    check(url, [*range(7), *range(8, 100), 7])


@pytest.mark.slow
def test_adopted_objects_are_not_touched(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"label": [1, 2, 3], "data": [b"a", b"b", b"c"]}), tmp_path / "in" / "a.parquet")
    adopt("parquet", tmp_path / "in", tmp_path / "index")
    delete(tmp_path / "index", where="label == 2")
    with pytest.raises(ConfigurationError, match="adopted object"):
        purge(tmp_path / "index")
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset.manifest.snapshot == 2


@pytest.mark.parametrize("plan", ["{", '{"version":2}', '{"manifests":[],"objects":["../x"],"digests":[],"rows":{}}'])
def test_a_hostile_plan_is_refused(url: Path, plan: str) -> None:
    (url / "purged").mkdir()
    (url / "purged" / "plan.json").write_text(plan)
    with pytest.raises(FormatError, match="plan"):
        purge(url)
    check(url, list(range(100)))


def test_columns_without_payload() -> None:
    """There is nothing to compare then; the objects are gone nevertheless."""
    url = f"memory://purge-{uuid4().hex}"
    with ShardWriter(url, columns={"x": "int64"}) as writer:
        for number in range(10):
            writer.write({"x": number})
    delete(url, where="x == 3")
    report = purge(url)
    assert (report.is_proved, report.num_values_scanned, report.num_rows) == (True, 0, 1)
    with ShardDataset(url) as dataset:
        assert dataset.column("x").tolist() == [0, 1, 2, *range(4, 10)]
        assert np.max(dataset.manifest.table.num_samples) == 9


def test_in_a_bucket(s3_bucket: Any) -> None:
    url, options = f"{s3_bucket.url}/people", s3_bucket.storage_options
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", storage_options=options) as writer:
        for number in range(100):
            writer.write(sample(number))
    delete(url, where="name == 'person-000007!'", storage_options=options)
    assert compact(url, below=1, storage_options=options).num_removed == 1
    report = purge(url, storage_options=options)
    assert (report.is_proved, report.num_rows, report.removed_snapshots) == (True, 1, (1, 2))
    with ShardDataset(url, storage_options=options) as dataset:
        assert (dataset.column("label") - 10**12).tolist() == [*range(7), *range(8, 100)]
        assert [each["data"] for each in dataset[5:9]] == [secret(number) * 10 for number in (5, 6, 8, 9)]

    async def objects() -> list[bytes]:
        async with open_store(url, **options) as store:
            return [bytes((await store.get(meta.key)).data) async for meta in store.list("")]

    files = asyncio.run(objects())
    assert sum(secret(8) in file for file in files) == 1
    assert not any(trace in file for file in files for trace in traces(7))
    with pytest.raises(SnapshotDeleted):
        ShardDataset(url, snapshot=1, storage_options=options)


@pytest.mark.slow
def test_the_bytes_of_added_columns_are_gone(url: Path) -> None:
    def values(row: dict[str, Any]) -> dict[str, Any]:
        number = row["label"] - 10**12
        return {"caption": f"person-{number:06d}! again", "picture": secret(number) * 20, "number": 10**12 + number}

    add_columns(url, {"caption": "str", "picture": "bytes", "number": "int64"}, values, inputs=["label"])
    drop_column(url, "picture")
    delete(url, where="label == 1000000000007")
    delete(url, where="number == 1000000000050")
    assert any(name.startswith("shards/") for name in found(url, 7))
    report = purge(url)
    assert report.is_proved
    assert report.num_rows == 2
    assert found(url, 7) == found(url, 50) == []
    live = [number for number in range(100) if number not in (7, 50)]
    manifest = check(url, live)
    assert not manifest.column_sets
    with ShardDataset(url) as dataset:
        assert [each["caption"] for each in dataset[:]] == [f"person-{number:06d}! again" for number in live]
        assert dataset.column("number").tolist() == [10**12 + number for number in live]
        assert "picture" not in dataset[0]


def test_the_bytes_of_columns_that_were_dropped_before_are_gone(url: Path) -> None:
    add_columns(url, {"copy": "bytes"}, lambda row: {"copy": row["data"] * 2}, inputs=["data"])
    drop_column(url, "copy")
    delete(url, ids=[7])
    report = purge(url)
    assert report.is_proved
    assert report.num_rows == 1
    assert found(url, 7) == []
    check(url, [number for number in range(100) if number != 7])
