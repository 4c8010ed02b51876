"""Single samples: what is touched is kept, and nothing else is fetched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader.storage.cache import DiskShardCache, MemoryShardCache, ShardCache
from concurrent_loader.storage.cache.range_journal import RECORD_BYTES
from concurrent_loader.storage.errors import CorruptData, DatasetChanged, StoreClosed
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing.faults.fault_store import Call, Fault, FaultStore, FlipBit

pytestmark = pytest.mark.usefixtures("no_leaks")

MakeSample = Callable[..., dict[str, Any]]
SCHEMA = {"image": "bytes", "label": "int64", "name": "str"}


@pytest.fixture
async def open_reader(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> AsyncIterator[Callable[..., DatasetReader]]:
    manifest = Manifest(snapshot=1, schema=SCHEMA, shards=tuple(entries))
    opened: list[ShardCache] = []

    def make(*, engine: FetchEngine | None = None, **options: Any) -> DatasetReader:
        engine = engine or FetchEngine(store)
        options = {"budget_bytes": "1GiB", **options}
        opened.append(DiskShardCache(engine, tmp_path / "cache", **options))
        return DatasetReader(manifest, engine, opened[-1])

    yield make
    for cache in opened:
        await cache.close()


def gets(reader: DatasetReader) -> int:
    return reader.engine.stats.num_gets


async def test_what_was_read_once_costs_no_request_again_not_even_in_another_run(
    open_reader: Callable[..., DatasetReader], make_sample: MakeSample
) -> None:
    reader = open_reader()
    for _ in range(2):
        assert await reader.read(27) == make_sample(27)
        assert gets(reader) == 2  # the tail, and the sample
    assert await reader.read(28) == make_sample(28)
    assert gets(reader) == 3
    again = open_reader()
    assert await again.read(27) == make_sample(27)
    assert await again.read(28, ["image"]) == {"image": make_sample(28)["image"]}
    assert gets(again) == 0
    assert (again.cache.stats.num_sparse_hits, again.cache.stats.num_sparse_misses) == (3, 0)


async def test_only_the_touched_bytes_take_room(
    store: Store, put: Any, make_sample: MakeSample, tmp_path: Path
) -> None:
    entry = await put(store, range(10), num_bytes=1_000_000)
    engine = FetchEngine(store)
    cache = DiskShardCache(engine, tmp_path, budget_bytes="1GiB")
    reader = DatasetReader(Manifest(snapshot=1, schema=SCHEMA, shards=(entry,)), engine, cache)
    assert await reader.read(4) == make_sample(4, num_bytes=1_000_000)
    assert engine.stats.num_bytes < 1_010_000
    (file,) = cache._folder.files()
    assert file.size > 10_000_000
    assert file.num_bytes < 1_100_000
    assert file.file_name == f"{entry.digest}.sparse"
    assert (tmp_path / file.file_name).stat().st_mode & 0o777 == 0o600
    await cache.close()


async def test_processes_add_to_one_file(open_reader: Callable[..., DatasetReader], make_sample: MakeSample) -> None:
    one, two = open_reader(), open_reader()
    await one.read(21)
    await two.read(22)
    before = gets(one), gets(two)
    assert await one.read(22) == make_sample(22)
    assert await two.read(21) == make_sample(21)
    assert (gets(one), gets(two)) == before


@pytest.mark.slow
async def test_many_at_once(open_reader: Callable[..., DatasetReader], make_sample: MakeSample) -> None:
    readers = [open_reader() for _ in range(3)]
    for _ in range(2):
        results = await asyncio.gather(*(reader.read_many(range(100)) for reader in readers))
        assert all(result == [make_sample(number) for number in range(100)] for result in results)
    reader = open_reader()
    await reader.read_many(range(100))
    assert gets(reader) == 0


async def test_a_whole_shard_is_used_where_there_is_one_open_or_not(
    open_reader: Callable[..., DatasetReader], entries: list[ShardEntry], make_sample: MakeSample
) -> None:
    reader = open_reader()
    await reader.cache.acquire(entries[1])
    assert await reader.read(27) == make_sample(27)
    reader.cache.release(entries[1])
    assert await reader.read(28) == make_sample(28)
    assert gets(reader) == 1
    assert reader.cache.stats.num_sparse_hits == 3
    assert await open_reader().read(29) == make_sample(29)


async def test_a_shard_in_memory_is_used_too(store: Store, entries: list[ShardEntry], make_sample: MakeSample) -> None:
    engine = FetchEngine(store)
    cache = MemoryShardCache(engine)
    reader = DatasetReader(Manifest(snapshot=1, schema=SCHEMA, shards=tuple(entries)), engine, cache)
    await cache.acquire(entries[1])
    assert await reader.read(27) == make_sample(27)
    assert engine.stats.num_gets == 1
    cache.release(entries[1])
    assert await reader.read(28) == make_sample(28)
    assert engine.stats.num_gets == 2  # the tail was parsed already
    await cache.close()


async def test_the_whole_shard_takes_the_parts_place(
    open_reader: Callable[..., DatasetReader], entries: list[ShardEntry], tmp_path: Path
) -> None:
    reader = open_reader()
    await reader.read(27)
    await reader.cache.acquire(entries[1])
    reader.cache.release(entries[1])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{entries[1].digest}.shard"]


@pytest.mark.parametrize("where", ["payload", "tail", "journal", "cut in the journal", "cut in the data", "empty"])
async def test_damage_is_found_and_healed(
    open_reader: Callable[..., DatasetReader], entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path,
    where: str,
) -> None:  # fmt: skip
    await open_reader().read(25)
    entry = entries[1]
    path = tmp_path / "cache" / f"{entry.digest}.sparse"
    data = bytearray(path.read_bytes())
    match where:
        case "cut in the journal":
            os.truncate(path, entry.size + RECORD_BYTES + 7)
        case "cut in the data":
            os.truncate(path, entry.tail_start + 7)
        case "empty":
            os.truncate(path, 0)
        case _:
            at = {"payload": 32 + 5 * 1000 + 10, "tail": entry.tail_start + 9, "journal": entry.size + 3}[where]
            data[at] ^= 1
            path.write_bytes(data)
    reader = open_reader()
    for number in (25, 26, 25):
        assert await reader.read(number) == make_sample(number)
    assert 1 <= gets(reader) <= 3
    fresh = open_reader()
    for number in (25, 26):
        assert await fresh.read(number) == make_sample(number)
    assert gets(fresh) <= 1  # with a wrong value the whole file went, the tail in it as well


async def test_wrong_bytes_in_the_bucket_are_reported_and_not_kept(
    open_reader: Callable[..., DatasetReader], store: Store, entries: list[ShardEntry], make_sample: MakeSample
) -> None:
    right = bytes((await store.get(entries[0].key)).data)
    wrong = bytearray(right)
    wrong[40] ^= 1
    await store.put(entries[0].key, wrong)
    reader = open_reader()
    with pytest.raises(DatasetChanged, match="it was replaced, or damaged in storage") as caught:
        await reader.read(0)
    assert (caught.value.shard, caught.value.sample, caught.value.attempts) == (entries[0].key, 0, 2)
    assert (caught.value.start, caught.value.end) == (32, 1032)
    await store.put(entries[0].key, right)
    assert await reader.read(0) == make_sample(0)
    await store.put(entries[1].key, b"x" * entries[1].size)
    with pytest.raises(DatasetChanged) as broken:
        await reader.read(20)
    assert broken.value.attempts == 2


async def test_wrong_bytes_on_the_way_are_no_changed_data_set(
    open_reader: Callable[..., DatasetReader], store: Store, make_sample: MakeSample
) -> None:
    def flip(call: Call) -> Sequence[Fault]:
        # Of what is asked for below: the tail twice, then its chunk.
        return (FlipBit(8 * 40 + call.number),) if call.operation == "get" else ()

    faulty = FaultStore(store, flip)
    reader = open_reader(engine=FetchEngine(faulty))
    with pytest.raises(CorruptData) as caught:
        await reader.read(0)
    assert caught.value.attempts == 2
    assert len(faulty.calls) == 4


async def test_a_replaced_object_is_a_changed_data_set(
    open_reader: Callable[..., DatasetReader], store: Store, entries: list[ShardEntry]
) -> None:
    await store.put(entries[0].key, b"something else")
    with pytest.raises(DatasetChanged):
        await open_reader().read(0)


async def test_parts_count_in_the_budget_and_leave_when_room_is_needed(
    store: Store, put: Any, tmp_path: Path, make_sample: MakeSample
) -> None:
    entries = [await put(store, range(5 * n, 5 * n + 5), num_bytes=40_000) for n in range(12)]
    engine = FetchEngine(store)
    budget_bytes = 600_000
    cache = DiskShardCache(engine, tmp_path, budget_bytes=budget_bytes)
    reader = DatasetReader(Manifest(snapshot=1, schema=SCHEMA, shards=tuple(entries)), engine, cache)
    for number in [*range(60), *range(60)]:
        assert await reader.read(number) == make_sample(number, num_bytes=40_000)
        assert sum(file.num_bytes for file in cache._folder.files()) <= budget_bytes
    assert cache.stats.num_evicted > 0
    await cache.acquire(entries[0])
    cache.release(entries[0])
    assert sum(file.num_bytes for file in cache._folder.files()) <= budget_bytes
    await cache.close()


async def test_a_budget_for_nothing_keeps_nothing(
    open_reader: Callable[..., DatasetReader], make_sample: MakeSample, tmp_path: Path
) -> None:
    reader = open_reader(budget_bytes=100)
    assert await reader.read(3) == make_sample(3)
    assert list((tmp_path / "cache").iterdir()) == []


async def test_after_close_there_is_an_error(open_reader: Callable[..., DatasetReader]) -> None:
    reader = open_reader()
    await reader.cache.close()
    with pytest.raises(StoreClosed):
        await reader.read(0)


@pytest.mark.parametrize("num_samples", [1, 1000])
async def test_a_shard_that_contradicts_its_manifest_is_corrupt(
    num_samples: int, store: Store, entries: list[ShardEntry]
) -> None:
    engine = FetchEngine(store)
    cache = MemoryShardCache(engine)
    lying = replace(entries[0], num_samples=num_samples)
    reader = DatasetReader(Manifest(snapshot=1, schema=SCHEMA, shards=(lying,)), engine, cache)
    for read in (reader.read(num_samples - 1), reader.column("name"), reader.column("label")):
        with pytest.raises(CorruptData, match="the number of samples") as caught:
            await read
        assert caught.value.shard == lying.key
    await cache.close()
