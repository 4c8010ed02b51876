"""Walks damaged tar files: `python -m tests.storage.adopt.fuzz_tar --inputs 1000000 --seed 0`.

Most damaged headers get a valid checksum, so that damage reaches the code behind it. Each result must be samples inside
the file, in order, or a `StorageError`; anything else ends the run, and prints the input. An input depends on the seed
and its number only.
"""

from __future__ import annotations

import argparse
import base64
import io
import random
import re
import sys
import tarfile
import time
from collections import Counter
from typing import Any

from concurrent_loader.storage.adopt.formats.webdataset import WebDataset
from concurrent_loader.storage.adopt.protocol import BytesReader, SourceObject
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

SOURCE = SourceObject(entry=ObjectEntry("memory://fuzz", "shard.tar", 0, None))
JPEG = b"\xff\xd8\xff\xe0"
NPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(127) + b"\n" + bytes(8)
# Where damage does most: sizes, checksums, types, magic, prefixes, and the beginning of names.
PLACES = (*range(124, 136), *range(148, 157), *range(257, 265), 345, 346, *range(4), 99, 499)
TOKENS = (
    b"\0", b"\xff", b"\x80", b"7", b"8", b"9", b" ", b"_", b"-", b"/", b".", b"..", b"\n", b"=", b"0", b"1", b"5", b"x",
    b"g", b"L", b"K", b"S", b"path=", b"size=", b"9999999999", b"\x80\0\0\0\0\0\0\0\0\0\1\0", b"77777777777",
    b"00000001000", b"00000000777", b"hdrcharset=BINARY", b"GNU.sparse.map=", b"12 path=a.jpg", bytes(12), JPEG,
    b"ustar\0",
)  # fmt: skip


def make_seeds() -> list[bytes]:
    """Returns small tar files of all formats."""
    members = [
        ("a/1.jpg", JPEG),
        ("a/1.cls", b"1"),
        ("a/1.json", b"{}"),
        ("b.jpg", JPEG),
        ("b.cls", b"2"),
        ("b.json", b"3"),
    ]
    long = [("n" * 120 + ".jpg", JPEG), ("n" * 120 + ".npy", NPY)]
    other = [("__meta__.json", b""), ("ü.seg.png", b"\x89PNG\r\n\x1a\n"), ("ü.txt", "ü".encode()), ("README", b"")]
    seeds = []
    for files in (members[:2], members, long, other):
        for format_ in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w", format=format_) as tar:
                for name, data in files:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    info.mtime = 1.5 if format_ == tarfile.PAX_FORMAT else 1
                    if format_ != tarfile.USTAR_FORMAT or len(name) < 100:
                        tar.addfile(info, io.BytesIO(data))
            data = file.getvalue().rstrip(b"\0")
            seeds.append(data + bytes(-len(data) % 512 + 1024))
    return seeds


def damage(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Returns a damaged tar file."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        num_blocks = len(data) // 512
        block = 512 * rng.randrange(num_blocks) if num_blocks else 0
        if kind < 0.55:
            at = min(block + rng.choice(PLACES), max(0, len(data) - 1))
            token = rng.choice(TOKENS)
            data[at : at + len(token)] = token
        elif kind < 0.75 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind < 0.85:
            other = rng.choice(seeds)
            start = 512 * rng.randrange(len(other) // 512)
            data[block:block] = other[start : start + 512 * rng.randint(1, 3)]
        elif kind < 0.95:
            del data[block : block + rng.choice((1, 100, 512, 1024))]
        else:
            del data[rng.randrange(len(data) + 1) :]
    if rng.random() < 0.9:
        for block in range(0, len(data) - 511, 512):
            if data[block + 257 : block + 262] == b"ustar":
                data[block + 148 : block + 156] = b" " * 8
                data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])
    return bytes(data)


def try_one(data: bytes, known: dict[str, Any]) -> str:
    """Walks an input; returns what came out."""
    reader, format_ = BytesReader(data, "shard.tar"), WebDataset()
    try:
        found = format_.columns(SOURCE, reader)
        end = 0
        for sample in format_.walk(SOURCE, reader, found):
            assert end <= sample.start < sample.end <= len(data)
            assert found.keys() <= sample.values.keys()
            end = sample.end
            for name, place in sample.values.items():
                if isinstance(place, ByteRange):
                    assert sample.start < place.start <= place.end <= sample.end
                    if name in found and Column("x", found[name].type).kind is not ColumnKind.PAYLOAD:
                        try:
                            format_.parse(name, found[name].type, reader.read(place.start, place.end))
                        except ValueError:
                            known["values that do not fit"] += 1
        return "samples"
    except StorageError as error:
        return re.sub("'.*?'", "…", error.what)[:60]


def main() -> None:
    """Runs the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seeds, results, known = make_seeds(), Counter[str](), Counter[str]()
    began = time.monotonic()
    for number in range(arguments.inputs):
        data = damage(random.Random(f"{arguments.seed}/{number}"), seeds)
        try:
            results[try_one(data, known)] += 1
        except BaseException:
            print(f"input {number} of seed {arguments.seed}: {base64.b85encode(data).decode()}", file=sys.stderr)
            raise
    print(f"{arguments.inputs} inputs in {time.monotonic() - began:.0f} s, {sum(results.values())} results as expected")
    for what, count in (*results.most_common(), *known.items()):
        print(f"{count:9} {what}")


if __name__ == "__main__":
    main()
