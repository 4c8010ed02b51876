"""The drive fails in every way that it can; the data goes on."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage.cache import DiskShardCache, MemoryShardCache, OpenShard, open_shard_cache
from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.cache.folder import FileKind, file_name_of
from concurrent_loader.storage.errors import ConfigurationError, CorruptData
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.manifest.manifest import ShardEntry
from concurrent_loader.storage.stores.store import Store

pytestmark = pytest.mark.usefixtures("no_leaks")

MakeSample = Callable[..., dict[str, Any]]
ROWS = np.arange(20)


@pytest.fixture
async def cache(store: Store, tmp_path: Path, drive: Any) -> AsyncIterator[DiskShardCache]:
    cache = DiskShardCache(FetchEngine(store), tmp_path / "cache", budget_bytes="1GiB", drive=drive)
    yield cache
    await cache.close()


async def read_all(cache: DiskShardCache | MemoryShardCache, entry: ShardEntry) -> list[bytes]:
    """All images of a shard, healed as the loader heals them."""
    shard = await cache.acquire(entry)
    try:
        for _ in range(3):
            try:
                return [bytes(data) for data in shard.payload("image", ROWS)]
            except CorruptData:
                if not shard.cached:
                    raise
                shard = await cache.replace(entry, shard)
        raise AssertionError("it is not healed")
    finally:
        cache.release(entry)


async def read_one(cache: DiskShardCache, entry: ShardEntry, row: int) -> bytes:
    index = await cache.read(
        entry, entry.tail_start, entry.size,
        lambda tail: ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key),
    )  # fmt: skip
    span = index.payload_range(row, "image")
    value = await cache.read(entry, span.start, span.end, lambda data: index.decode_value("image", row, data))
    assert isinstance(value, bytes)
    return value


def expected(make_sample: MakeSample, shard: int) -> list[bytes]:
    return [make_sample(20 * shard + row)["image"] for row in range(20)]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


FAULTS = [
    ("allocate", errno.ENOSPC),
    ("allocate", errno.EDQUOT),
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("write", errno.EFBIG),
    ("truncate", errno.ENOSPC),
    ("append", errno.ENOSPC),
    ("rename", errno.EIO),
    ("open", errno.EMFILE),
    ("open", errno.ENFILE),
    ("open", errno.EACCES),
    ("open", errno.EROFS),
    ("read", errno.EIO),
    ("touch", errno.EROFS),
    ("remove", errno.EROFS),
    ("lock", errno.ENOLCK),
    ("open_again", errno.EMFILE),
    ("open_again", errno.EIO),
    ("names", errno.EIO),
    ("names", errno.ENOMEM),
]


@pytest.mark.parametrize(("method", "code"), FAULTS, ids=[f"{m}-{errno.errorcode[c]}" for m, c in FAULTS])
async def test_a_drive_that_fails_is_gone_round_and_said_once(
    cache: DiskShardCache, entries: list[ShardEntry], drive: Any, make_sample: MakeSample, method: str, code: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    drive.faults[method] = code
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for number, entry in enumerate(entries):
                assert await read_one(cache, entry, 3) == expected(make_sample, number)[3]
                assert await read_all(cache, entry) == expected(make_sample, number)
    assert len(warnings_of(caplog)) <= 2  # one for the errno, one for files that cannot be read back
    assert len(set(warnings_of(caplog))) == len(warnings_of(caplog))
    if method != "touch":
        assert drive.calls[method]
    drive.faults.clear()
    for number, entry in enumerate(entries):
        assert await read_all(cache, entry) == expected(make_sample, number)
    cache._folder.sweep()
    assert {path.suffix for path in cache._folder.root.iterdir()} <= {".shard", ".sparse"}


@pytest.mark.parametrize(("method", "code"), FAULTS, ids=[f"{m}-{errno.errorcode[c]}" for m, c in FAULTS])
async def test_a_drive_that_fails_once_in_a_while_is_gone_round(
    cache: DiskShardCache, entries: list[ShardEntry], drive: Any, make_sample: MakeSample, method: str, code: int
) -> None:
    for skipped in range(6):
        counted = 0

        def before(called: str, skipped: int = skipped) -> None:
            nonlocal counted
            counted += called == method
            drive.faults = {method: code} if called == method and counted == skipped + 1 else {}

        drive.before = before
        for number, entry in enumerate(entries):
            assert await read_one(cache, entry, skipped) == expected(make_sample, number)[skipped]
            assert await read_all(cache, entry) == expected(make_sample, number)
        drive.before = lambda called: None
        drive.faults = {}
        cache._folder.drive.before = lambda called: None  # type: ignore[attr-defined]
        for file in cache._folder.files():
            cache._folder.evict(file)


@pytest.mark.parametrize("method", ["open_again", "names", "status_of"])
async def test_a_folder_whose_files_cannot_be_counted_is_gone_round(
    store: Store, entries: list[ShardEntry], tmp_path: Path, drive: Any, make_sample: MakeSample,
    caplog: pytest.LogCaptureFixture, method: str,
) -> None:  # fmt: skip
    """Nobody may take room without knowing what is there; what is there is read all the same."""
    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes=2 * entries[0].size + 500, drive=drive)
    for number in (0, 1):
        assert await read_all(cache, entries[number]) == expected(make_sample, number)
    drive.faults[method] = errno.EIO
    with caplog.at_level(logging.WARNING):
        for number, entry in enumerate(entries):
            assert await read_all(cache, entry) == expected(make_sample, number)
    assert len(warnings_of(caplog)) == 1
    assert (cache.stats.num_hits, cache.stats.num_bypassed) == (2, 3)
    assert {path.name for path in tmp_path.iterdir()} == {f"{entry.digest}.shard" for entry in entries[:2]}
    drive.faults.clear()
    assert await read_all(cache, entries[4]) == expected(make_sample, 4)
    assert (tmp_path / f"{entries[4].digest}.shard").exists()
    await cache.close()


async def test_a_folder_that_is_deleted_under_us_is_made_again(
    cache: DiskShardCache, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path
) -> None:
    held = await cache.acquire(entries[0])
    await read_one(cache, entries[1], 5)
    shutil.rmtree(tmp_path / "cache")
    assert [bytes(data) for data in held.payload("image", ROWS)] == expected(make_sample, 0)
    for number, entry in enumerate(entries):
        assert await read_one(cache, entry, 5) == expected(make_sample, number)[5]
        assert await read_all(cache, entry) == expected(make_sample, number)
    cache.release(entries[0])
    assert await read_all(cache, entries[0]) == expected(make_sample, 0)
    assert {path.name for path in (tmp_path / "cache").iterdir()} >= {f"{entry.digest}.shard" for entry in entries}
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


async def test_a_folder_that_is_deleted_while_a_shard_is_fetched_costs_nothing(
    cache: DiskShardCache, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path, drive: Any
) -> None:
    def before(method: str) -> None:
        if method == "write":
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    drive.before = before
    shard = await cache.acquire(entries[0])
    assert [bytes(data) for data in shard.payload("image", ROWS)] == expected(make_sample, 0)
    assert cache.fetcher.engine.stats.num_gets == 1  # the file has lost its name, not its bytes
    cache.release(entries[0])


@pytest.mark.parametrize("what", ["link", "dangling link", "folder", "pipe"])
@pytest.mark.parametrize("suffix", [".shard", ".sparse", ".lock"])
async def test_something_foreign_in_a_files_place_is_gone_round_and_left_alone(
    cache: DiskShardCache, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path, what: str, suffix: str
) -> None:
    place = tmp_path / "cache" / f"{entries[0].digest}{suffix}"
    (tmp_path / "precious").write_bytes(b"precious")
    match what:
        case "link":
            place.symlink_to(tmp_path / "precious")
        case "dangling link":
            place.symlink_to(tmp_path / "nowhere")
        case "folder":
            place.mkdir()
            (place / "precious").write_bytes(b"precious")
        case _:
            os.mkfifo(place)
    for _ in range(2):
        assert await read_one(cache, entries[0], 7) == expected(make_sample, 0)[7]
        assert await read_all(cache, entries[0]) == expected(make_sample, 0)
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    if suffix == ".shard":
        assert place.is_symlink() or place.is_dir() or place.is_fifo()


@pytest.mark.parametrize("damage", ["flipped", "cut", "cut while open", "emptied", "grown"])
async def test_a_damaged_file_is_healed(
    cache: DiskShardCache, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path, damage: str
) -> None:
    entry = entries[0]
    assert await read_all(cache, entry) == expected(make_sample, 0)
    path = tmp_path / "cache" / file_name_of(entry.digest, FileKind.SHARD)
    shard: OpenShard | None = await cache.acquire(entry) if damage == "cut while open" else None
    data = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            data[500] ^= 4
            path.write_bytes(data)
        case "cut" | "cut while open":
            os.truncate(path, 700)
        case "emptied":
            os.truncate(path, 0)
        case _:
            path.write_bytes(data + b"more")
    assert await read_one(cache, entry, 0) == expected(make_sample, 0)[0]
    assert await read_all(cache, entry) == expected(make_sample, 0)
    if shard is not None:
        cache.release(entry)
    assert await read_all(cache, entry) == expected(make_sample, 0)
    assert path.stat().st_size == entry.size


async def test_a_file_that_decays_again_and_again_is_given_up(
    store: Store, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path
) -> None:
    class Flipping(Drive):
        def read(self, fd: int, num_bytes: int, offset: int) -> bytes:
            data = super().read(fd, num_bytes, offset)
            return bytes([data[0] ^ 1]) + data[1:] if 32 < offset < entries[0].tail_start else data

    cache = DiskShardCache(FetchEngine(store), tmp_path, budget_bytes="1GiB", drive=Flipping())
    for _ in range(3):
        assert await read_all(cache, entries[0]) == expected(make_sample, 0)
        assert await read_one(cache, entries[0], 4) == expected(make_sample, 0)[4]
    await cache.close()


@pytest.mark.processes
def test_descriptors_may_run_out(tmp_path: Path) -> None:
    """Forty shards are held open by a process that may have thirty descriptors."""
    script = """
import asyncio, resource, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from conftest import put_shard, sample
from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.stores.backends.memory import MemoryStore

async def main():
    async with MemoryStore("memory://x") as store:
        entries = [await put_shard(store, range(3 * n, 3 * n + 3)) for n in range(40)]
        cache = DiskShardCache(FetchEngine(store), sys.argv[2], budget_bytes="1GiB")
        await asyncio.gather(*(asyncio.to_thread(int) for _ in range(8)))
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
        slots = asyncio.Semaphore(3)  # at once; what was acquired stays open

        async def acquire(entry):
            async with slots:
                return await cache.acquire(entry)

        shards = await asyncio.gather(*map(acquire, entries))
        for number, shard in enumerate(shards):
            assert [bytes(d) for d in shard.payload("image", np.arange(3))] == [
                sample(3 * number + row)["image"] for row in range(3)], number
        assert 0 < cache.stats.num_bypassed < 40, cache.stats
        for entry in entries:
            cache.release(entry)
        await cache.close()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(Path(__file__).parent), str(tmp_path / "cache")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("failed (EMFILE") == 1


@pytest.mark.processes
def test_files_may_not_grow_beyond_a_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the system refuses what a full drive would refuse, on any machine."""
    script = """
import asyncio, resource, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from conftest import put_shard, sample
from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.stores.backends.memory import MemoryStore

async def main():
    async with MemoryStore("memory://x") as store:
        entries = [await put_shard(store, range(3 * n, 3 * n + 3 + 9 * (n % 2))) for n in range(6)]
        cache = DiskShardCache(FetchEngine(store), sys.argv[2], budget_bytes="1GiB")
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        for number, entry in enumerate(entries):
            shard = await cache.acquire(entry)
            rows = np.arange(entry.num_samples)
            assert [bytes(d) for d in shard.payload("image", rows)] == [
                sample(3 * number + row)["image"] for row in rows.tolist()]
            cache.release(entry)
        assert cache.stats.num_bypassed == 3, cache.stats
        await cache.close()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(Path(__file__).parent), str(tmp_path / "cache")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("failed (EFBIG") == 1
    assert sum(path.suffix == ".shard" for path in (tmp_path / "cache").iterdir()) == 3


@pytest.fixture
def small_folder(tmp_path: Path, drive: Any) -> Iterator[Path]:
    """A real file system of 1 MiB where the test may mount one; elsewhere a drive that is full after as much."""
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    if _mounted(folder):
        yield folder
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    taken = 0

    def allocate(fd: int, num_bytes: int) -> None:
        nonlocal taken
        taken += num_bytes
        if taken > 1024 * 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        Drive.allocate(drive, fd, num_bytes)

    drive.allocate = allocate
    yield folder


def _mounted(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.processes
async def test_a_full_drive(store: Store, make_sample: MakeSample, small_folder: Path, put: Any, drive: Any) -> None:
    entries = [await put(store, range(20 * n, 20 * n + 20), num_bytes=15_000) for n in range(5)]
    engine = FetchEngine(store)
    cache = DiskShardCache(engine, small_folder, budget_bytes="1GiB", drive=drive)
    for number, entry in enumerate(entries):
        images = [make_sample(20 * number + row, num_bytes=15_000)["image"] for row in range(20)]
        assert await read_one(cache, entry, 2) == images[2]
        gets = engine.stats.num_gets
        assert await read_all(cache, entry) == images
        assert engine.stats.num_gets == gets + 1  # a full drive shows before the transfer, not after it
    assert cache.stats.num_bypassed == 2
    assert await read_all(cache, entries[0])
    assert cache.stats.num_hits == 1
    await cache.close()


class TestOpening:
    async def test_a_folder_that_cannot_be_used_is_said_once_and_done_without(
        self, store: Store, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        (tmp_path / "file").write_bytes(b"")
        with caplog.at_level(logging.WARNING):
            cache = open_shard_cache(FetchEngine(store), tmp_path / "file" / "cache", required=False)
        assert isinstance(cache, MemoryShardCache)
        assert len(warnings_of(caplog)) == 1
        assert await read_all(cache, entries[0]) == expected(make_sample, 0)
        await cache.close()

    async def test_a_folder_that_cannot_be_used_is_an_error_unless_it_is_not_required(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ConfigurationError, match=r"Not a directory.*cache_required=False.*/file/cache"):
            open_shard_cache(FetchEngine(store), tmp_path / "file" / "cache")
        monkeypatch.setattr(Drive, "may_write", lambda self, folder: False)
        with pytest.raises(ConfigurationError, match="files cannot be created in it"):
            open_shard_cache(FetchEngine(store), tmp_path / "cache")
        read_only = open_shard_cache(FetchEngine(store), tmp_path / "cache", required=False)
        assert isinstance(read_only, DiskShardCache)
        await read_only.close()

    async def test_another_users_folder_is_not_used(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cache").mkdir(mode=0o700)
        euid = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: euid + 1)
        with caplog.at_level(logging.WARNING):
            cache = open_shard_cache(FetchEngine(store), tmp_path / "cache", required=False)
        assert isinstance(cache, MemoryShardCache)
        assert "another user" in caplog.text
        assert list((tmp_path / "cache").iterdir()) == []

    async def test_a_folder_that_others_may_write_into_is_refused(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o770)
        with pytest.raises(ConfigurationError, match="chmod go-w"):
            open_shard_cache(FetchEngine(store), tmp_path / "cache")

    async def test_by_default_half_of_the_drive_counting_what_is_cached(
        self, store: Store, entries: list[ShardEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = [10 * 2**20]

        class Status:
            f_frsize = 1

            @property
            def f_bavail(self) -> int:
                return free[0]

        monkeypatch.setattr("concurrent_loader.storage.cache.open_cache.os.statvfs", lambda path: Status())
        cache = open_shard_cache(FetchEngine(store), tmp_path / "cache")
        assert isinstance(cache, DiskShardCache)
        assert cache.budget.budget_bytes == 5 * 2**20
        await cache.acquire(entries[0])
        cache.release(entries[0])
        await cache.close()
        free[0] -= entries[0].size
        again = open_shard_cache(FetchEngine(store), tmp_path / "cache")
        assert isinstance(again, DiskShardCache)
        assert again.budget.budget_bytes == 5 * 2**20
        await again.close()


async def test_a_read_only_folder_is_read(
    store: Store, entries: list[ShardEntry], make_sample: MakeSample, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly(Drive):
        def _refuse(self, *args: Any, **options: Any) -> Any:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        rename = remove = touch = write = append = allocate = truncate = _refuse

        def open(self, name: str, flags: int, *, folder: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._refuse()
            return super().open(name, flags, folder=folder)

    for drive, num_gets in ((Drive(), 4), (ReadOnly(), 1)):
        engine = FetchEngine(store)
        cache = DiskShardCache(engine, tmp_path, budget_bytes="1GiB", drive=drive)
        assert await read_one(cache, entries[1], 3) == expected(make_sample, 1)[3]
        for number in (0, 1)[: 1 + (num_gets == 4)]:
            assert await read_all(cache, entries[number]) == expected(make_sample, number)
        if num_gets == 1:
            with caplog.at_level(logging.WARNING):
                assert await read_all(cache, entries[2]) == expected(make_sample, 2)
        assert engine.stats.num_gets == num_gets
        await cache.close()
    assert len(warnings_of(caplog)) == 1
