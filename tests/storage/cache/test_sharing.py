"""One folder, many processes: what one fetched the others do not, what one uses the others do not delete."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage.cache import DiskShardCache, UseSchedule
from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.lock_wait import LockWaiter
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.stores.store import Store

MakeSample = Callable[..., dict[str, Any]]

READER = """
import asyncio, json, sys
import numpy as np
from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

async def main(url, options, folder, budget, number, rounds):
    async with open_store(url, **options) as store:
        engine = FetchEngine(store)
        manifest = await load_manifest(engine)
        before = engine.stats.num_gets
        cache = DiskShardCache(engine, folder, budget_bytes=budget)
        most = num_samples = 0
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        slots = asyncio.Semaphore(4)

        def held_bytes():
            lock = cache._folder.lock_room(wait=True)  # nobody makes room, or takes it, while the files are counted
            try:
                return sum(file.num_bytes for file in cache._folder.files())
            finally:
                cache._folder.drive.close(lock)

        async def read(entry):
            nonlocal most, num_samples
            async with slots:
                shard = await cache.acquire(entry)
                values = shard.payload("data", np.arange(entry.num_samples))
                num_samples += len(values)
                cache.release(entry)
                if budget < manifest.num_bytes:
                    most = max(most, await asyncio.to_thread(held_bytes))

        for _ in range(rounds):
            shards = manifest.shards[number:] + manifest.shards[:number]
            await asyncio.gather(*map(read, shards))
        print(json.dumps({"gets": engine.stats.num_gets - before, "most": most, "samples": num_samples,
                          "hits": cache.stats.num_hits, "bypassed": cache.stats.num_bypassed}), flush=True)
        await cache.close()

asyncio.run(main(**json.loads(sys.argv[1])))
"""


def run_readers(count: int, **arguments: Any) -> list[dict[str, int]]:
    """Starts processes that read the same data set at the same time; returns what each of them says at its end."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", READER, json.dumps({**arguments, "number": number})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def write_dataset(url: str, options: dict[str, str], *, num_samples: int = 400) -> tuple[int, int]:
    """Returns the number of shards and their bytes."""
    draw = np.random.default_rng(1)
    with ShardWriter(url, columns={"data": "bytes"}, shard_size="16KiB", storage_options=options) as writer:
        for _ in range(num_samples):
            writer.write({"data": draw.bytes(1500)})

    async def count() -> tuple[int, int]:
        async with open_store(url, **options) as store:
            manifest = await load_manifest(store)
            return len(manifest.shards), manifest.num_bytes

    return asyncio.run(count())


@pytest.mark.s3
def test_eight_processes_download_a_data_set_once(s3_bucket: Any, tmp_path: Path) -> None:
    num_shards, num_bytes = write_dataset(f"{s3_bucket.url}/data", s3_bucket.storage_options)
    assert num_shards >= 30
    told = run_readers(
        8, url=f"{s3_bucket.url}/data", options=s3_bucket.storage_options, folder=str(tmp_path), budget=2 * num_bytes,
        rounds=1,
    )  # fmt: skip
    assert [each["samples"] for each in told] == [400] * 8
    assert sum(each["gets"] for each in told) <= 1.02 * num_shards  # manifests apart, which each process reads
    assert sum(each["hits"] for each in told) == 7 * num_shards
    assert {path.suffix for path in tmp_path.iterdir()} == {".shard"}


@pytest.mark.processes
def test_eight_processes_stay_within_one_budget(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    _, num_bytes = write_dataset(url, {}, num_samples=200)
    budget = num_bytes // 4
    told = run_readers(8, url=url, options={}, folder=str(tmp_path / "cache"), budget=budget, rounds=2)
    assert [each["samples"] for each in told] == [400] * 8
    assert max(each["most"] for each in told) <= budget
    folder = CacheFolder(tmp_path / "cache")
    assert 0 < sum(file.num_bytes for file in folder.files()) <= budget
    folder.close()


HOLDER = """
import os, sys
from concurrent_loader.storage.cache.folder import CacheFolder
folder = CacheFolder(sys.argv[1])
lock = folder.lock_room(wait=False) if sys.argv[2] == "room" else folder.lock_shard(sys.argv[2], wait=False)
assert lock is not None
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(folder: Path, lock: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock."""
    command = [sys.executable, "-c", HOLDER, str(folder), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def lock_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cache-lock"]


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


async def lock_threads_end() -> None:
    for thread in lock_threads():
        await asyncio.to_thread(thread.join, 20)
    assert not lock_threads()


class WatchedDrive(Drive):
    """Says when somebody is about to wait for another's lock."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> bool:
        if wait:
            self.waits.set()
        return super().lock(fd, shared=shared, wait=wait)


@pytest.mark.processes
@pytest.mark.parametrize("lock", ["shard", "room"])
async def test_when_the_holder_of_a_lock_dies_the_waiter_takes_over(
    store: Store, entries: list[ShardEntry], tmp_path: Path, no_leaks: None, lock: str
) -> None:
    drive = WatchedDrive()
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes="1GiB", drive=drive)
    with holder(tmp_path, entries[0].digest if lock == "shard" else "room") as process:
        waiting = asyncio.create_task(cache.acquire(entries[0]))
        await happens(drive.waits)
        assert not waiting.done()
        process.send_signal(signal.SIGKILL)
        shard = await waiting
    assert shard.cached
    assert cache.stats.num_bypassed == 0
    cache.release(entries[0])
    await cache.close()
    assert {path.suffix for path in tmp_path.iterdir()} == {".shard"}


@pytest.mark.processes
@pytest.mark.parametrize("lock", ["shard", "room"])
async def test_a_holder_that_hangs_is_gone_round(
    store: Store, entries: list[ShardEntry], tmp_path: Path, no_leaks: None, caplog: pytest.LogCaptureFixture, lock: str
) -> None:
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes="1GiB", lock_timeout_s=0.05)
    with holder(tmp_path, entries[0].digest if lock == "shard" else "room") as process:
        process.send_signal(signal.SIGSTOP)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                shard = await cache.acquire(entries[0])
                assert not shard.cached
                cache.release(entries[0])
        assert len(caplog.records) == 1
        assert "made no progress for 0.05 s" in caplog.text
        assert len(lock_threads()) == 1
        process.send_signal(signal.SIGKILL)
        await lock_threads_end()
    shard = await cache.acquire(entries[0])
    assert shard.cached
    cache.release(entries[0])
    await cache.close()


async def test_who_fetches_shows_signs_of_life(
    store: Store, big_entry: ShardEntry, tmp_path: Path, drive: Any, no_leaks: None
) -> None:
    for step_s, num_beats in ((10.0, 3), (0.0, 0)):
        seconds = itertools.count(0.0, step_s)
        cache = DiskShardCache(
            FetchEngine(store), tmp_path / str(step_s), budget_bytes="1GiB", drive=drive, clock=seconds.__next__
        )
        drive.calls.clear()
        await cache.acquire(big_entry)
        assert drive.calls["touch"] >= 1 + num_beats  # once when the lock is taken, then with the pieces that arrive
        assert drive.calls["touch"] == 1 or step_s
        cache.release(big_entry)
        await cache.close()


class TestWaiting:
    """`LockWaiter` alone, with a lock that is an event."""

    async def test_who_makes_progress_is_waited_for(self) -> None:
        free, seen = threading.Event(), 0

        def pulse() -> int:
            nonlocal seen
            seen += 1
            if seen == 4:
                free.set()
            return seen

        def take() -> int:
            free.wait()
            return 7

        assert await LockWaiter(timeout_s=0.01).wait("a", take, lambda lock: None, pulse) == 7
        assert seen >= 4

    async def test_what_comes_too_late_is_given_back(self) -> None:
        free, given_back = threading.Event(), threading.Event()
        waiter = LockWaiter(timeout_s=0.01)

        def take() -> int:
            free.wait()
            return 7

        def give_back(lock: int) -> None:
            assert lock == 7
            given_back.set()

        assert await waiter.wait("a", take, give_back) is None
        assert await waiter.wait("a", lambda: 1, give_back) is None  # nobody waits twice in vain
        free.set()
        await happens(given_back)
        await lock_threads_end()
        assert await waiter.wait("a", lambda: 1, give_back) == 1

    async def test_who_cancels_gives_back(self) -> None:
        waits, free, given_back = threading.Event(), threading.Event(), threading.Event()

        def take() -> int:
            waits.set()
            free.wait()
            return 7

        task = asyncio.create_task(LockWaiter(timeout_s=60).wait("a", take, lambda lock: given_back.set()))
        await happens(waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()
        await happens(given_back)

    async def test_an_error_is_the_waiters(self) -> None:
        def take() -> int:
            raise OSError(24, "Too many open files")

        with pytest.raises(OSError, match="Too many"):
            await LockWaiter(timeout_s=60).wait("a", take, lambda lock: None)

    async def test_a_pulse_that_cannot_be_felt_is_the_waiters_error_and_leaves_no_lock_taken(self) -> None:
        free, given_back = threading.Event(), threading.Event()

        def take() -> int:
            free.wait()
            return 7

        def pulse() -> object:
            raise OSError(5, "Input/output error")

        with pytest.raises(OSError, match="Input/output"):
            await LockWaiter(timeout_s=60).wait("a", take, lambda lock: given_back.set(), pulse)
        free.set()
        await happens(given_back)


async def test_what_another_process_uses_is_not_evicted(
    store: Store, entries: list[ShardEntry], tmp_path: Path, no_leaks: None
) -> None:
    budget = 2 * entries[0].size + 500
    one, two = (DiskShardCache(FetchEngine(store), tmp_path, budget_bytes=budget) for _ in range(2))
    await one.acquire(entries[0])
    for entry in entries[1:]:
        await two.acquire(entry)
        two.release(entry)
    assert (tmp_path / f"{entries[0].digest}.shard").exists()
    assert two.stats.num_bypassed == 0
    one.release(entries[0])
    for entry in entries[1:]:
        await two.acquire(entry)
    assert not (tmp_path / f"{entries[0].digest}.shard").exists()
    await one.close()
    await two.close()


async def test_nothing_is_kept_that_is_wanted_later_than_what_would_have_to_go(
    store: Store, entries: list[ShardEntry], tmp_path: Path, no_leaks: None
) -> None:
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes=2 * entries[0].size + 500)
    next_step = np.array([50.0, 60.0, 70.0, 55.0, 40.0])
    zeros, last, shared = np.zeros(5), np.full(5, 10.0), np.array([False, False, False, False, False])
    names = [entry.digest for entry in entries]
    await cache.set_schedule(lambda: UseSchedule(names, zeros, last, next_step, shared))
    for entry in entries[:3]:
        await cache.acquire(entry)
        cache.release(entry, done_for_epoch=True)
    assert cache.stats.num_bypassed == 1  # the third is wanted after the first two
    assert {path.stem for path in tmp_path.iterdir()} == {names[0], names[1]}
    await cache.acquire(entries[3])
    cache.release(entries[3], done_for_epoch=True)
    assert {path.stem for path in tmp_path.iterdir()} == {names[0], names[3]}
    cache.set_step(11)  # the epoch is over for all of them
    await cache.acquire(entries[4])
    assert {path.stem for path in tmp_path.iterdir()} == {names[0], names[4]}
    assert os.listdir(tmp_path)
    await cache.close()
