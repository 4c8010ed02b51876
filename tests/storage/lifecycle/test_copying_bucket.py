"""Copies between prefixes of a bucket, on the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from concurrent_loader.storage import FetchEngine, ShardWriter, copy_dataset, list_tags, load_manifest, tag_snapshot
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import open_store

sys.path.insert(0, str(Path(__file__).parent))
from dataset_in_memory import keys, memory_store


async def test_the_server_copies(s3_bucket: Any) -> None:
    url, options = s3_bucket.url, s3_bucket.storage_options
    with ShardWriter(
        f"{url}/a b+c", columns={"x": "int64", "data": "bytes"}, shard_size=6000, storage_options=options
    ) as writer:
        for number in range(20):
            writer.write({"x": number, "data": bytes([number]) * 1000})
    async with open_store(f"{url}/a b+c", **options) as source, open_store(f"{url}/copy", **options) as target:
        await tag_snapshot(source, "paper")
        report = await copy_dataset(source, target)
        assert report.num_server_side == report.num_objects > 5
        assert await list_tags(target) == {"paper": 1}
        assert await keys(target) == await keys(source)
        engine = FetchEngine(target)
        assert not (await verify_dataset(engine, await load_manifest(engine))).problems
        assert (await copy_dataset(source, target)).num_objects == 0


async def test_other_options_or_stores_are_transferred(s3_bucket: Any) -> None:
    url, options = s3_bucket.url, s3_bucket.storage_options
    with ShardWriter(f"{url}/data", columns={"x": "int64"}, storage_options=options) as writer:
        writer.write({"x": 1})
    other = {**options, "list_page_keys": 7}
    async with open_store(f"{url}/data", **options) as source, open_store(f"{url}/copy", **other) as target:
        assert (await copy_dataset(source, target)).num_server_side == 0
        assert (await load_manifest(target)).num_samples == 1
        assert (await copy_dataset(target, memory_store())).num_objects == 2
