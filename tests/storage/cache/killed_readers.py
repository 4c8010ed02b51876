"""Readers of one cache folder that are killed, each at another instruction; run as a program by test_killed.py.

A process without threads forks them, two at a time: the libraries are loaded once. Half of them kill themselves before
or after their n-th system call on the drive, half are killed from outside after a random time. Each checks every byte
that it gets; one that gets a wrong one ends with a status that the program reports.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from conftest import METHODS, put_shard, sample

from concurrent_loader.storage.cache import DiskShardCache
from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.stores.backends.local import LocalStore

NUM_SHARDS, PER_SHARD = 10, 6
SCHEMA = {"image": "bytes", "label": "int64", "name": "str"}
_WRONG = 3


def make_manifest(data: Path) -> Manifest:
    async def put() -> list[ShardEntry]:
        async with LocalStore(str(data)) as store:
            return [await put_shard(store, range(PER_SHARD * n, PER_SHARD * (n + 1))) for n in range(NUM_SHARDS)]

    return Manifest(snapshot=1, schema=SCHEMA, shards=tuple(asyncio.run(put())))


async def read(data: Path, folder: Path, manifest: Manifest, rng: random.Random, drive: Drive) -> None:
    """Reads shards and samples at random, several at once, within a budget of four shards."""
    async with LocalStore(str(data)) as store:
        engine = FetchEngine(store)
        cache = DiskShardCache(engine, folder, budget_bytes=4 * manifest.shards[0].size + 4096 * 3, drive=drive)
        reader = DatasetReader(manifest, engine, cache)

        async def read_shard(number: int) -> None:
            entry = manifest.shards[number]
            shard = await cache.acquire(entry)
            got = [bytes(value) for value in shard.payload("image", np.arange(PER_SHARD))]
            assert got == [sample(PER_SHARD * number + row)["image"] for row in range(PER_SHARD)]
            cache.release(entry)

        async def read_sample(number: int) -> None:
            assert await reader.read(number) == sample(number)

        for _ in range(8):
            await asyncio.gather(
                *(read_shard(rng.randrange(NUM_SHARDS)) for _ in range(2)),
                *(read_sample(rng.randrange(NUM_SHARDS * PER_SHARD)) for _ in range(3)),
            )
        assert cache.stats.num_quarantined == 0, cache.stats
        await cache.close()


def killing(at: int) -> Drive:
    """A drive whose process dies around its ``at``-th call: before an even one, after an odd one."""
    calls = 0

    class Killing(Drive):
        pass

    def wrap(method: str) -> Any:
        real = getattr(Drive, method)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at and at % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if calls == at and method == "write":  # torn in the middle, too
                os.pwrite(args[1], args[2][: len(args[2]) // 2], args[3])
                os.kill(os.getpid(), signal.SIGKILL)
            if calls == at and method == "append":
                os.write(args[1], args[2][: at % len(args[2])])
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **options)
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for method in METHODS:
        setattr(Killing, method, wrap(method))
    return Killing()


def fork(data: Path, folder: Path, manifest: Manifest, seed: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        rng = random.Random(seed)
        drive = killing(rng.randrange(1, 400)) if seed % 2 else Drive()
        asyncio.run(read(data, folder, manifest, rng, drive))
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
        traceback.print_exc()
        os._exit(_WRONG)
    os._exit(0)


def main(data: Path, folder: Path, num_kills: int) -> None:
    manifest = make_manifest(data)
    rng = random.Random(0)
    outcome = {"killed": 0, "unharmed": 0, "wrong": 0}
    seed = 0
    while outcome["killed"] < num_kills and not outcome["wrong"]:
        pids = [fork(data, folder, manifest, seed + place) for place in range(2)]
        for place, pid in enumerate(pids):
            if not (seed + place) % 2:
                time.sleep(rng.uniform(0, 0.08))
                os.kill(pid, signal.SIGKILL)
        seed += 2
        for pid in pids:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            outcome[{0: "unharmed", -signal.SIGKILL: "killed"}.get(status, "wrong")] += 1
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
