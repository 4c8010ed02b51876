"""Writes the golden shards beside this file: `python tests/storage/shards/golden/make_golden.py`.

The bytes of version 1 are pinned for ever: run it only for a new version, or to add a file. ``raw.cls`` has no
compressed column, so every writer must reproduce it; ``zstd.cls`` depends on the zstd release and is only read.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.schema import Schema

FOLDER = Path(__file__).parent
THINGS = ("cats", "dogs", "coffee", "rockets")


def _raw() -> tuple[dict[str, str], list[dict[str, Any]]]:
    schema = {
        "blob": "bytes",
        "image": "image",
        "jpeg": "jpeg",
        "png": "png",
        "webp": "webp",
        "text": "str",
        "meta": "json",
        "flag": "bool",
        "i8": "int8",
        "i16": "int16",
        "i32": "int32",
        "i64": "int64",
        "u8": "uint8",
        "u16": "uint16",
        "u32": "uint32",
        "u64": "uint64",
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "box": "float32[2,2]",
        "mask": "bool[3]",
        "large": "int16[600]",
        "ragged": "float32[...]",
        "points": "uint16[...]",
    }
    samples = []
    for i in range(3):
        samples.append(
            {
                "blob": bytes(range(i)),
                "image": [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"RIFF\4\0\0\0WEBP"][i],
                "jpeg": b"\xff\xd8\xff" + b"j" * i,
                "png": b"\x89PNG\r\n\x1a\n" + b"p" * i,
                "webp": b"RIFF\4\0\0\0WEBP" + b"w" * i,
                "text": ["", "plain", "naïve 図 🙂"][i],
                "meta": [None, {"b": [1, 2.5, True], "a": {"ü": ""}}, [-1, "x", {}]][i],
                "flag": i == 1,
                "i8": [-128, 0, 127][i],
                "i16": [-(2**15), 0, 2**15 - 1][i],
                "i32": [-(2**31), 0, 2**31 - 1][i],
                "i64": [-(2**63), 0, 2**63 - 1][i],
                "u8": [0, 1, 2**8 - 1][i],
                "u16": [0, 1, 2**16 - 1][i],
                "u32": [0, 1, 2**32 - 1][i],
                "u64": [0, 1, 2**64 - 1][i],
                "f16": [0.5, -0.0, float("inf")][i],
                "f32": [1.5, float("-inf"), 2.0**-149][i],
                "f64": [0.1, -0.0, 1e308][i],
                "box": np.arange(4, dtype="f4").reshape(2, 2) + i,
                "mask": np.array([i == 0, True, False]),
                "large": np.arange(600, dtype="i2") - 300 * i,
                "ragged": [np.float32(2.5), np.zeros((0, 3), "f4"), np.arange(6, dtype=">f4").reshape(1, 3, 2)][i],
                "points": np.arange(2 * i, dtype="u2").reshape(i, 2),
            }
        )
    return schema, samples


def _zstd() -> tuple[dict[str, str], list[dict[str, Any]]]:
    schema = {"caption": "str", "meta": "json", "label": "int32"}
    samples = [
        {
            "caption": f"a photograph of {THINGS[i % 4]} number {i * 7919 % 1000} by the sea" if i % 10 else "",
            "meta": {"id": i, "source": f"collection/{i % 5}/{i:05d}", "size": [640 + i, 480], "licence": "CC0"},
            "label": i,
        }
        for i in range(120)
    ]
    return schema, samples


def _empty() -> tuple[dict[str, str], list[dict[str, Any]]]:
    return {"blob": "bytes", "text": "str", "label": "int64"}, []


def _nulls() -> tuple[dict[str, str], list[dict[str, Any]]]:
    schema = {
        "image": "jpeg?",
        "label": "int64?",
        "box": "float32[2]?",
        "large": "int16[600]?",
        "name": "str?",
        "meta": "json?",
        "points": "uint16[...]?",
        "blob": "bytes?",
        "number": "int8",
    }
    first = {
        "image": b"\xff\xd8\xffa",
        "label": -1,
        "box": np.array([1, 2], "f4"),
        "large": np.arange(600, dtype="i2"),
        "name": "",
        "meta": {"a": [None]},
        "points": np.zeros((0, 2), "u2"),
        "blob": b"\x00",
    }
    absent = dict.fromkeys(first)
    mixed = {name: first[name] if at % 2 else None for at, name in enumerate(first)}
    return schema, [{**row, "number": at} for at, row in enumerate([first, absent, mixed, *[first] * 6])]


DATASETS = {"raw": _raw(), "zstd": _zstd(), "empty": _empty(), "nulls": _nulls()}


def build(name: str) -> bytes:
    """Returns the shard of one of the data sets."""
    schema, samples = DATASETS[name]
    builder = ShardBuilder(Schema.parse(schema))
    for sample in samples:
        builder.add(sample)
    return builder.finish().tobytes()


def plain(value: Any) -> Any:
    """Says a value in JSON, bit-exactly, for readers that know no NumPy."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        little = array.astype(array.dtype.newbyteorder("<")).tobytes()
        return {"shape": list(array.shape), "data": base64.b64encode(little).decode()}
    if isinstance(value, float):
        return value.hex()
    return value


def main() -> None:
    """Writes shards and what is in them."""
    expected = {}
    for name, (schema, samples) in DATASETS.items():
        (FOLDER / f"{name}.cls").write_bytes(build(name))
        rows = [
            {key: value if schema[key].startswith("json") else plain(value) for key, value in s.items()}
            for s in samples
        ]
        expected[name] = {"schema": schema, "samples": rows}
    text = json.dumps(expected, indent=0, ensure_ascii=True)
    (FOLDER / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
