"""A dataset with a column of every kind, and ways to export it and to read what was written."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage import ShardWriter, open_store

COLUMNS = {
    "image": "jpeg",
    "label": "int64",
    "name.de": "str",
    "info": "json",
    "box": "float32[2,2]",
    "points": "int16[...]",
    "raw": "bytes",
    "weight": "float64",
    "flag": "bool",
}
CLASSES = {"label": ["cat", "dog", "owl"]}


def picture(seed: int, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def sample(number: int) -> dict[str, Any]:
    return {
        "image": picture(number),
        "label": number % 3,
        "name.de": f"Löwe {number}",
        "info": {"number": number, "nested": [None, {"x": 0.5}]},
        "box": np.full((2, 2), number / 4, np.float32),
        "points": np.arange(2 * (number % 4 + 1), dtype=np.int16).reshape(2, -1),
        "raw": bytes(range(number)),
        "weight": number / 3,
        "flag": number % 2 == 0,
    }


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    return [sample(number) for number in range(20)]


@pytest.fixture
def write() -> Callable[..., None]:
    """Writes samples as a dataset of small shards."""

    def write(
        url: str | Path,
        samples: list[dict[str, Any]],
        columns: Mapping[str, str] = COLUMNS,
        classes: Mapping[str, list[str]] | None = CLASSES,
        shard_size: str = "4KiB",
        **options: Any,
    ) -> None:
        metadata = {} if classes is None else {"classes": classes}
        with ShardWriter(str(url), columns=columns, shard_size=shard_size, metadata=metadata, **options) as writer:
            for each in samples:
                writer.write(each)

    return write


@pytest.fixture
def dataset(samples: list[dict[str, Any]], write: Callable[..., None]) -> str:
    """URL of a dataset of 20 samples in several shards."""
    url = f"memory://export-{uuid4()}"
    write(url, samples)
    return url


@pytest.fixture
def objects() -> Callable[[str], dict[str, bytes]]:
    """Objects of a store by key."""

    def objects(url: str) -> dict[str, bytes]:
        async def run() -> dict[str, bytes]:
            async with open_store(url) as store:
                return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list("")}

        return asyncio.run(run())

    return objects


@pytest.fixture
def make_picture() -> Callable[..., bytes]:
    return picture
