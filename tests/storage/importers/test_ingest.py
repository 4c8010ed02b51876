from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    CorruptData,
    NotFound,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers import ImageFolder, ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.ingest import IngestProgress, IngestReport, ingest
from concurrent_loader.storage.shards.format.index import verify_shard
from concurrent_loader.storage.shards.manifest.commit_tokens import COMMIT_TOKENS
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import MemoryStore, open_store

pytestmark = pytest.mark.usefixtures("no_leaks")


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def some_files(classes: str = "ab", num_each: int = 40) -> dict[str, bytes]:
    return {f"{name}/{number}.jpg": picture(number) for name in classes for number in range(num_each)}


@pytest.fixture
def url() -> str:
    return f"memory://ingest-{uuid4()}"


def folder(files: dict[str, bytes], **options: Any) -> ImageFolder:
    store = MemoryStore(f"memory://source-{uuid4()}")

    async def fill() -> None:
        for key, data in files.items():
            await store.put(key, data)

    asyncio.run(fill())
    return ImageFolder(store, **options)


def is_there(url: str) -> bool:
    return asyncio.run(latest_snapshot(open_store(url))) is not None


def contents(url: str, **storage_options: Any) -> dict[str, tuple[bytes, int]]:
    """Path → image and label of every sample, all of it verified."""

    async def run() -> dict[str, tuple[bytes, int]]:
        async with open_store(url, **storage_options) as store:
            manifest = await load_manifest(store)
            assert (await verify_dataset(FetchEngine(store), manifest)).problems == ()
            found = {}
            for entry in manifest.shards:
                data = (await store.get(entry.key)).data
                index = verify_shard(data)
                for row in range(index.num_samples):
                    place = index.payload_range(row, "image")
                    found[index.value("path", row)] = (bytes(data[place.start : place.end]), index.value("label", row))
            return found

    return asyncio.run(run())


def test_everything_arrives(url: str) -> None:
    files = {**some_files(), "a/readme.txt": b""}
    seen: list[IngestProgress] = []
    report = ingest(folder(files), url, shard_size="32KiB", metadata={"by": "me"}, on_progress=seen.append)
    del files["a/readme.txt"]
    assert contents(url) == {name: (data, "ab".index(name[0])) for name, data in files.items()}
    assert (report.num_samples, report.num_skipped, report.num_ignored) == (80, 0, 1)
    assert report.num_bytes == sum(map(len, files.values()))
    assert {key: value for key, value in report.manifest.metadata.items() if key != COMMIT_TOKENS} == {
        "by": "me",
        "classes": {"label": ["a", "b"]},
        "last_import": {"num_samples": 80, "num_skipped": 0, "skipped": []},
    }
    assert (seen[0].num_done, seen[-1].num_done, seen[-1].num_total) == (0, 80, 80)
    assert seen[-1].num_bytes == report.num_bytes


def test_the_same_folder_makes_the_same_data_set() -> None:
    source = folder(some_files()).url
    digests = {
        ingest(
            ImageFolder(open_store(source), in_flight=in_flight), f"memory://{uuid4()}", uploads_in_flight=in_flight
        ).manifest.digest
        for in_flight in (1, 8)
    }
    assert len(digests) == 1


def test_the_source_is_not_the_destination(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(picture(1))
    with pytest.raises(ConfigurationError, match="same folder"):
        ingest(ImageFolder(open_store(tmp_path)), f"{tmp_path}/")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_writer_that_was_quicker_is_named(url: str) -> None:
    def meanwhile(progress: IngestProgress) -> None:
        if progress.num_done == 80:
            ingest(folder(some_files()), url)

    with pytest.raises(CommitConflict, match="--append"):
        ingest(folder(some_files()), url, on_progress=meanwhile)


class TestAppendingTheSameSource:
    def test_adds_it_once(self, url: str) -> None:
        source = folder(some_files()).url
        reports = [ingest(ImageFolder(open_store(source)), url, append=True) for _ in range(3)]
        assert [(report.repeats, report.num_samples) for report in reports] == [(False, 80), (True, 0), (True, 0)]
        assert {report.manifest.snapshot for report in reports} == {1}
        assert len(contents(url)) == 80

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_adds_nothing_to_a_data_set_made_of_it(self, url: str, overwrite: bool) -> None:
        source = folder(some_files()).url
        for _ in range(2 if overwrite else 1):  # a second overwrite is no repetition
            report = ingest(ImageFolder(open_store(source)), url, overwrite=overwrite)
            assert (report.repeats, report.num_samples) == (False, 80)
        report = ingest(ImageFolder(open_store(source)), url, append=True)
        assert (report.repeats, report.num_samples, report.manifest.num_samples) == (True, 0, 80)
        with pytest.raises(AlreadyExists):
            ingest(ImageFolder(open_store(source)), url)

    def test_adds_nothing_after_it_was_added_again(self, url: str) -> None:
        source = folder(some_files()).url
        ingest(ImageFolder(open_store(source)), url, append=True, again=True)
        assert ingest(ImageFolder(open_store(source)), url, append=True).repeats

    def test_unless_that_is_wanted(self, url: str) -> None:
        source = folder(some_files()).url
        ingest(ImageFolder(open_store(source)), url, append=True)
        assert ingest(ImageFolder(open_store(source)), url, append=True, again=True).manifest.num_samples == 160
        assert ingest(ImageFolder(open_store(source)), url, append=True).repeats
        with pytest.raises(ConfigurationError, match="token"):
            ingest(ImageFolder(open_store(source)), url, append=True, again=True, token="x")

    def test_another_source_or_way_is_added(self, url: str) -> None:
        source = folder(some_files()).url
        ingest(ImageFolder(open_store(source)), url, append=True)
        asyncio.run(open_store(source).put("a/0.jpg", picture(77)))
        assert not ingest(ImageFolder(open_store(source)), url, append=True).repeats
        assert not ingest(ImageFolder(open_store(source), shuffle_seed=1), url, append=True).repeats
        assert asyncio.run(load_manifest(open_store(url))).num_samples == 240

    def test_a_token_of_the_users_own(self, url: str) -> None:
        for expected in (False, True):
            assert ingest(folder(some_files()), url, token="monday").repeats is expected
        with pytest.raises(AlreadyExists):
            ingest(folder(some_files()), url, token="tuesday")

    def test_two_at_once_add_it_once(self, url: str) -> None:
        source = folder(some_files()).url
        late: list[IngestReport] = []

        def meanwhile(progress: IngestProgress) -> None:
            if progress.num_done == 80 and not late:
                late.append(ingest(ImageFolder(open_store(source)), url, append=True))

        report = ingest(ImageFolder(open_store(source)), url, append=True, on_progress=meanwhile)
        assert (late[0].repeats, report.repeats, report.num_samples) == (False, True, 0)
        assert len(contents(url)) == 80


class TestBadFiles:
    FILES: ClassVar = {**some_files(), "b/empty.jpg": b"", "b/cut é.jpg": picture(1)[:-99]}

    def test_fail_names_the_file_and_commits_nothing(self, url: str) -> None:
        with pytest.raises(CorruptData) as caught:
            ingest(folder(self.FILES), url)
        assert caught.value.key in ("b/empty.jpg", "b/cut é.jpg")
        assert not is_there(url)

    def test_skip_counts_and_lists(self, url: str) -> None:
        report = ingest(folder(self.FILES), url, on_error="skip")
        assert (report.num_samples, report.num_skipped) == (80, 2)
        assert {problem.name for problem in report.skipped} == {"b/empty.jpg", "b/cut é.jpg"}
        kept = report.manifest.metadata["last_import"]
        assert kept["num_skipped"] == 2
        assert [(entry["name"], entry["reason"]) for entry in kept["skipped"]] == [
            (problem.name, problem.reason) for problem in report.skipped
        ]
        assert len(contents(url)) == 80

    def test_the_manifest_lists_a_bounded_number(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("concurrent_loader.storage.importers.item_run._MAX_LISTED", 1)
        kept = ingest(folder(self.FILES), url, on_error="skip").manifest.metadata["last_import"]
        assert (kept["num_skipped"], len(kept["skipped"])) == (2, 1)

    def test_nothing_but_bad_files(self, url: str) -> None:
        with pytest.raises(CorruptData, match="no file can be imported"):
            ingest(folder({"a/x.jpg": b"x"}), url, on_error="skip")
        assert not is_there(url)

    def test_what_only_the_writer_refuses(self, url: str) -> None:
        report = ingest(Listed([{"x": 1}, {"x": "no"}, {"x": 300}, {"x": 2}]), url, on_error="skip")
        assert (report.num_samples, [problem.name for problem in report.skipped]) == (2, ["1", "2"])


class Listed:
    """An importer of given values, of one int8 column."""

    url = "list"

    def __init__(self, values: list[dict[str, object]], during: Any = None) -> None:
        self._values = values
        self._during = during
        self.closed = 0

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        if self._during is not None:
            await asyncio.to_thread(self._during)
        return ImportScan(columns={"x": "int8"}, num_samples=len(self._values), num_bytes=0)

    async def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        for number, values in enumerate(self._values):
            if values.get("x") == "denied":
                raise AccessDenied("not allowed")
            yield ImportedSample(name=str(number), values=values, num_bytes=1)

    async def close(self) -> None:
        self.closed += 1


class TestSnapshots:
    def test_append_keeps_class_numbers(self, url: str) -> None:
        ingest(folder(some_files("bd", 5)), url)
        second = ingest(folder(some_files("abc", 3)), url, append=True)
        assert second.num_samples == 9
        assert second.manifest.num_samples == 19
        assert second.manifest.metadata["classes"]["label"] == ["b", "d", "a", "c"]
        assert {name: label for name, (_, label) in contents(url).items() if name.startswith("c/")} == {
            f"c/{number}.jpg": 3 for number in range(3)
        }

    def test_append_to_nothing(self, url: str) -> None:
        assert ingest(folder(some_files()), url, append=True).manifest.snapshot == 1

    def test_an_existing_data_set_is_not_touched(self, url: str) -> None:
        ingest(Listed([{"x": 1}]), url)
        importer = Listed([{"x": 1}])
        with pytest.raises(AlreadyExists):
            ingest(importer, url)
        assert importer.closed == 1

    def test_overwrite(self, url: str) -> None:
        ingest(Listed([{"x": 1}]), url)
        assert ingest(folder(some_files()), url, overwrite=True).manifest.snapshot == 2

    def test_append_while_another_appends(self, url: str) -> None:
        def other() -> None:
            with ShardWriter(url, columns={"x": "int8"}, append=True) as writer:
                writer.write({"x": 1})

        with pytest.raises(CommitConflict):
            ingest(Listed([{"x": 1}], other), url, append=True)


def test_a_source_that_fails(url: str) -> None:
    importer = Listed([{"x": 1}, {"x": "denied"}])
    with pytest.raises(AccessDenied):
        ingest(importer, url, on_error="skip")
    assert importer.closed == 1
    assert not is_there(url)


def test_a_source_that_is_not_there(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        ingest(ImageFolder(open_store(tmp_path / "missing")), url)


def test_options_that_cannot_work(url: str) -> None:
    with pytest.raises(ConfigurationError):
        ingest(Listed([]), url, on_error="ignore")  # type: ignore[arg-type]


def test_a_progress_callback_that_raises(url: str) -> None:
    class EnoughError(Exception):
        pass

    def stop(now: IngestProgress) -> None:
        if now.num_done > 30:
            raise EnoughError

    with pytest.raises(EnoughError):
        ingest(folder(some_files()), url, on_progress=stop)
    assert not is_there(url)


@pytest.mark.processes
def test_an_interrupt_leaves_no_thread_and_no_data_set(tmp_path: Path) -> None:
    script = """
import asyncio, sys, threading
from concurrent_loader.storage.importers import ImportScan
from concurrent_loader.storage.importers.ingest import ingest

class Endless:
    url = "endless"
    async def scan(self, onto=None):
        return ImportScan(columns={"x": "int8"}, num_samples=1, num_bytes=0)
    async def read(self):
        try:
            print("waiting", flush=True)
            await asyncio.Event().wait()
            yield
        finally:
            for _ in range(1000):  # it takes its time
                await asyncio.sleep(0)
            print("unwound", flush=True)
    async def close(self):
        print("closed", flush=True)

try:
    ingest(Endless(), sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate()], flush=True)
"""
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "data")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert out == "unwound\nclosed\ninterrupted ['MainThread']\n"
    assert err == ""


@pytest.mark.s3
def test_from_bucket_to_bucket(s3_bucket: Any) -> None:
    files = some_files(num_each=20)
    source = f"{s3_bucket.url}/raw files"
    destination = f"{s3_bucket.url}/shards"

    async def fill() -> None:
        async with open_store(source, **s3_bucket.storage_options) as store:
            for key, data in files.items():
                await store.put(key, data)

    asyncio.run(fill())
    report: IngestReport = ingest(
        ImageFolder(open_store(source, **s3_bucket.storage_options)),
        destination,
        shard_size="32KiB",
        storage_options=s3_bucket.storage_options,
    )
    assert report.num_samples == 40
    assert contents(destination, **s3_bucket.storage_options) == {
        name: (data, "ab".index(name[0])) for name, data in files.items()
    }
