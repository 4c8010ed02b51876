"""Rows of several shards are read with one call, and come as if each shard had been read by itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache import FileShard, blocking_io, read_payload, read_values
from concurrent_loader.storage.cache.blocking_io import Drive, cut_values
from concurrent_loader.storage.errors import CorruptData, DigestMismatch, StoreError
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

SIZES = (0, 1, 200, 5_000, 40_000)


@pytest.fixture(params=["native", "python"])
def drive(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Drive:
    if request.param == "python":
        monkeypatch.setattr(blocking_io, "_native", None)
    return Drive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    columns = {"image": "bytes", "extra": "bytes?", "tokens": "int32[...]", "text": "str", "label": "int64"}
    with ShardWriter(tmp_path, columns=columns, shard_size="256KiB") as writer:
        for number in range(100):
            writer.write(expected(number))
    return tmp_path


def expected(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "image": rng.bytes(SIZES[number % len(SIZES)]),
        "extra": None if number % 3 == 0 else rng.bytes(50),
        "tokens": rng.integers(0, 9, number % 7, np.int32),
        "text": f"text {number}",
        "label": number,
    }


@pytest.fixture
def shards(folder: Path, drive: Drive) -> Iterator[list[FileShard]]:
    entries = list(asyncio.run(load_manifest(open_store(folder))).shards)
    opened = [FileShard(entry, os.open(folder / entry.key, os.O_RDONLY), drive=drive) for entry in entries]
    assert len(opened) > 3
    yield opened
    for shard in opened:
        shard.close()


def some_rows(shards: list[FileShard], seed: int) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
    """Rows of each shard, and their numbers in the dataset."""
    rng = np.random.default_rng(seed)
    rows, numbers, first = [], [], 0
    for shard in shards:
        count = shard.entry.num_samples
        rows.append(rng.permutation(count)[: rng.integers(0, count + 1)])
        numbers += (rows[-1] + first).tolist()
        first += count
    return rows, numbers


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("column", ["image", "extra", "text"])
def test_payload(shards: list[FileShard], seed: int, column: str) -> None:
    rows, numbers = some_rows(shards, seed)
    found = read_payload(shards, rows, column)
    wanted = [expected(number)[column] for number in numbers]
    wanted = [each.encode() if isinstance(each, str) else each for each in wanted]
    assert [None if data is None else bytes(data) for data in found] == wanted


@pytest.mark.parametrize("column", ["image", "extra", "tokens", "text", "label"])
def test_values(shards: list[FileShard], column: str) -> None:
    rows, numbers = some_rows(shards, 7)
    found = [value for run in read_values(shards, rows, column) for value in run]
    for value, number in zip(found, numbers, strict=True):
        np.testing.assert_equal(value, expected(number)[column])


def test_a_shard_in_memory_among_them(shards: list[FileShard]) -> None:
    shards[1]._read_whole()
    shards[2]._whole = shards[2].read(0, shards[2].entry.tail_start)
    rows, numbers = some_rows(shards, 3)
    found = read_payload(shards, rows, "image")
    assert [bytes(data or b"") for data in found] == [expected(number)["image"] for number in numbers]


def test_each_shard_decodes_its_own_type(drive: Drive, tmp_path: Path) -> None:
    opened, written = [], []
    for name in ("int32[...]", "float64[...]"):
        written.append(np.arange(5, dtype=name[:-5]))
        with ShardWriter(tmp_path / name[:3], columns={"a": name}) as writer:
            writer.write({"a": written[-1]})
        (entry,) = asyncio.run(load_manifest(open_store(tmp_path / name[:3]))).shards
        opened.append(FileShard(entry, os.open(tmp_path / name[:3] / entry.key, os.O_RDONLY), drive=drive))
    found = [value for run in read_values(opened, [np.zeros(1, np.int64)] * 2, "a") for value in run]
    for shard in opened:
        shard.close()
    for value, wanted in zip(found, written, strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)


def test_damage_names_shard_and_row(shards: list[FileShard], folder: Path) -> None:
    victim = shards[2]
    start = victim.index.payload_range(4, "image").start
    with (folder / victim.key).open("r+b") as file:
        file.seek(start)
        byte = file.read(1)
        file.seek(start)
        file.write(bytes([byte[0] ^ 1]))
    rows = [np.arange(shard.entry.num_samples) for shard in shards]
    with pytest.raises(DigestMismatch) as caught:
        read_payload(shards, rows, "image")
    assert (caught.value.shard, caught.value.sample, caught.value.column) == (victim.key, 4, "image")


def test_a_truncated_file_is_named(shards: list[FileShard], folder: Path) -> None:
    victim = shards[1]
    with (folder / victim.key).open("r+b") as file:
        file.truncate(victim.index.payload_range(3, "image").start)
    rows = [np.arange(shard.entry.num_samples) for shard in shards]
    with pytest.raises(CorruptData, match="shorter") as caught:
        read_payload(shards, rows, "image")
    assert caught.value.shard == victim.key


def test_a_file_that_cannot_be_read_is_named(shards: list[FileShard]) -> None:
    victim = shards[3]
    real, victim._fd = victim._fd, 2**20  # no such descriptor
    try:
        with pytest.raises(CorruptData, match="cannot be read: Bad file descriptor") as caught:
            read_payload(shards, [np.arange(shard.entry.num_samples) for shard in shards], "image")
    finally:
        victim._fd = real
    assert caught.value.shard == victim.key


def test_a_value_that_does_not_fit_into_memory_is_an_error(drive: Drive, folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        starts, ends = np.zeros(1, np.int64), np.full(1, 2**62)
        assert drive.read_many(np.full(1, fd), starts, ends) == [None]
    finally:
        os.close(fd)


def test_no_value_is_read_past_its_end_or_in_another_order(drive: Drive, tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(3_000_000)
    (tmp_path / "file").write_bytes(data)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    starts = np.array([2_999_990, 0, 17, 500_000, 2_999_999, 3_000_000, 2_999_999, 5])
    ends = np.array([3_000_000, 1, 17, 2_900_000, 3_000_000, 3_000_000, 3_000_001, 6])
    found = drive.read_many(np.full(len(starts), fd), starts, ends)
    os.close(fd)
    wanted = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    wanted[6] = None  # type: ignore[call-overload]
    assert found == wanted


def test_the_native_module_refuses_what_it_was_not_made_for() -> None:
    native = pytest.importorskip("concurrent_loader.storage.cache._reads")
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    for places in ((one, one, two), (two, one, one), (one, two, two), (one, one + 5, one), (one, one - 5, one)):
        with pytest.raises(ValueError, match="must"):
            native.read_many(*places)
    with pytest.raises(ValueError, match="must"):
        native.read_many(b"abc", b"abc", b"abc")
    assert native.read_many(b"", b"", b"") == []
    for starts, ends in ((one, two), (one + 1, one), (one - 1, one), (one, one + 4)):
        with pytest.raises(ValueError, match="must"):
            native.cut(b"abc", starts, ends)
    with pytest.raises(ValueError, match="must"):
        native.cut(b"abc", b"abc", b"abc")
    assert native.read_many(np.full(1, -1), one, one + 5) == [None]


@pytest.mark.usefixtures("drive")
def test_values_are_cut_out_of_bytes_and_of_views() -> None:
    starts, ends = np.array([0, 3, 1, 3]), np.array([2, 3, 6, 6])
    for data in (b"abcdef", memoryview(b"abcdef")):
        assert cut_values(data, starts, ends) == [b"ab", b"", b"bcdef", b"def"]
    assert cut_values(b"", starts[:0], ends[:0]) == []


def test_without_enough_memory_for_a_range_the_error_says_so(shards: list[FileShard]) -> None:
    def refuse(fd: int, num_bytes: int, offset: int) -> bytes:
        raise MemoryError

    for shard in shards:
        shard._drive.read = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="memory"):
        read_payload(shards, [np.arange(shard.entry.num_samples) for shard in shards], "image")


def test_a_shard_that_another_thread_reads_as_a_whole_meanwhile(shards: list[FileShard]) -> None:
    drive = shards[1]._drive

    class Late(FileShard):
        @property
        def _drive(self) -> Drive:  # type: ignore[override]  # asked for between two looks at the first shard
            shards[1].__class__ = FileShard
            shards[0]._whole = bytes(shards[0].read(0, shards[0].entry.tail_start))
            return drive

    shards[1].__class__ = Late
    rows = [np.arange(shard.entry.num_samples) for shard in shards]
    assert list(map(bytes, read_payload(shards, rows, "image"))) == [expected(at)["image"] for at in range(100)]
    assert shards[0]._whole is not None
