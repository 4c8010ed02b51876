"""Shards of small samples are copied into memory after many reads, within a bound."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache import FileShard, open_shard
from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.errors import CorruptData, DigestMismatch
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

NUM_ROWS = 400


class CountingDrive(Drive):
    """Counts the reads."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, fd: int, num_bytes: int, offset: int) -> bytes:
        self.sizes.append(num_bytes)
        return super().read(fd, num_bytes, offset)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Room of its own, which the other tests do not take from."""
    room = open_shard._Room(1 << 20)
    monkeypatch.setattr(open_shard, "_whole_shards", room)
    return room


def made(folder: Path, size: int) -> tuple[FileShard, CountingDrive, list[bytes], Path]:
    """A shard of values whose neighbours are too far away to be read with them."""
    rng = np.random.default_rng(0)
    values = [rng.bytes(size) for _ in range(NUM_ROWS)]
    with ShardWriter(folder, columns={"value": "bytes"}, shard_size="64MiB") as writer:
        for value in values:
            writer.write({"value": value})
    (entry,) = asyncio.run(load_manifest(open_store(folder))).shards
    drive, path = CountingDrive(), folder / entry.key
    return FileShard(entry, os.open(path, os.O_RDONLY), drive=drive), drive, values, path


def read(shard: FileShard, rows: list[int]) -> list[bytes]:
    return [bytes(value) for row in rows for value in shard.payload("value", np.array([row], np.int64))]


def test_many_reads_of_small_samples_become_one(tmp_path: Path, room: Any) -> None:
    shard, drive, values, _ = made(tmp_path, 1000)
    order = np.random.default_rng(1).permutation(NUM_ROWS).tolist()
    before = len(drive.sizes)
    assert read(shard, order) == [values[row] for row in order]
    assert drive.sizes[before:] == [1000] * 64 + [shard.entry.tail_start]
    assert room._left == (1 << 20) - shard.entry.tail_start
    shard.close()
    assert room.take(1 << 20)


def test_large_samples_stay_in_the_file(tmp_path: Path, room: Any) -> None:
    shard, drive, values, _ = made(tmp_path, 5000)
    before = len(drive.sizes)
    assert read(shard, list(range(NUM_ROWS))) == values
    assert drive.sizes[before:] == [5000] * NUM_ROWS
    shard.close()
    assert room.take(1 << 20)


def test_without_room_samples_stay_in_the_file_until_there_is_some(tmp_path: Path, room: Any) -> None:
    shard, drive, values, _ = made(tmp_path, 1000)
    assert room.take(1 << 20)
    assert read(shard, list(range(NUM_ROWS))) == values
    assert drive.sizes[-1] == 1000
    room.give_back(1 << 20)
    assert read(shard, [7, 8]) == values[7:9]
    assert drive.sizes[-1] == shard.entry.tail_start
    shard.close()


def test_without_memory_samples_stay_in_the_file(tmp_path: Path, room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, drive, values, _ = made(tmp_path, 1000)
    read_some = drive.read

    def read_little(fd: int, num_bytes: int, offset: int) -> bytes:
        if num_bytes > 1000:
            raise MemoryError
        return read_some(fd, num_bytes, offset)

    monkeypatch.setattr(drive, "read", read_little)
    assert read(shard, list(range(NUM_ROWS))) == values
    assert room.take(1 << 20)
    shard.close()


def test_a_damaged_file_is_found_before_and_after(tmp_path: Path, room: Any) -> None:
    shard, _, values, path = made(tmp_path, 1000)
    data = bytearray(path.read_bytes())
    data[data.index(values[300])] ^= 1
    path.write_bytes(data)
    with pytest.raises(DigestMismatch) as caught:
        read(shard, [300])
    assert caught.value.sample == 300
    read(shard, list(range(100)))
    with pytest.raises(DigestMismatch):
        read(shard, [300])
    shard.close()


def test_a_truncated_file_is_an_error_and_gives_the_room_back(tmp_path: Path, room: Any) -> None:
    shard, _, _, path = made(tmp_path, 1000)
    with path.open("r+b") as file:
        file.truncate(200_000)
    with pytest.raises(CorruptData, match="shorter"):
        read(shard, list(range(100)))
    shard.close()
    assert room.take(1 << 20)
