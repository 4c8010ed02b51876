"""Writes the golden files of datadings, by its own writer: ``pip install datadings==3.4.7``, then run this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def samples() -> list[dict[str, Any]]:
    """The samples of the golden files; the test compares every one of them."""
    return [
        {
            "key": f"dir/é{number}.jpg",
            "image": b"\xff\xd8\xff\xe0" + bytes([number]) * 20,
            "label": number % 3,
            "weight": number / 2,
            "boxes": np.full((number % 3, 4), number, np.float32),
            "size": np.array([number, 2 * number], np.int64),
            "scalar": np.float32(number),
            "meta": {"name": f"n{number}", "list": [1, None, "x"]},
        }
        for number in range(12)
    ]


def main() -> None:
    """Writes ``samples.msgpack`` and the files beside it into this folder."""
    from datadings.writer import FileWriter  # not installed with this project

    with FileWriter(Path(__file__).parent / "samples.msgpack", overwrite=True, disable=True) as writer:
        for sample in samples():
            writer.write(sample)


if __name__ == "__main__":
    main()
