from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage import ShardWriter

NUM_SAMPLES = 60
HOSTILE = '"><script>alert(1)</script>\x1b[31mred\u202e'


def encoded(pixels: np.ndarray, file_format: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, file_format)
    return stream.getvalue()


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    height, width = 40 + number, 60
    pixels = np.full((height, width, 3), rng.integers(0, 256, 3), np.uint8)
    mask = np.zeros((height, width), np.uint8)
    mask[10:20, 10:30] = 7
    return {
        "image": encoded(pixels, "JPEG"),
        "mask": encoded(mask, "PNG"),
        "boxes": np.array([[10, 10, 30, 20], [0, 0, 5, 5]], np.float32),
        "label": number % 3,
        "caption": HOSTILE if number == 0 else f"caption {number}",
        "info": {"a": [1, 2], "b": HOSTILE},
        "blob": bytes(200_000) if number % 2 else b"x",
    }


COLUMNS = {
    "image": "jpeg",
    "mask": "png",
    "boxes": "float32[...]",
    "label": "int64",
    "caption": "str",
    "info": "json",
    "blob": "bytes",
}


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 60 samples with images, masks and boxes, and with texts that are not safe to show."""
    folder: Path = tmp_path_factory.mktemp("pictures") / "data"
    metadata = {"classes": {"label": ["cat", HOSTILE]}, "note": {"nested": [1, {"x": 2}]}}
    with ShardWriter(str(folder), columns=COLUMNS, metadata=metadata, shard_size="256KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write(sample(number))
    return str(folder)
