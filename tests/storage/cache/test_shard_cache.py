from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage.cache import DiskShardCache, MemoryShardCache, OpenShard, ShardCache, UseSchedule
from concurrent_loader.storage.cache.folder import CachedFile
from concurrent_loader.storage.errors import DatasetChanged, DigestMismatch, NotFound
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import ShardEntry
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing.faults.fault_store import FaultStore, FlipBit, in_order

MakeSample = Callable[..., dict[str, object]]


@pytest.fixture(params=["memory", "disk"])
def cache(request: pytest.FixtureRequest, engine: FetchEngine, tmp_path: Path) -> ShardCache:
    return (
        MemoryShardCache(engine) if request.param == "memory" else DiskShardCache(engine, tmp_path, budget_bytes="1GiB")
    )


def disk(engine: FetchEngine, folder: Path, *, budget_bytes: int | str = "1GiB") -> DiskShardCache:
    return DiskShardCache(engine, folder, budget_bytes=budget_bytes)


def schedule(
    entries: list[ShardEntry], *, next_step: Sequence[float], last_step: Sequence[float] = (), shared: bool = False
) -> UseSchedule:
    """One in which this epoch's uses begin at once."""
    return UseSchedule(
        names=[entry.digest for entry in entries],
        first_step=np.zeros(len(entries)),
        last_step=np.array(last_step or [10.0] * len(entries)),
        next_step=np.array(next_step, dtype=float),
        shared=np.full(len(entries), shared),
    )


def images(shard: OpenShard, rows: list[int]) -> list[bytes]:
    return [bytes(data) for data in shard.payload("image", np.array(rows, np.int64))]


async def test_gives_verified_values_of_any_rows(
    cache: ShardCache, entries: list[ShardEntry], make_sample: MakeSample
) -> None:
    shard = await cache.acquire(entries[1])
    rows = np.array([7, 0, 19])
    assert images(shard, [7, 0, 19]) == [make_sample(20 + row)["image"] for row in (7, 0, 19)]
    assert list(shard.values("label", rows)) == [27, 20, 39]
    assert list(shard.values("name", rows)) == ["sample 27", "sample 20", "sample 39"]
    cache.release(entries[1])
    await cache.close()


async def test_small_values_that_are_close_together_are_read_at_once(
    engine: FetchEngine, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path, drive: Any
) -> None:
    cache = DiskShardCache(engine, tmp_path, budget_bytes="1GiB", drive=drive)
    shard = await cache.acquire(entries[1])
    for rows in ([*range(20)], [0, 2, 3, 5, 8], [5, 4, 4, 19, 0], []):
        before = drive.calls["read"]
        assert images(shard, rows) == [make_sample(20 + row)["image"] for row in rows]
        ascending = rows == sorted(rows)
        assert drive.calls["read"] - before == ((1 if rows else 0) if ascending else 5), rows
    cache.release(entries[1])
    await cache.close()


async def test_samples_that_straddle_transfer_chunks_are_whole(
    cache: ShardCache, big_entry: ShardEntry, make_sample: MakeSample, engine: FetchEngine
) -> None:
    shard = await cache.acquire(big_entry)
    assert images(shard, list(range(9))) == [make_sample(n, num_bytes=2_500_000)["image"] for n in range(9)]
    assert engine.stats.num_gets == 3
    cache.release(big_entry)
    await cache.close()


async def test_many_who_want_a_shard_cause_one_fetch(
    cache: ShardCache, entries: list[ShardEntry], engine: FetchEngine
) -> None:
    shards = await asyncio.gather(*(cache.acquire(entries[0]) for _ in range(10)))
    assert len(set(map(id, shards))) == 1
    assert engine.stats.num_gets == 1
    for _ in range(10):
        cache.release(entries[0])
    await cache.close()


async def test_shards_that_are_fetched_together_count_the_folder_once(
    engine: FetchEngine, entries: list[ShardEntry], tmp_path: Path, drive: Any
) -> None:
    cache = DiskShardCache(engine, tmp_path, budget_bytes="1GiB", drive=drive)
    before = drive.calls["names"]
    await asyncio.gather(*map(cache.acquire, entries))
    assert len(entries) > 2
    assert drive.calls["names"] == before + 1
    for entry in entries:
        cache.release(entry)
    await cache.close()


async def test_memory_forgets_what_nobody_needs(engine: FetchEngine, entries: list[ShardEntry]) -> None:
    cache = MemoryShardCache(engine)
    for _ in range(2):
        await cache.acquire(entries[0])
        cache.release(entries[0])
    assert engine.stats.num_gets == 2
    await cache.close()


async def test_a_file_serves_the_next_run_without_a_request(
    store: Store, entries: list[ShardEntry], tmp_path: Path, make_sample: MakeSample
) -> None:
    for expected_gets in (1, 0):
        engine = FetchEngine(store)
        cache = disk(engine, tmp_path)
        shard = await cache.acquire(entries[0])
        assert images(shard, [3]) == [make_sample(3)["image"]]
        cache.release(entries[0])
        await cache.close()
        assert engine.stats.num_gets == expected_gets


async def test_two_caches_on_one_folder_fetch_once(store: Store, entries: list[ShardEntry], tmp_path: Path) -> None:
    engines = [FetchEngine(store) for _ in range(4)]
    caches = [disk(engine, tmp_path) for engine in engines]
    await asyncio.gather(*(cache.acquire(entry) for cache in caches for entry in entries))
    assert sum(engine.stats.num_gets for engine in engines) == len(entries)
    for cache in caches:
        await cache.close()
    assert {path.suffix for path in tmp_path.iterdir()} == {".shard"}


@pytest.mark.parametrize("where", ["header", "payload", "tail", "footer"])
async def test_a_flipped_byte_in_a_file_is_found_and_healed(
    store: Store, entries: list[ShardEntry], tmp_path: Path, make_sample: MakeSample, where: str
) -> None:
    entry = entries[0]
    cache = disk(FetchEngine(store), tmp_path)
    await cache.acquire(entry)
    cache.release(entry)
    path = tmp_path / f"{entry.digest}.shard"
    data = bytearray(path.read_bytes())
    data[{"header": 3, "payload": 1500, "tail": entry.tail_start + 5, "footer": entry.size - 20}[where]] ^= 1
    path.write_bytes(data)

    shard = await cache.acquire(entry)
    if where == "payload":
        with pytest.raises(DigestMismatch) as caught:
            images(shard, list(range(20)))
        assert (caught.value.shard, caught.value.sample, caught.value.column) == (entry.key, 1, "image")
        shard = await cache.replace(entry, shard)
    assert images(shard, list(range(20))) == [make_sample(n)["image"] for n in range(20)]
    assert cache.stats.num_quarantined == 1
    cache.release(entry)
    await cache.close()


async def test_those_who_find_the_same_damage_get_one_replacement(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    engine = FetchEngine(store)
    cache = disk(engine, tmp_path)
    decayed = await cache.acquire(entries[0])
    await cache.acquire(entries[0])
    fresh = await asyncio.gather(*(cache.replace(entries[0], decayed) for _ in range(3)))
    assert len(set(map(id, fresh))) == 1
    assert fresh[0] is not decayed
    assert engine.stats.num_gets == 2
    assert len(images(decayed, [1])) == 1  # a thread may still be reading
    for _ in range(2):
        cache.release(entries[0])
    await cache.close()


async def test_files_leave_when_the_budget_is_full_but_never_while_in_use(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    cache = disk(FetchEngine(store), tmp_path, budget_bytes=2 * entries[0].size + 500)
    pinned = await cache.acquire(entries[0])
    for entry in entries[1:]:
        await cache.acquire(entry)
        cache.release(entry)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * entries[0].size + 500
    assert (tmp_path / f"{entries[0].digest}.shard").exists()
    assert len(images(pinned, [0])) == 1
    assert cache.stats.num_evicted == 3
    cache.release(entries[0])
    await cache.close()


async def test_the_farthest_next_use_leaves_first(store: Store, entries: list[ShardEntry], tmp_path: Path) -> None:
    cache = disk(FetchEngine(store), tmp_path, budget_bytes=3 * entries[0].size + 500)
    await cache.set_schedule(lambda: schedule(entries, next_step=[50, 900, 100, 60, 0]))
    for entry in entries[:3]:
        await cache.acquire(entry)
        cache.release(entry, done_for_epoch=True)
    await cache.acquire(entries[3])
    assert not (tmp_path / f"{entries[1].digest}.shard").exists()
    cache.release(entries[3])
    await cache.close()


async def test_what_does_not_fit_is_kept_in_memory(
    store: Store, entries: list[ShardEntry], tmp_path: Path, make_sample: MakeSample
) -> None:
    cache = disk(FetchEngine(store), tmp_path, budget_bytes=10)
    shard = await cache.acquire(entries[0])
    assert images(shard, [5]) == [make_sample(5)["image"]]
    assert list(tmp_path.iterdir()) == []
    assert cache.stats.num_bypassed == 1
    cache.release(entries[0])
    await cache.close()


async def test_a_full_drive_is_reported_once_and_gone_round(
    store: Store, entries: list[ShardEntry], tmp_path: Path, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("concurrent_loader.storage.cache.blocking_io.os.pwrite", full)
    cache = disk(FetchEngine(store), tmp_path)
    with caplog.at_level(logging.WARNING):
        for number, entry in enumerate(entries):
            shard = await cache.acquire(entry)
            assert images(shard, [5]) == [make_sample(20 * number + 5)["image"]]
            cache.release(entry)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
    await cache.close()


async def test_a_replaced_object_is_a_changed_data_set(
    cache: ShardCache, store: Store, entries: list[ShardEntry]
) -> None:
    await store.put(entries[0].key, b"something else")
    with pytest.raises(DatasetChanged) as caught:
        await cache.acquire(entries[0])
    assert caught.value.shard == entries[0].key
    await cache.close()


async def test_wrong_bytes_in_the_bucket_are_an_error_and_are_not_kept(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    data = bytearray((await store.get(entries[0].key)).data)
    data[100] ^= 1
    await store.put(entries[0].key, data)
    cache = disk(FetchEngine(store), tmp_path)
    with pytest.raises(DatasetChanged, match="it was replaced, or damaged in storage") as caught:
        await cache.acquire(entries[0])
    error = caught.value
    assert (error.url, error.key, error.shard, error.attempts) == (store.url, entries[0].key, entries[0].key, 2)
    assert (error.start, error.end) == (0, entries[0].size)
    assert isinstance(error.__cause__, DigestMismatch)
    assert list(tmp_path.iterdir()) == []
    await cache.close()


async def test_bytes_that_are_damaged_on_the_way_time_and_again_are_no_changed_data_set(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    faulty = FaultStore(store, in_order([FlipBit(1), FlipBit(2)]))
    cache = disk(FetchEngine(faulty), tmp_path)
    with pytest.raises(DigestMismatch) as caught:
        await cache.acquire(entries[0])
    assert (caught.value.key, caught.value.start) == (entries[0].key, 0)
    assert list(tmp_path.iterdir()) == []
    await cache.close()


async def test_a_missing_shard_is_named(cache: ShardCache, store: Store, entries: list[ShardEntry]) -> None:
    await store.delete(entries[0].key)
    with pytest.raises(NotFound) as caught:
        await cache.acquire(entries[0])
    assert caught.value.key == entries[0].key
    await cache.close()


async def test_cancelling_leaves_no_pin_lock_file_or_task(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    started, never = asyncio.Event(), asyncio.Event()
    honest = store._get

    async def hang(*args: object) -> object:
        started.set()
        await never.wait()
        return await honest(*args)  # type: ignore[arg-type]

    store._get = hang  # type: ignore[method-assign, assignment]
    cache = disk(FetchEngine(store), tmp_path)
    task = asyncio.create_task(cache.acquire(entries[0]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
    assert list(tmp_path.iterdir()) == []
    never.set()
    await cache.acquire(entries[0])
    cache.release(entries[0])
    await cache.close()


async def test_a_waiter_for_another_process_can_be_cancelled(
    store: Store, entries: list[ShardEntry], tmp_path: Path
) -> None:
    cache, other = disk(FetchEngine(store), tmp_path), disk(FetchEngine(store), tmp_path)
    lock = other._folder.lock_shard(entries[0].digest, wait=False)
    assert lock is not None
    waiting = asyncio.create_task(cache.acquire(entries[0]))
    while "cache-lock" not in {thread.name for thread in threading.enumerate()}:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    other._folder.unlock_shard(entries[0].digest, lock)
    for thread in threading.enumerate():
        if thread.name == "cache-lock":
            thread.join()
    assert list(tmp_path.glob("*.lock")) == []
    await cache.close()
    await other.close()


@pytest.mark.slow
async def test_folders_of_many_files_are_counted_now_and_then_only(
    store: Store, put: Callable[..., Awaitable[ShardEntry]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is room, while files must go, and while newcomers are not worth it."""
    entries = [await put(store, range(n, n + 1), num_bytes=10) for n in range(1100)]
    size = max(entry.size for entry in entries)
    cache = disk(FetchEngine(store), tmp_path, budget_bytes=512 * size)
    counted = 0
    real = cache._folder.files

    def files() -> list[CachedFile]:
        nonlocal counted
        counted += 1
        return real()

    monkeypatch.setattr(cache._folder, "files", files)

    async def use(some: list[ShardEntry]) -> None:
        nonlocal counted
        counted = 0
        for entry in some:
            await cache.acquire(entry)
            cache.release(entry, done_for_epoch=True)

    await use(entries[:512])
    assert counted <= 512 // 2 + 1
    assert cache.stats.num_evicted < 5
    await use(entries[512:600])
    assert counted <= 88 // 2 + 1
    assert 85 <= cache.stats.num_evicted <= 95
    steps = [float(n) for n in range(1100)]
    await cache.set_schedule(lambda: schedule(entries, next_step=steps))
    cache.set_step(11)
    bypassed = cache.stats.num_bypassed
    await use(entries[600:640])  # wanted later than all that are there
    assert cache.stats.num_bypassed >= bypassed + 38  # but for what was granted before
    assert counted <= 40 // 2
    assert sum(file.num_bytes for file in real()) <= 512 * size * (1 + 1 / 256)
    await cache.close()
