"""Shards of a dataset on the local drive are read in place."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache import FileShard, InPlaceShards, MemoryShard, MemoryShardCache, open_shard_cache
from concurrent_loader.storage.errors import DatasetChanged, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

NUM_SAMPLES = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with ShardWriter(str(folder), columns={"data": "bytes", "number": "int64"}, shard_size="8KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"data": bytes([number]) * 1000, "number": number})
    return folder


async def opened(root: Path) -> tuple[InPlaceShards, Manifest]:
    engine = FetchEngine(open_store(str(root)))
    cache = open_shard_cache(engine, None)
    assert isinstance(cache, InPlaceShards)
    return cache, await load_manifest(engine)


def num_open(root: Path) -> int:
    """Files below a folder that this process has open."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:
            continue  # of the iteration itself
    return sum(target.startswith(str(root)) for target in targets)


def shard_files(root: Path) -> list[Path]:
    return sorted((root / "shards").iterdir())


async def test_a_shard_in_use_is_an_open_file(root: Path) -> None:
    cache, manifest = await opened(root)
    entries = list(manifest.shards)
    assert len(entries) >= 4
    fetched = cache.fetcher.engine.stats.num_bytes
    shards = [await cache.acquire(entry) for entry in entries]
    assert all(isinstance(shard, FileShard) for shard in shards)
    assert [bytes(shard.payload("data", np.array([0]))[0]) for shard in shards[:1]] == [b"\0" * 1000]
    assert cache.fetcher.engine.stats.num_bytes == fetched
    assert (cache.stats.num_hits, cache.stats.num_misses) == (len(entries), 0)
    assert num_open(root) == len(entries)
    for entry in entries:
        cache.release(entry)
    assert num_open(root) == 0
    await cache.close()


async def test_other_stores_have_memory() -> None:
    assert isinstance(open_shard_cache(FetchEngine(open_store("memory://elsewhere")), None), MemoryShardCache)


@pytest.mark.parametrize("at_once", [False, True])
async def test_there_is_a_bound_on_descriptors(root: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr("concurrent_loader.storage.cache.local_files._MAX_OPEN", 2)
    cache, manifest = await opened(root)
    entries = list(manifest.shards)
    for _ in range(2):  # places are given back
        if at_once:
            shards = list(await asyncio.gather(*map(cache.acquire, entries)))
        else:
            shards = [await cache.acquire(entry) for entry in entries]
        assert [type(shard) for shard in shards[:3]] == [FileShard, FileShard, MemoryShard]
        assert bytes(shards[2].payload("data", np.array([0]))[0]) != b""
        assert num_open(root) == 2
        for entry in entries:
            cache.release(entry)
        assert num_open(root) == 0
    await cache.close()


def read_all(root: Path) -> list[int]:
    with ShardDataset(str(root)) as dataset:
        batches = ConcurrentDataLoader(dataset, batch_size=4, shuffle=True, seed=0)
        found = []
        for batch in batches:
            assert [bytes(data) for data in batch["data"]] == [bytes([number]) * 1000 for number in batch["number"]]
            found += batch["number"].tolist()
        return found


def test_an_epoch_has_every_sample(root: Path) -> None:
    assert sorted(read_all(root)) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("where", [0, 600, -1])
def test_a_file_that_was_changed_is_not_the_one_that_the_manifest_pins(root: Path, where: int) -> None:
    """The header, a value and the tail: what is found when it is opened, and what is found when it is read."""
    for file in shard_files(root):
        data = bytearray(file.read_bytes())
        data[where] ^= 1
        file.write_bytes(data)
    with pytest.raises(DatasetChanged, match="not the one that the manifest pins"):
        read_all(root)
    assert num_open(root) == 0


def test_a_whole_shard_of_the_same_size_in_its_place_is_another(root: Path, tmp_path: Path) -> None:
    """All of its own digests are right: only the manifest knows better."""
    other = tmp_path / "other"
    with ShardWriter(str(other), columns={"data": "bytes", "number": "int64"}, shard_size="8KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"data": bytes([255 - number]) * 1000, "number": number})
    pairs = list(zip(shard_files(root), shard_files(other), strict=True))
    assert {file.stat().st_size for file, _ in pairs} & {file.stat().st_size for _, file in pairs}
    by_size = {file.stat().st_size: file for _, file in pairs}
    for file, _ in pairs:
        file.write_bytes(by_size[file.stat().st_size].read_bytes())
    with pytest.raises(DatasetChanged, match="not the one that the manifest pins"):
        read_all(root)


def test_a_file_that_was_cut_is_another(root: Path) -> None:
    for file in shard_files(root):
        os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DatasetChanged):
        read_all(root)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(root: Path) -> None:
    with ShardDataset(str(root)) as dataset:
        batches = iter(ConcurrentDataLoader(dataset, batch_size=1, prefetch_batches=1))
        next(batches)
        for file in shard_files(root):
            os.truncate(file, 100)
        with pytest.raises(StorageError):
            list(batches)


def test_a_file_that_is_gone_is_not_found(root: Path) -> None:
    for file in shard_files(root):
        file.unlink()
    with pytest.raises(NotFound):
        read_all(root)
    (root / "shards").rmdir()
    with pytest.raises(NotFound):
        read_all(root)


def test_a_pipe_in_a_files_place_holds_up_nothing(root: Path) -> None:
    for file in shard_files(root):
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(StorageError):
        read_all(root)
