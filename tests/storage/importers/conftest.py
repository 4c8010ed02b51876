"""What the tests of importers share: encoded images, and every sample of a dataset."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.format.index import verify_shard
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import open_store

Samples = Callable[[str], list[dict[str, Any]]]
Encode = Callable[..., bytes]


@pytest.fixture
def url() -> str:
    """URL of a new dataset."""
    return f"memory://imported-{uuid4()}"


@pytest.fixture
def encoded() -> Encode:
    """An encoded image, which depends on a number."""

    def encode(number: int, kind: str = "JPEG") -> bytes:
        file = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()

    return encode


@pytest.fixture
def samples_of() -> Samples:
    """All samples of a dataset in order, all of it verified."""

    async def read(url: str) -> list[dict[str, Any]]:
        async with open_store(url) as store:
            manifest = await load_manifest(store)
            assert (await verify_dataset(FetchEngine(store), manifest)).problems == ()
            found: list[dict[str, Any]] = []
            for entry in manifest.shards:
                data = (await store.get(entry.key)).data
                index = verify_shard(data)
                payload = {column.name for column in index.schema.payload}
                for row in range(index.num_samples):
                    sample = {}
                    for name in manifest.schema:
                        if name in payload:
                            place = index.payload_range(row, name)
                            sample[name] = index.decode_value(name, row, data[place.start : place.end])
                        else:
                            sample[name] = index.value(name, row)
                    found.append(sample)
            return found

    return lambda url: asyncio.run(read(url))
