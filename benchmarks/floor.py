"""How far a first epoch is from what must be done at all: fetch, digest, write.

    python -m benchmarks.floor [--json FILE] [--quick] [--num-samples N]

Shards of noise lie in a local S3 server without latency. Four sides take turns, each in a fresh process: the loader
with an empty cache folder and without one, and for each a bare loop, the floor. The bare loop fetches the same objects
with obstore in ranges of 8 MiB, 16 in flight, digests each range with xxh3 and, for the cache, writes it into a file
with the size of the shard. Imports do not count; opening the dataset does.

- ``cold_cache_vs_floor``, ``cold_nocache_vs_floor``: the loader's processor seconds per GB ÷ the bare loop's;
- ``user_cpu_s_gb``: processor seconds per GB that the loader with a cache spends outside the kernel;
- ``nocache_rss_mb``: resident memory that an epoch without a cache adds at its highest, batches included.

Rows have medians over the rounds, and ``spread`` the extremes of ``cpu_s_gb``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import obstore
import xxhash
from rich.console import Console

from benchmarks.bucket import obstore_client
from benchmarks.command import program, rounds
from benchmarks.figures import extremes, medians, rounded
from benchmarks.fresh_process import in_fresh_process
from benchmarks.machine import peak_rss_bytes, start_peak_rss
from benchmarks.synthetic import write_noise
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.testing import local_s3

_BUCKET = "floor"
_IN_FLIGHT = 16
_TURN_S = 300.0
_SIDES = tuple((who, where) for where in ("cache", "nocache") for who in ("ours", "bare"))


@dataclass(frozen=True, slots=True)
class Load:
    """How much is read."""

    num_samples: int = 16_000
    sample_bytes: int = 56_000
    batch_size: int = 256
    num_rounds: int = 5


FULL, QUICK = Load(), Load(num_samples=200, sample_bytes=5_000, batch_size=32, num_rounds=1)


def measure(
    who: str, options: Mapping[str, str], objects: Mapping[str, int], folder: str | None, batch_size: int
) -> dict[str, float]:
    """Reads everything once, in this process; returns what that took."""
    before_bytes, before, began = start_peak_rss(), resource.getrusage(resource.RUSAGE_SELF), perf_counter()
    if who == "ours":
        _load(options, folder, batch_size)
    else:
        asyncio.run(_fetch(options, objects, folder))
    took_s, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    gb, rss_added_mb = sum(objects.values()) / 1e9, max(0, peak_rss_bytes() - before_bytes) / 1e6
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    per_gb = {"cpu_s_gb": (user_s + system_s) / gb, "user_cpu_s_gb": user_s / gb}
    return {**per_gb, "gb_s": gb / took_s, "rss_added_mb": rss_added_mb}


def _load(options: Mapping[str, str], folder: str | None, batch_size: int) -> None:
    with ShardDataset(f"s3://{_BUCKET}/data", storage_options=dict(options), cache_dir=folder) as dataset:
        numbers = set()
        for batch in ConcurrentDataLoader(dataset, batch_size, shuffle=True):
            numbers.update(batch["number"].tolist())
        if len(numbers) != len(dataset):
            raise AssertionError("an epoch did not deliver every sample once")


async def _fetch(options: Mapping[str, str], objects: Mapping[str, int], folder: str | None) -> None:
    store, slots = obstore_client(_BUCKET, options), asyncio.Semaphore(_IN_FLIGHT)
    loop = asyncio.get_running_loop()

    async def fetch(key: str, start: int, end: int, fd: int | None) -> None:
        async with slots:
            data = await obstore.get_range_async(store, f"data/{key}", start=start, end=end)
            xxhash.xxh3_64_intdigest(data)
            if fd is not None:
                await loop.run_in_executor(None, os.pwrite, fd, data, start)

    with contextlib.ExitStack() as files:
        async with asyncio.TaskGroup() as group:
            for number, (key, size) in enumerate(objects.items()):
                fd = None
                if folder is not None:
                    fd = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
                    files.callback(os.close, fd)
                    os.truncate(fd, size)
                for start in range(0, size, CHUNK_BYTES):
                    group.create_task(fetch(key, start, min(start + CHUNK_BYTES, size), fd))


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Writes the shards, and lets the sides take turns."""
    with tempfile.TemporaryDirectory(prefix="floor-benchmark-") as folder, local_s3() as server:
        server.make_bucket(_BUCKET)
        options = server.storage_options()
        size = {"num_samples": load.num_samples, "sample_bytes": load.sample_bytes}
        manifest = write_noise(f"s3://{_BUCKET}/data", **size, storage_options=options)
        objects = {entry.key: entry.size for entry in manifest.shards}

        def turn(side: tuple[str, str]) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                arguments = (side[0], options, objects, cache if side[1] == "cache" else None, load.batch_size)
                return in_fresh_process(measure, arguments, what=", ".join(side), timeout_s=_TURN_S)

        found = rounds(console, "floor", _SIDES, load.num_rounds, turn)
    typical = {side: medians(epochs, rounded) for side, epochs in found.items()}
    cpu_s = {side: figures["cpu_s_gb"] for side, figures in typical.items()}
    rows = []
    for (who, where), figures in typical.items():
        spread = extremes([each["cpu_s_gb"] for each in found[who, where]])
        rows.append({"side": who, "where": where, **figures, "spread": spread})
    return {
        "rows": rows,
        **{f"cold_{at}_vs_floor": round(cpu_s["ours", at] / cpu_s["bare", at], 3) for at in ("cache", "nocache")},
        "user_cpu_s_gb": typical["ours", "cache"]["user_cpu_s_gb"],
        "nocache_rss_mb": typical["ours", "nocache"]["rss_added_mb"],
        "server": server.kind,
        "load": asdict(load),
    }


main = program("floor", __doc__, run_benchmark, FULL, QUICK, "num_samples")

if __name__ == "__main__":
    raise SystemExit(main())
