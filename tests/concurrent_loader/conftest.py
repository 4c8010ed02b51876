from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from concurrent_loader import ShardDataset
from concurrent_loader.map_style import inline_heuristic
from concurrent_loader.map_style.inline_heuristic import WAITS, Findings
from concurrent_loader.storage import ShardWriter

NUM_SAMPLES = 203


def payload(number: int) -> bytes:
    return np.random.default_rng(number).integers(0, 256, 400 + number, dtype=np.uint8).tobytes()


def jpeg(number: int, *, size: tuple[int, int] = (48, 32)) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@pytest.fixture(scope="session")
def make_payload() -> Callable[[int], bytes]:
    return payload


@pytest.fixture(scope="session")
def make_jpeg() -> Callable[..., bytes]:
    return jpeg


@pytest.fixture
def url() -> str:
    """A data set of 203 samples in about 20 shards: data (bytes), label (int64), name (str), box (float32[4])."""
    url = f"memory://{uuid4().hex}"
    columns = {"data": "bytes", "label": "int64", "name": "str", "box": "float32[4]"}
    with ShardWriter(url, columns=columns, shard_size="6KiB") as writer:
        for number in range(NUM_SAMPLES):
            box = np.arange(4, dtype=np.float32) + number
            writer.write({"data": payload(number), "label": number, "name": f"sample {number}", "box": box})
    return url


@pytest.fixture
def image_url() -> str:
    """A data set of 40 small JPEGs with labels."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(40):
            writer.write({"image": jpeg(number), "label": number})
    return url


@pytest.fixture
def dataset(url: str) -> Iterator[ShardDataset]:
    with ShardDataset(url) as dataset:
        yield dataset


@pytest.fixture
def baseline() -> Iterator[None]:
    """Threads and descriptors are, at the end of the test, those of its beginning."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture(scope="session")
def known_items() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """A context in which drop-in loaders believe to know their items: `WAITS` for threads without a measurement."""

    @contextlib.contextmanager
    def known_items(known: int) -> Iterator[None]:
        defaults = {**(Findings.__init__.__kwdefaults__ or {}), "known": known}
        with (
            patch.object(Findings.__init__, "__kwdefaults__", defaults),
            patch.object(inline_heuristic, "_FIRST_TRIAL_S", 1e9),
        ):
            yield

    return known_items


@pytest.fixture
def items_wait(known_items: Callable[[int], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Drop-in loaders get items in threads."""
    with known_items(WAITS):
        yield
