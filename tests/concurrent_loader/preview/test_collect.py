from __future__ import annotations

import asyncio
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.preview.collect import Collected, collect
from concurrent_loader.preview.read_sample import NotFetched, read_sample
from concurrent_loader.storage import ConfigurationError, FetchEngine, ShardWriter, load_manifest, open_store
from concurrent_loader.storage.cache import open_shard_cache
from concurrent_loader.storage.shards.reader import DatasetReader

NUM_SAMPLES = 400


@pytest.fixture(scope="module")
def url() -> str:
    """400 samples of about 10 KB, with labels, in about 16 shards."""
    url = f"memory://{uuid4().hex}"
    rng = np.random.default_rng(0)
    with ShardWriter(url, columns={"data": "bytes", "label": "int64", "split": "str"}, shard_size="256KiB") as writer:
        for number in range(NUM_SAMPLES):
            split = "train" if number % 4 else "test"
            writer.write({"data": rng.bytes(10_000 + number), "label": number % 5, "split": split})
    return url


def collected(url: str, **options: int) -> tuple[Collected, int]:
    async def run() -> tuple[Collected, int]:
        async with open_store(url) as store:
            engine = FetchEngine(store, hedge=None)
            manifest = await load_manifest(engine)
            before = engine.stats.num_bytes
            cache = open_shard_cache(engine, None)
            found = await collect(DatasetReader(manifest, engine, cache), ["data", "label"], **options)
            await cache.close()
            return found, engine.stats.num_bytes - before

    return asyncio.run(run())


def test_a_sample_of_all_shards(url: str) -> None:
    found, num_bytes = collected(url, num_samples=60, max_bytes=2_000_000)
    numbers = [number for number, _ in found.samples]
    assert len(numbers) == len(set(numbers)) == 60
    assert numbers == sorted(numbers)
    assert len({number // 30 for number in numbers}) > 8
    assert all(len(sample["data"]) == 10_000 + number for number, sample in found.samples)
    assert [each.num_samples for each in found.counts["label"]] == [80] * 5
    assert found.num_counted == {"label": NUM_SAMPLES, "split": NUM_SAMPLES}
    assert len(found.value_bytes["data"]) == NUM_SAMPLES
    assert found.fetched_bytes == num_bytes < 700_000


def test_the_seed_decides(url: str) -> None:
    def numbers(seed: int) -> list[int]:
        found, _ = collected(url, num_samples=20, max_bytes=2_000_000, seed=seed)
        return [number for number, _ in found.samples]

    assert numbers(0) == numbers(0) != numbers(1)


@pytest.mark.parametrize("max_bytes", [60_000, 100_000, 250_000, 1_000_000, 5_000_000])
def test_no_more_bytes_than_allowed(url: str, max_bytes: int) -> None:
    found, num_bytes = collected(url, num_samples=500, max_bytes=max_bytes)
    assert num_bytes <= max_bytes
    assert found.fetched_bytes == num_bytes
    assert found.samples
    assert len(found.samples) + found.num_left_out <= NUM_SAMPLES
    assert (len(found.samples) == NUM_SAMPLES) == (max_bytes == 5_000_000)


def test_an_index_that_is_too_large_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="index of a single shard"):
        collected(url, num_samples=5, max_bytes=500)


def test_a_large_value_is_not_fetched(url: str) -> None:
    async def run() -> dict[str, object]:
        async with open_store(url) as store:
            engine = FetchEngine(store)
            cache = open_shard_cache(engine, None)
            reader = DatasetReader(await load_manifest(engine), engine, cache)
            before = engine.stats.num_bytes
            sample = await read_sample(reader, 3, max_value_bytes=5000)
            assert engine.stats.num_bytes - before < 5000
            await cache.close()
            return sample

    assert asyncio.run(run()) == {"data": NotFetched(10_003), "label": 3, "split": "train"}
