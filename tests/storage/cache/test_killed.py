"""A cache whose processes are killed, two hundred times, at any instruction: nothing is lost, stuck or half there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.maintenance import verify_cache
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.stores.backends.local import LocalStore

MakeSample = Callable[..., dict[str, Any]]
NUM_SHARDS, PER_SHARD = 10, 6
SCHEMA = {"image": "bytes", "label": "int64", "name": "str"}


@pytest.mark.processes
def test_two_hundred_kills(tmp_path: Path, put: Any, make_sample: MakeSample) -> None:
    data, folder = tmp_path / "data", tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killed_readers.py"), str(data), str(folder), "200"],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["wrong"] == 0, done.stderr
    assert outcome["killed"] >= 200

    cache_folder = CacheFolder(folder)
    assert verify_cache(cache_folder).problems == ()
    cache_folder.close()
    asyncio.run(_read_everything(data, folder, put, make_sample))
    assert {path.suffix for path in folder.iterdir()} <= {".shard", ".sparse"}  # no lock, no incoming file


async def _read_everything(data: Path, folder: Path, put: Any, make_sample: MakeSample) -> None:
    async with LocalStore(str(data)) as store, asyncio.timeout(30):
        shards: list[ShardEntry] = [
            await put(store, range(PER_SHARD * n, PER_SHARD * (n + 1))) for n in range(NUM_SHARDS)
        ]
        engine = FetchEngine(store)
        cache = DiskShardCache(engine, folder, budget_bytes="1GiB", lock_timeout_s=1.0)
        manifest = Manifest(
            snapshot=1, schema={"image": "bytes", "label": "int64", "name": "str"}, shards=tuple(shards)
        )
        reader = DatasetReader(manifest, engine, cache)
        for number in range(len(reader)):
            assert await reader.read(number) == make_sample(number)
        for entry in shards:
            assert (await cache.acquire(entry)).cached  # no lock sticks: it would be kept in memory
            cache.release(entry)
        assert cache.stats.num_quarantined == 0
        await cache.close()


@pytest.mark.parametrize("kind", ["incoming", "lock"])
def test_what_the_killed_left_is_swept(tmp_path: Path, kind: str) -> None:
    folder = CacheFolder(tmp_path)
    name = "tmp-0123456789abcdef" if kind == "incoming" else f"{'0' * 32}.lock"
    (tmp_path / name).write_bytes(b"half")
    assert folder.sweep() == 1
    assert list(tmp_path.iterdir()) == []
    folder.close()
