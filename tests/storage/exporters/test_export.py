"""What all formats share: resume, destinations, damage, limits."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from concurrent_loader import ShardWriter, export
from concurrent_loader.storage import delete
from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    ConnectionFailed,
    CorruptData,
    DatasetChanged,
    FormatError,
    NotFound,
    SchemaError,
    StoreError,
)
from concurrent_loader.storage.exporters import write_files
from concurrent_loader.storage.exporters.export import ExportOptions, export_snapshot
from concurrent_loader.storage.exporters.registry import FORMAT_NAMES
from concurrent_loader.storage.exporters.write_files import ExportProgress
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import MemoryStore, open_store
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, FaultStore, Script

pytestmark = pytest.mark.usefixtures("no_leaks")

SIMPLE = ["image", "label", "name.de"]  # columns that every format holds
SMALL = ExportOptions(columns=SIMPLE, shard_bytes=4096)
ONCE = RetryPolicy(max_attempts=1)


def exported(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {key: data for key, data in objects.items() if not key.startswith(".concurrent-loader/")}


def contents_of(objects: dict[str, bytes]) -> bytes:
    """All bytes; those of Parquet decompressed."""
    found = []
    for key, data in objects.items():
        if key.endswith(".parquet"):
            rows = pq.read_table(io.BytesIO(data)).to_pylist()
            found += [row["image"]["bytes"] for row in rows]
        else:
            found.append(data)
    return b"".join(found)


def failing(is_hit: Callable[[Call], bool]) -> Script:
    return lambda call: [Fail(ConnectionFailed)] if is_hit(call) else []


def run(source: Any, store: Any, name: str = "webdataset", **options: Any) -> Any:
    engine = FetchEngine(source, retry=ONCE) if not isinstance(source, FetchEngine) else source
    return asyncio.run(export_snapshot(engine, store, name, options=SMALL, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_folder_and_a_store_get_the_same_files(dataset, tmp_path, objects, name):
    url = f"memory://{uuid4()}"
    for dst in (tmp_path / "out", url):
        report = export(dataset, dst, name, columns=SIMPLE, shard_size="4KiB")
        assert (report.num_samples, report.format, report.snapshot, report.repeats) == (20, name, 1, False)
    folder, store = objects(str(tmp_path / "out")), objects(url)
    assert folder == store
    assert sum(".concurrent-loader/" in key for key in store) == 2
    assert not list((tmp_path / "out").rglob(".unfinished*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("number", [1, 3, 6])
def test_an_interrupted_export_continues_with_the_files_that_are_missing(dataset, objects, name, number):
    whole, part = MemoryStore(f"memory://{uuid4()}"), MemoryStore(f"memory://{uuid4()}")
    source = open_store(dataset)
    expected = run(source, whole, name)
    puts = 0

    def is_hit(call: Call) -> bool:
        nonlocal puts
        puts += call.operation == "put"
        return puts > number

    with pytest.raises(ConnectionFailed):
        run(source, FaultStore(part, failing(is_hit)), name)
    before = objects(part.url)
    assert ".concurrent-loader/complete.json" not in before
    assert len(before) == number

    calls = FaultStore(part, lambda call: [])
    report = run(source, calls, name)
    assert objects(part.url) == objects(whole.url)
    written = [call.key for call in calls.calls if call.operation == "put"]
    if name != "image-folder":  # whose images are written again until their part of the metadata is finished
        assert report.num_kept == number - 1
        assert not set(written).intersection(before)
        assert report.num_bytes == expected.num_bytes
    assert run(source, part, name).repeats


def test_a_complete_export_is_left_alone(dataset, tmp_path, objects):
    first = export(dataset, tmp_path / "out", "webdataset")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = export(dataset, tmp_path / "out", "webdataset")
    assert again.repeats
    assert (again.num_bytes, again.num_kept, again.num_files) == (first.num_bytes, first.num_files, first.num_files)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_another_export_or_other_files_are_not_overwritten(dataset, write, samples, tmp_path):
    export(dataset, tmp_path / "out", "webdataset", columns=SIMPLE)
    for change, what in [
        ({"format": "mds"}, "another format"),
        ({"columns": ["image"]}, "another columns"),
        ({"shard_size": "4KiB"}, "another shard_size"),
        ({"key_column": "name.de"}, "another key_column"),
    ]:
        with pytest.raises(AlreadyExists, match=what):
            export(dataset, tmp_path / "out", **{"format": "webdataset", "columns": SIMPLE, **change})
    write(dataset, samples, append=True)
    with pytest.raises(AlreadyExists, match="another snapshot") as caught:
        export(dataset, tmp_path / "out", "webdataset", columns=SIMPLE)
    assert (caught.value.expected, caught.value.got) == (2, 1)
    assert export(dataset, tmp_path / "out", "webdataset", columns=SIMPLE, snapshot=1).repeats
    assert export(dataset, tmp_path / "two", "webdataset", columns=SIMPLE).num_samples == 40

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(AlreadyExists, match="not empty") as caught:
        export(dataset, tmp_path / "mine", "webdataset")
    assert caught.value.key == "thesis.tex"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("state", [b"{", b"[]", b"\xff", b"null", b"{}", b" " * (2 << 20)])
def test_a_damaged_state_is_an_error(dataset, tmp_path, state):
    (tmp_path / ".concurrent-loader").mkdir()
    (tmp_path / ".concurrent-loader" / "export.json").write_bytes(state)
    with pytest.raises((AlreadyExists, FormatError)):
        export(dataset, tmp_path, "webdataset")
    assert [path.name for path in tmp_path.iterdir()] == [".concurrent-loader"]


def test_a_file_without_its_state_is_not_taken_for_a_finished_one(dataset, tmp_path):
    (tmp_path / "shard-000000.tar").write_bytes(b"half")
    with pytest.raises(AlreadyExists, match="not empty"):
        export(dataset, tmp_path, "webdataset")


def test_short_cuts_of_the_network_are_retried(dataset, objects):
    straight, cut = MemoryStore(f"memory://{uuid4()}"), MemoryStore(f"memory://{uuid4()}")
    run(open_store(dataset), straight)
    seen: dict[str, int] = {}

    def first_of_each(call: Call) -> Sequence[Fail]:
        seen[call.operation + call.key] = seen.get(call.operation + call.key, 0) + 1
        is_late = call.operation == "put" and call.number % 2 == 0  # the object arrives, its answer does not
        return [Fail(ConnectionFailed, after=is_late)] if seen[call.operation + call.key] == 1 else []

    source = FaultStore(open_store(dataset), first_of_each)
    quick = RetryPolicy(base_delay_s=0.001, max_delay_s=0.01)
    engine = FetchEngine(source, retry=quick)
    asyncio.run(export_snapshot(engine, FaultStore(cut, first_of_each), "webdataset", options=SMALL))
    assert objects(cut.url) == objects(straight.url)


# -- damage ------------------------------------------------------------------------------------------------------------


async def damage(url: str, number: int) -> tuple[str, int]:
    """Flips a bit in the first value of a shard; returns its key, and the number of its first sample."""
    async with open_store(url) as store:
        manifest = await load_manifest(store)
        entry = manifest.shards[number]
        data = bytearray((await store.get(entry.key)).data)
        data[70] ^= 1
        await store.put(entry.key, data)
        return entry.key, int(sum(manifest.table.num_samples[:number]))


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_corrupt_shard_is_an_error_and_nothing_of_it_is_written(write, samples, tmp_path, is_local, name):
    url = str(tmp_path / "in") if is_local else f"memory://{uuid4()}"
    write(url, samples)
    key, first = asyncio.run(damage(url, 2))
    with pytest.raises((CorruptData, DatasetChanged)) as caught:
        export(url, tmp_path / "out", name, columns=SIMPLE, shard_size="4KiB", workers=1)
    assert caught.value.shard == key
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert not any("complete" in path or "index" in path or path == "metadata.jsonl" for path in written)
    data = contents_of({path: (tmp_path / "out" / path).read_bytes() for path in written})
    assert all(each["image"] in data for each in samples[:first])
    assert samples[first]["image"] not in data
    assert not list((tmp_path / "out").rglob(".unfinished*"))


def test_a_missing_shard_is_an_error(dataset, tmp_path):
    async def remove() -> None:
        async with open_store(dataset) as store:
            await store.delete((await load_manifest(store)).shards[1].key)

    asyncio.run(remove())
    with pytest.raises((NotFound, DatasetChanged)):
        export(dataset, tmp_path / "out", "webdataset", shard_size="4KiB")


# -- limits ------------------------------------------------------------------------------------------------------------


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Makes the system refuse longer files, as a full drive does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["webdataset", "parquet", "mds"])
@pytest.mark.parametrize("is_local", [True, False])
def test_a_full_drive_is_an_error_and_the_export_continues_later(
    write, tmp_path, make_picture, name, is_local, objects
):
    rows = [{"image": make_picture(0) + os.urandom(200_000)} for _ in range(12)]
    write(tmp_path / "in", rows, {"image": "jpeg"}, None, shard_size="1MiB")
    dst = str(tmp_path / "out") if is_local else f"memory://{uuid4()}"
    options: dict[str, Any] = {"shard_size": "4MiB", "scratch_dir": tmp_path}
    where = "destination" if is_local else f"drive of {tmp_path}"
    with largest_file(1_500_000), pytest.raises(StoreError, match=where) as caught:
        export(tmp_path / "in", dst, name, **options)
    assert "is full; free some space and repeat the command" in caught.value.what
    assert not exported(objects(dst))
    assert not list(tmp_path.rglob(".unfinished*"))
    assert export(tmp_path / "in", dst, name, **options).num_samples == 12


def test_the_system_without_permission_to_write(dataset, tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("concurrent_loader.storage.exporters.destination.create_unfinished", refuse)
    with pytest.raises(AccessDenied, match="cannot write here"):
        export(dataset, tmp_path / "out", "webdataset")


def test_shards_in_memory_are_bounded(dataset, tmp_path, monkeypatch):
    """With room for one shard, several workers wait for each other and none for itself."""
    monkeypatch.setattr(write_files, "_MAX_SHARD_BYTES", 1)
    assert export(dataset, tmp_path / "out", "webdataset", shard_size="8KiB", workers=8).num_samples == 20


def test_samples_are_written_in_slices(dataset, tmp_path, monkeypatch, objects):
    export(dataset, tmp_path / "a", "parquet")
    monkeypatch.setattr(write_files, "_SLICE_BYTES", 1)
    export(dataset, tmp_path / "b", "parquet")
    assert exported(objects(str(tmp_path / "a"))) == exported(objects(str(tmp_path / "b")))


def test_large_shards_are_divided_into_files(write, samples, tmp_path):
    write(tmp_path / "in", samples, shard_size="1MiB")
    report = export(tmp_path / "in", tmp_path / "out", "webdataset", shard_size="4KiB", columns=SIMPLE)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert report.num_files == len(index["shardlist"]) > 4
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("at", [0, 5, 12])
def test_a_cancelled_export_leaves_finished_files_alone(dataset, tmp_path, name, at, objects):
    async def cancel() -> None:
        def watch(now: ExportProgress) -> None:
            if now.num_samples >= at:
                exporting.cancel()

        async with open_store(dataset) as source, open_store(tmp_path / "out") as store:
            exporting = asyncio.create_task(
                export_snapshot(FetchEngine(source), store, name, options=SMALL, on_progress=watch)
            )
            with pytest.raises(asyncio.CancelledError):
                await exporting

    asyncio.run(cancel())
    assert not list(tmp_path.rglob(".unfinished*"))
    assert not list(tmp_path.rglob("complete.json"))
    export(dataset, tmp_path / "out", name, columns=SIMPLE, shard_size=4096)
    export(dataset, tmp_path / "straight", name, columns=SIMPLE, shard_size=4096)
    assert objects(str(tmp_path / "out")) == objects(str(tmp_path / "straight"))


def test_progress_ends_at_its_total(dataset, tmp_path):
    seen: list[ExportProgress] = []
    export(dataset, tmp_path / "out", "webdataset", shard_size="4KiB", on_progress=seen.append)
    assert seen[0].num_bytes == 0
    assert seen[0].num_bytes_total == seen[-1].num_bytes_total == seen[-1].num_bytes > 0
    assert seen[-1].num_samples == 20
    assert [each.num_bytes for each in seen] == sorted(each.num_bytes for each in seen)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"format": "zip"}, ConfigurationError, "format must be one of webdataset"),
        ({"shard_size": 0}, ConfigurationError, "shard_size"),
        ({"workers": 0}, ConfigurationError, "workers"),
        ({"workers": True}, ConfigurationError, "workers"),
        ({"columns": "image"}, ConfigurationError, "columns must be a list"),
        ({"columns": []}, ConfigurationError, "at least one"),
        ({"columns": ["nothing"]}, SchemaError, "no such column"),
        ({"columns": {"image": "a/b"}}, SchemaError, "name"),
        ({"columns": {"image": "x", "label": "x"}}, ConfigurationError, "the same name"),
        ({"key_column": "nothing"}, SchemaError, "no such column"),
        ({"key_column": "label"}, SchemaError, "must be of type str"),
        ({"snapshot": 7}, NotFound, "no such snapshot"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(dataset, tmp_path, options, error, what):
    with pytest.raises(error, match=what):
        export(dataset, tmp_path / "out", **{"format": "webdataset", **options})
    assert not (tmp_path / "out").exists()


def test_the_destination_is_outside_of_the_dataset(write, samples, tmp_path):
    write(tmp_path / "in", samples[:1])
    for dst in (tmp_path / "in", tmp_path / "in" / "out", tmp_path):
        with pytest.raises(ConfigurationError, match="outside of the dataset"):
            export(tmp_path / "in", dst, "webdataset")
    assert export(tmp_path / "in", tmp_path / "in-2", "webdataset").num_samples == 1


def test_no_secret_of_a_destination_is_shown(dataset):
    with pytest.raises(ConfigurationError) as caught:
        export(dataset, "s3://key:canary-secret@bucket/out", "webdataset")
    assert "canary-secret" not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        export(dataset, "memory://out", "webdataset", dst_storage_options={"secret_access_key": "canary-secret"})
    assert "canary-secret" not in repr(caught.value)
    frames = [frame.frame.f_locals for frame in caught.traceback]
    assert not any("canary-secret" in repr(value) for frame in frames[1:] for value in frame.values())


def test_classes_that_are_no_lists_of_names_are_ignored(samples, tmp_path):
    for number, classes in enumerate(({"label": "ab"}, {"label": [1]}, ["label"], {"image": ["a"]}, {"label": []})):
        with ShardWriter(
            str(tmp_path / f"in{number}"), columns={"image": "jpeg", "label": "int64"}, metadata={"classes": classes}
        ) as writer:
            writer.write({name: samples[1][name] for name in ("image", "label")})
        export(tmp_path / f"in{number}", tmp_path / f"out{number}", "image-folder")
        assert (tmp_path / f"out{number}" / "00001" / "000000.jpg").exists()


# -- real processes and servers ----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_killed_export_continues(write, tmp_path, make_picture, objects):
    rows = [{"image": make_picture(0) + os.urandom(20_000)} for _ in range(600)]
    write(tmp_path / "in", rows, {"image": "jpeg"}, None, shard_size="64KiB")
    export(tmp_path / "in", tmp_path / "straight", "webdataset", shard_size="64KiB")
    program = (
        "import sys, time\n"
        "from concurrent_loader import export\n"
        "from concurrent_loader.storage.exporters import destination\n"
        "publish = destination.Destination.publish\n"
        "async def slow(self, key, file):\n"
        "    time.sleep(0.02)\n"
        "    return await publish(self, key, file)\n"
        "destination.Destination.publish = slow\n"
        "export(sys.argv[1], sys.argv[2], 'webdataset', shard_size='64KiB')\n"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "in"), str(out)])
    try:
        deadline = time.monotonic() + 60
        while len(list(out.glob("*.tar"))) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("*.tar")}
    assert not (out / "index.json").exists()
    report = export(tmp_path / "in", out, "webdataset", shard_size="64KiB")
    assert report.num_kept == len(kept) < report.num_files
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in kept} == kept
    assert objects(str(out)) == objects(str(tmp_path / "straight"))
    assert not list(out.rglob(".unfinished*"))


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_from_bucket_to_bucket_in_parts(s3_bucket, write, tmp_path, make_picture, name):
    rows = [{"image": make_picture(n) + os.urandom(900_000), "label": n % 3} for n in range(30)]
    options = {"storage_options": s3_bucket.storage_options}
    write(f"{s3_bucket.url}/in", rows, {"image": "jpeg", "label": "int64"}, shard_size="4MiB", **options)
    dst = f"{s3_bucket.url}/out"
    report = export(
        f"{s3_bucket.url}/in", dst, name, scratch_dir=tmp_path, **options, dst_storage_options=s3_bucket.storage_options
    )
    assert report.num_samples == 30

    async def contents() -> dict[str, bytes]:
        async with open_store(dst, **s3_bucket.storage_options) as store:
            return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list("")}

    found = asyncio.run(contents())
    assert ".concurrent-loader/complete.json" in found
    data = contents_of(found)
    assert all(row["image"] in data for row in rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shard_size", ["2KiB", "256MiB"])
def test_deleted_samples_are_not_exported(tmp_path: Path, shard_size: str) -> None:
    with ShardWriter(tmp_path / "in", columns={"text": "str", "number": "int64"}, shard_size="4KiB") as writer:
        for number in range(400):
            writer.write({"text": f"text {number}", "number": number})
    delete(tmp_path / "in", where="number < 150 or number in [200, 201, 399]")
    live = [number for number in range(150, 399) if number not in (200, 201)]
    report = export(tmp_path / "in", tmp_path / "out", "mds", shard_size=shard_size)
    assert report.num_samples == len(live)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert sum(shard["samples"] for shard in index["shards"]) == len(live)
    report = export(tmp_path / "in", tmp_path / "tar", "webdataset", shard_size=shard_size)
    found = []
    for file in sorted((tmp_path / "tar").glob("*.tar")):
        with tarfile.open(file) as tar:
            found += [tar.extractfile(each).read() for each in tar if each.name.endswith(".text.txt")]
    assert found == [b"text %d" % number for number in live]
