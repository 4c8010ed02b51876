from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.maintenance import clear_cache, collect_garbage, inspect_cache, verify_cache
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.stores.store import Store

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def cache(store: Store, tmp_path: Path) -> AsyncIterator[DiskShardCache]:
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes="1GiB")
    yield cache
    await cache.close()


@pytest.fixture
async def reader(cache: DiskShardCache, entries: list[ShardEntry]) -> DatasetReader:
    manifest = Manifest(snapshot=1, schema={"image": "bytes", "label": "int64", "name": "str"}, shards=tuple(entries))
    return DatasetReader(manifest, cache.fetcher.engine, cache)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CacheFolder]:
    folder = CacheFolder(tmp_path)
    yield folder
    folder.close()


@pytest.fixture
async def filled(cache: DiskShardCache, reader: DatasetReader, entries: list[ShardEntry], tmp_path: Path) -> None:
    """Three whole shards, parts of a fourth, what a dead process left, and something foreign."""
    for age, entry in enumerate(entries[:3]):
        await cache.acquire(entry)
        cache.release(entry)
        os.utime(tmp_path / f"{entry.digest}.shard", (1000 + age, 1000 + age))
    await reader.read(75)
    (tmp_path / "tmp-0123456789abcdef").write_bytes(b"half")
    (tmp_path / f"{'0' * 32}.lock").write_bytes(b"")
    (tmp_path / "mine.txt").write_bytes(b"mine")


def names(folder: CacheFolder) -> set[str]:
    return {path.name for path in folder.root.iterdir()}


@pytest.mark.usefixtures("filled")
class TestUpkeep:
    def test_says_what_is_there(self, folder: CacheFolder, entries: list[ShardEntry]) -> None:
        content = inspect_cache(folder)
        assert (content.num_shards, content.num_sparse, content.num_incoming, content.num_locks) == (3, 1, 1, 1)
        assert content.shard_bytes == sum(entry.size for entry in entries[:3])
        assert 0 < content.sparse_bytes < 4 * 4096
        assert content.num_bytes == content.shard_bytes + content.sparse_bytes + 4
        assert content.oldest_s == 1000
        assert content.newest_s is not None
        assert content.newest_s > 1e9

    def test_sweeps_what_the_dead_left(self, folder: CacheFolder, entries: list[ShardEntry]) -> None:
        collected = collect_garbage(folder)
        assert (collected.num_swept, collected.num_evicted, collected.freed_bytes) == (2, 0, 4)
        assert names(folder) == {
            *(f"{entry.digest}.shard" for entry in entries[:3]), f"{entries[3].digest}.sparse", "mine.txt",
        }  # fmt: skip

    def test_shrinks_to_a_budget_the_least_recently_used_ahead(
        self, folder: CacheFolder, entries: list[ShardEntry]
    ) -> None:
        collected = collect_garbage(folder, budget_bytes=2 * entries[0].size)
        assert collected.num_evicted == 2
        assert collected.num_bytes <= 2 * entries[0].size
        assert names(folder) == {f"{entries[2].digest}.shard", f"{entries[3].digest}.sparse", "mine.txt"}
        assert collect_garbage(folder, budget_bytes=0).num_bytes == 0

    async def test_what_is_in_use_stays(
        self, folder: CacheFolder, cache: DiskShardCache, entries: list[ShardEntry]
    ) -> None:
        await cache.acquire(entries[0])
        collected = collect_garbage(folder, budget_bytes=0)
        assert (collected.num_evicted, collected.num_in_use, collected.num_bytes) == (3, 1, entries[0].size)
        assert clear_cache(folder).num_in_use == 1
        assert names(folder) == {f"{entries[0].digest}.shard", "mine.txt"}
        cache.release(entries[0])
        cleared = clear_cache(folder)
        assert (cleared.num_evicted, cleared.freed_bytes, cleared.num_bytes) == (1, entries[0].size, 0)
        assert names(folder) == {"mine.txt"}

    def test_sparse_files_of_no_use_are_swept(self, folder: CacheFolder, entries: list[ShardEntry]) -> None:
        (folder.root / f"{entries[0].digest}.sparse").write_bytes(b"its whole shard is there")
        (folder.root / f"{'1' * 32}.sparse").write_bytes(b"killed before the first record")
        assert collect_garbage(folder).num_swept == 4
        assert f"{entries[3].digest}.sparse" in names(folder)

    def test_all_is_well(self, folder: CacheFolder) -> None:
        told: list[tuple[int, int]] = []
        report = verify_cache(folder, on_progress=lambda done, total: told.append((done, total)))
        assert (report.problems, report.num_shards, report.num_ranges) == ((), 3, 2)
        assert told[-1][0] == told[-1][1] == report.num_bytes
        assert told == sorted(told)

    @pytest.mark.parametrize("fix", [False, True])
    def test_damage_is_named_and_if_wanted_deleted(
        self, folder: CacheFolder, entries: list[ShardEntry], fix: bool
    ) -> None:
        whole, part = f"{entries[1].digest}.shard", f"{entries[3].digest}.sparse"
        for name, at in ((whole, 5000), (part, 32 + 15 * 1000 + 10)):
            with (folder.root / name).open("r+b") as file:
                os.pwrite(file.fileno(), b"?!", at)
        report = verify_cache(folder, fix=fix)
        assert sorted(problem.split(":")[0] for problem in report.problems) == sorted([whole, part])
        assert report.num_removed == (2 if fix else 0)
        assert ({whole, part} & names(folder) == set()) is fix
        assert bool(verify_cache(folder).problems) is not fix


def test_an_empty_folder_is_no_error(folder: CacheFolder) -> None:
    assert inspect_cache(folder).oldest_s is None
    assert collect_garbage(folder, budget_bytes=10).num_bytes == 0
    assert clear_cache(folder).num_evicted == 0
    assert verify_cache(folder).problems == ()
