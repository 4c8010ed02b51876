"""A second reader, written from docs/reference/format.md alone: it imports nothing of the product and reads the
golden shards.

If this file has to change with the product, the specification was wrong or the format has changed.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import xxhash
import zstandard

GOLDEN = Path(__file__).parent / "golden"
SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}
SIZES |= {"float16": 2, "float32": 4, "float64": 8}
CODES = dict(zip(SIZES, "?bhiqBHIQefd", strict=True))
FILES = ("bytes", "jpeg", "png", "webp", "image")


def pad8(number: int) -> int:
    return (number + 7) // 8 * 8


def check(data: bytes, digest: int) -> bytes:
    assert xxhash.xxh3_64_intdigest(data) == digest
    return data


def shape_of(type_: str) -> list[int] | None:
    inside = type_.partition("[")[2].rstrip("]")
    return None if inside == "..." else [int(dim) for dim in inside.split(",")] if inside else []


def read_shard(file: bytes) -> tuple[dict[str, str], list[dict[str, Any]]]:
    assert file[:32] == b"\x89CLS\r\n\x1a\n" + struct.pack("<HHI16x", 1, 32, 0)
    footer = file[-64:]
    assert footer[56:] == b"\x8aSLC\r\n\x1a\n"
    check(footer[:48], struct.unpack("<Q", footer[48:56])[0])
    tail_start, start, length, version, reserved, digest, n, size = struct.unpack("<QQIHHQQQ", footer[:48])
    assert (reserved, size) == (0, len(file))
    assert start + pad8(length) == size - 64
    text = check(file[start : size - 64], digest)
    assert not any(text[length:])
    descriptor = json.loads(text[:length])
    assert descriptor["num_samples"] == n

    blocks, at = {}, tail_start
    for entry in descriptor["blocks"]:
        assert entry["start"] == at
        stored = check(file[at : at + pad8(entry["length"])], int(entry["digest"], 16))
        assert not any(stored[entry["length"] :])
        blocks[entry["kind"], entry["column"]] = (entry["codec"], stored[: entry["length"]])
        at += len(stored)
    assert at == start

    columns = {column["name"]: column["type"] for column in descriptor["columns"]}
    optional = {name for name, type_ in columns.items() if type_.endswith("?")}
    assert version == (3 if optional else 1)
    types = {name: type_.removesuffix("?") for name, type_ in columns.items()}
    samples: list[dict[str, Any]] = [dict.fromkeys(types) for _ in range(n)]
    stored: dict[tuple[str, int], bytes] = {}
    for name, type_ in types.items():
        if type_ in ("str", "json"):
            values = small_values(*blocks["small", name], blocks.get(("dictionary", name)), n)
            for i, (sample, value) in enumerate(zip(samples, values, strict=True)):
                stored[name, i] = value
                sample[name] = value.decode() if type_ == "str" else json.loads(value or b"null")
        elif not is_payload(type_):
            data = blocks["fixed", name][1]
            width = SIZES[type_.partition("[")[0]] * math.prod(shape_of(type_) or [])
            assert len(data) == n * width
            for i, sample in enumerate(samples):
                stored[name, i] = data[i * width : (i + 1) * width]
                sample[name] = number(type_, data[i * width : (i + 1) * width])

    payload = [name for name, type_ in types.items() if is_payload(type_)]
    if payload:
        ends = struct.unpack(f"<{n * len(payload)}Q", blocks["payload_ends", ""][1])
        digests = struct.unpack(f"<{n * len(payload)}Q", blocks["payload_digests", ""][1])
        at = 32
        for k, (end, digest) in enumerate(zip(ends, digests, strict=True)):
            name = payload[k % len(payload)]
            stored[name, k // len(payload)] = check(file[at:end], digest)
            if end > at or name not in optional:
                samples[k // len(payload)][name] = payload_value(types[name], file[at:end])
            at = end
        assert pad8(at) == tail_start
        assert not any(file[at:tail_start])
    for name in optional:
        bits = int.from_bytes(blocks["validity", name][1], "little")
        assert len(blocks["validity", name][1]) == -(-n // 8)
        assert bits < 2**n - 1
        for i, sample in enumerate(samples):
            if not bits >> i & 1:
                assert not stored[name, i].strip(b"\0")
                sample[name] = None
    return columns, samples


def is_payload(type_: str) -> bool:
    if type_ in FILES or type_.endswith("[...]"):
        return True
    return SIZES.get(type_.partition("[")[0], 0) * math.prod(shape_of(type_) or []) > 1024


def small_values(codec: str, block: bytes, dictionary: tuple[str, bytes] | None, n: int) -> list[bytes]:
    offsets = struct.unpack_from(f"<{n + 1}I", block)
    data = block[4 * (n + 1) :]
    if codec == "raw":
        return [data[offsets[i] : offsets[i + 1]] for i in range(n)]
    lengths = struct.unpack_from(f"<{n}I", data)
    data = data[4 * n :]
    trained = zstandard.ZstdCompressionDict(dictionary[1]) if dictionary else None
    decompressor = zstandard.ZstdDecompressor(dict_data=trained)
    frames = [data[offsets[i] : offsets[i + 1]] for i in range(n)]
    assert [zstandard.frame_content_size(frame) if frame else 0 for frame in frames] == list(lengths)
    return [decompressor.decompress(frame) if frame else b"" for frame in frames]


def number(type_: str, data: bytes) -> Any:
    """Says a value as golden/expected.json does: numbers as such, floats in hex, arrays as shape and base64."""
    if "[" in type_:
        return {"shape": shape_of(type_), "data": base64.b64encode(data).decode()}
    (value,) = struct.unpack("<" + CODES[type_], data)
    return value.hex() if isinstance(value, float) else value


def payload_value(type_: str, data: bytes) -> Any:
    if type_ in FILES:
        return base64.b64encode(data).decode()
    if not type_.endswith("[...]"):
        return number(type_, data)
    dims = list(struct.unpack_from(f"<{data[0]}Q", data, 8))
    rest = data[8 + 8 * data[0] :]
    assert len(rest) == math.prod(dims) * SIZES[type_.partition("[")[0]]
    return {"shape": dims, "data": base64.b64encode(rest).decode()}


@pytest.mark.parametrize("name", ["raw", "zstd", "empty", "nulls"])
def test_the_specification_is_enough_to_read_the_golden_shards(name: str) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))[name]
    schema, samples = read_shard((GOLDEN / f"{name}.cls").read_bytes())
    assert list(schema.items()) == list(expected["schema"].items())
    assert samples == expected["samples"]
