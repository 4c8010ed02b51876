"""Writes golden/mds by MosaicML Streaming's own writer: `python make_mds_golden.py`, with mosaicml-streaming installed.

The files in the repository are from version 0.13.0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from streaming import MDSWriter  # type: ignore[import-not-found]

COLUMNS = {
    "label": "int",
    "name.de": "str",
    "points": "ndarray:int16",
    "box": "ndarray:float32:2,2",
    "raw": "bytes",
    "weight": "float16",
    "flag": "uint8",
    "tags": "json",
}


def golden_sample(number: int) -> dict[str, object]:
    return {
        "label": number - 2,
        "name.de": "ä" * number,
        "points": np.arange(300 * number + 1, dtype=np.int16).reshape(1, -1),
        "box": np.full((2, 2), number / 2, np.float32),
        "raw": bytes(range(number)),
        "weight": np.float16(number / 4),
        "flag": np.uint8(number % 2),
        "tags": [number],
    }


if __name__ == "__main__":
    folder = Path(__file__).with_name("golden") / "mds"
    with MDSWriter(columns=COLUMNS, out=str(folder), size_limit=None) as writer:
        for number in range(4):
            writer.write(golden_sample(number))
