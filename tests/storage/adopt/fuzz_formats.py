"""Reads mutated files of MDS, LitData and TFRecord, and fails on any exception that is not a typed error.

Not collected by pytest. Run it from the root of the tree, with the tree on the path::

    PYTHONPATH=. python tests/storage/adopt/fuzz_formats.py --inputs 1000000 --seed 22

An input may be read, or raise `StorageError`, or `ValueError` from ``parse``. It must take less than ten seconds.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import google_crc32c

sys.path.insert(0, str(Path(__file__).parent / "formats"))
from conftest import Files, Sources

from concurrent_loader.storage.adopt.formats.litdata import LitDataFormat
from concurrent_loader.storage.adopt.formats.litdata_json import parse_nested
from concurrent_loader.storage.adopt.formats.mds import MdsFormat
from concurrent_loader.storage.adopt.formats.tfrecord import TfRecordFormat
from concurrent_loader.storage.adopt.protocol import ForeignFormat
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec, split_list
from concurrent_loader.storage.shards.format.litdata_frames import unpack_batches, unpack_items

MAX_INPUT_S = 10.0
INTERESTING = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
JSON_VALUES = (
    *(None, True, -1, 0, 1, 2, 3, 2**31, 2**63, 2**64, 10**30, 0.5, "", "0", "x" * 300, "../a", "/", "a\0", "\ud800"),
    *([], {}, [[]], {"a": 1}, "pkl", "ndarray", "ndarray:int8:3", "pil", "tensor", "numpy", "json", "str", "bytes"),
    *("no_header_tensor:17", "jpeg", "int", "float64", "TokensLoader", "zstd", "[1,{}]", "shard.00000.mds"),
)
SOURCES = Sources()

Case = tuple[bytes, Callable[[bytes], str]]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Returns data with one to five changes, of which most are small and near the beginning."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        limit = len(changed) if rng.random() < 0.5 else min(len(changed), 64)
        place = rng.randrange(limit + 1)
        match rng.randrange(7):
            case 0:
                changed[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                form = rng.choice(("<I", ">I", "<H", "<Q"))
                value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.randrange(1 << 32)
                piece = struct.pack(form, value & (1 << 8 * struct.calcsize(form)) - 1)
                changed[place : place + len(piece)] = piece
            case 2:
                del changed[place : place + rng.choice((1, 2, 4, 8, 100))]
            case 3:
                changed[place:place] = rng.randbytes(rng.choice((1, 2, 4, 8)))
            case 4:
                del changed[place:]
            case 5:
                start = rng.randrange(len(changed) + 1)
                changed[place:place] = changed[start : start + rng.choice((4, 16, 200))]
            case 6 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Returns a JSON document with one or two other values."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        places = [(document, key) for key in document]
        for parent, key in places:
            child = parent[key]
            if isinstance(child, dict | list):
                places += [(child, key) for key in (child if isinstance(child, dict) else range(len(child)))]
        parent, key = rng.choice(places)
        if isinstance(parent, list) and rng.random() < 0.2:
            parent.insert(key, parent[key])
        elif rng.random() < 0.1:
            del parent[key]
        else:
            parent[key] = copy.deepcopy(rng.choice(JSON_VALUES))
    return json.dumps(document).encode()


def in_files(foreign: ForeignFormat, files: Files, key: str) -> Case:
    """Returns the case in which one file of a source is mutated.

    Every second input is walked with the columns of the file before it was mutated.
    """
    columns = SOURCES.read(foreign, files).columns
    turn = itertools.count()

    def run(data: bytes) -> str:
        changed = Files({**files.files, key: data})
        if key.endswith(".mds"):  # otherwise the index refuses every file of another length
            index = json.loads(files.files["index.json"])
            for shard in index["shards"]:
                if shard["raw_data"]["basename"] == key:
                    shard["raw_data"]["bytes"] = len(data)
            changed.files["index.json"] = json.dumps(index).encode()
        return SOURCES.outcome(foreign, changed, columns if next(turn) % 2 else None)

    return files.files[key], run


def alone(function: Callable[[bytes], object], data: bytes) -> Case:
    """Returns the case of a function of bytes that raises typed errors only."""

    def run(changed: bytes) -> str:
        try:
            function(changed)
        except StorageError:
            return "refused"
        return "read"

    return data, run


def framed(data: bytes) -> bytes:
    """Returns a record with right checksums."""

    def crc(part: bytes) -> bytes:
        value = google_crc32c.value(part)
        return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + crc(length) + data + crc(data)


def field(number: int, data: bytes) -> bytes:
    """Returns a protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


def cases() -> dict[str, Case]:
    """Returns all cases by their names."""
    found: dict[str, Case] = {}
    for name, path in (("few", ("parts", "a")), ("all", ("all",))):
        mds = SOURCES.folder("mds", *path)
        for key in ("index.json", "shard.00000.mds"):
            found[f"mds {name} {key}"] = in_files(MdsFormat(), mds, key)
    for name, block in (("all", None), ("leaf", None), ("tokens", None), ("tokens", 4)):
        files = SOURCES.folder("litdata", name)
        for key in ("index.json", "chunk-0-0.bin"):
            found[f"litdata {name} {block or ''} {key}"] = in_files(LitDataFormat(block_size=block), files, key)
    golden = SOURCES.folder("tfrecord", "all").files["train-00000-of-00002"]
    (length,) = struct.unpack_from("<Q", golden)
    example = golden[12 : 12 + length]
    tfrecord = TfRecordFormat()
    found["tfrecord file"] = in_files(tfrecord, Files({"a.tfrecord": golden}), "a.tfrecord")
    entries = {b"a": field(3, field(1, b"\x01\xac\x02")), b"b": field(1, field(1, b"text")), b"c": field(2, bytes(0))}
    small = field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in entries.items()))
    for name, record in (("example", example), ("small example", small)):
        _, run = in_files(tfrecord, Files({"a.tfrecord": framed(record)}), "a.tfrecord")
        found[f"tfrecord {name}"] = (
            record,
            lambda data, run=run: run(framed(data)),
        )
    nested = struct.pack("<BII1sBI", 5, 2, 1, b"a", 2, 1) + struct.pack("<qI1s", 7, 1, b"b")
    nested += struct.pack("<BII", 6, 1, 1) + struct.pack("<I1sBI1s", 1, b"k", 17, 1, b"t")
    found["litdata nested"] = alone(lambda data: parse_nested(memoryview(data)), nested)
    for level, unpack in (("batch", unpack_batches), ("sample", unpack_items)):
        chunk = SOURCES.folder("litdata", level).files["chunk-0-0.bin"]
        found[f"litdata {level}"] = alone(lambda data, unpack=unpack: unpack(data, max_bytes=1 << 16), chunk)  # type: ignore[misc]
    arrays = {
        ("mds/ndarray", "int16[...]"): bytes([17, 2 << 2 | 1, 1, 0, 2, 0, 1, 0, 2, 0]),
        ("mds/shaped", "uint8[...]"): bytes([1 << 2 | 3, 2, *bytes(7), 1, 2]),
        ("litdata/tensor", "bool[...]"): struct.pack(">IIII", 19, 2, 1, 2) + b"\1\0",
        ("litdata/numpy", "float32[...]"): struct.pack("<III", 9, 1, 2) + bytes(8),
        ("pil", "uint8[...]"): struct.pack("<III", 1, 2, 3) + b"RGB" + bytes(6),
        ("pil", "bool[...]"): struct.pack("<III", 9, 2, 1) + b"1" + bytes(4),
        ("tfrecord/floats", "float32[...]"): b"\x0a\x08" + bytes(8) + b"\x0d" + bytes(4),
        ("tfrecord/ints", "int64[...]"): b"\x0a\x05\x01\xac\x02\xff\x01\x08\x07",
    }
    for (encoding, type_), data in arrays.items():
        found[f"codec {encoding} {type_}"] = alone(foreign_codec(encoding, type_).decode, data)
    for form, data in {
        "mds/list": struct.pack("<IIII", 0, 2, 1, 2) + b"abb",
        "tfrecord/bytes": b"\x0a\1a\x0a\0",
    }.items():
        found[f"split {form}"] = alone(lambda data, form=form: split_list(form, data), data)  # type: ignore[misc]
    return found


def main() -> int:
    """Runs all cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=22)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    every = list(cases().items())
    counts: dict[str, Counter[str]] = {name: Counter() for name, _ in every}
    slowest = 0.0
    started = time.monotonic()
    for number in range(options.inputs):
        if number % 100_000 == 0:
            sys.stderr.write(f"{number} inputs after {time.monotonic() - started:.0f} s\n")
        name, (seed, run) = every[number % len(every)]
        data = (mutate_json if seed[:1] == b"{" and rng.random() < 0.8 else mutate)(rng, seed)
        before = time.monotonic()
        try:
            counts[name][run(data)] += 1
        except BaseException:
            sys.stderr.write(f"{name}: input {number} of seed {options.seed}: {data.hex()}\n")
            raise
        slowest = max(slowest, time.monotonic() - before)
        if slowest > MAX_INPUT_S:
            sys.stderr.write(f"{name}: input {number} of seed {options.seed} took {slowest:.1f} s: {data.hex()}\n")
            return 1
    for name, outcomes in counts.items():
        sys.stdout.write(f"{name:40} {dict(sorted(outcomes.items()))}\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(
        f"{options.inputs} inputs, seed {options.seed}, {time.monotonic() - started:.0f} s, slowest {slowest:.3f} s, "
        f"peak memory {peak} MiB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
