"""Writes the golden dataset, once: `dataset_v1/`, as version 0.2 writes datasets without later features of the format.

Do not run it again for a later version: its purpose is that later versions read what this one wrote. A new feature of
the format gets a golden dataset of its own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from concurrent_loader.storage import ShardWriter, open_store, tag_snapshot

HERE = Path(__file__).parent
COLUMNS = {
    "image": "jpeg", "raw": "bytes", "ragged": "float32[...]", "name": "str", "about": "json", "label": "int64",
    "box": "float32[4]", "is_good": "bool",
}  # fmt: skip


def sample(number: int) -> dict[str, Any]:
    """The sample of a number."""
    return {
        "image": b"\xff\xd8\xff" + bytes([number]) * (number + 1),
        "raw": bytes(range(number)),
        "ragged": np.arange(number * 2, dtype=np.float32).reshape(2, number),
        "name": f"sample {number} é",
        "about": {"number": number, "list": [number, None, True]},
        "label": number - 3,
        "box": np.arange(4, dtype=np.float32) + number,
        "is_good": number % 2 == 0,
    }


SNAPSHOTS = {1: [*range(6)], 2: [*range(6), 6, 7], 3: [20, 21]}
TAGS = {"first": 1, "paper-v1": 2}


def write(url: str) -> None:
    """Writes all snapshots and tags."""
    metadata = {"classes": {"label": ["cat", "dog"]}}
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", metadata=metadata) as writer:
        for number in SNAPSHOTS[1]:
            writer.write(sample(number))
    with ShardWriter(url, columns=COLUMNS, append=True, token="monday") as writer:
        for number in (6, 7):
            writer.write(sample(number))
    with ShardWriter(url, columns=COLUMNS, overwrite=True) as writer:
        for number in SNAPSHOTS[3]:
            writer.write(sample(number))
    for name, snapshot in TAGS.items():
        asyncio.run(tag_snapshot(open_store(url), name, snapshot))


if __name__ == "__main__":
    write(str(HERE / "dataset_v1"))
