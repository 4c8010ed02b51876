from __future__ import annotations

import asyncio
import errno
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from concurrent_loader.storage.columns import drop_column
from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    CorruptData,
    NotFound,
    SchemaError,
    ServerError,
    StorageError,
    StoreError,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers import ImageFolder, ParquetFiles, PythonGenerator, TarFiles, TextFiles
from concurrent_loader.storage.importers.ingest import IngestReport, ingest
from concurrent_loader.storage.importers.ingest_plan import IngestPart
from concurrent_loader.storage.importers.parts import plan_parts, write_part
from concurrent_loader.storage.importers.parts_commit import commit_parts, unfinished_imports
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, list_snapshots, load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import MemoryStore, open_store
from concurrent_loader.storage.stores.backends import local
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore, seeded

pytestmark = pytest.mark.usefixtures("no_leaks")

T = TypeVar("T")
NUM_FILES = 100
SHARD = "4KiB"  # so that some dozens of small files are several parts


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small images in two classes, one of them damaged."""
    import io

    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    for number in range(NUM_FILES):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        path = root / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file.getvalue() if number != 17 else file.getvalue()[:-200])
    return root


def new_url() -> str:
    return f"memory://parts-{uuid4()}"


def plan(images: Path, url: str | FaultStore, **options: object) -> tuple[IngestPart, ...]:
    return plan_parts(ImageFolder(open_store(images)), url, shard_size=SHARD, on_error="skip", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(images: Path) -> IngestReport:
    """The same import in one process."""
    return ingest(ImageFolder(open_store(images)), new_url(), shard_size=SHARD, on_error="skip")


def keys(url: str) -> set[str]:
    async def run() -> set[str]:
        return {meta.key async for meta in open_store(url).list("")}

    return asyncio.run(run())


def is_intact(url: str) -> bool:
    async def run() -> bool:
        async with open_store(url) as store:
            return (await verify_dataset(FetchEngine(store), await load_manifest(store))).problems == ()

    return asyncio.run(run())


class TestTheResult:
    def test_is_that_of_one_process_in_any_order(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        parts = plan(images, url)
        assert len(parts) > 3
        for part in random.Random(1).sample(parts, len(parts)):
            write_part(pickle.loads(pickle.dumps(part)), url)
        report = commit_parts(url, parts)
        assert (report.manifest.digest, report.skipped) == (whole.manifest.digest, whole.skipped)
        assert (report.num_samples, report.num_skipped, report.num_bytes) == (NUM_FILES - 1, 1, whole.num_bytes)
        assert is_intact(url)

    def test_of_one_part_is_that_of_the_stream(self, images: Path) -> None:
        urls = [new_url(), new_url()]
        stream = ingest(ImageFolder(open_store(images)), urls[0], on_error="skip")
        (part,) = plan_parts(ImageFolder(open_store(images)), urls[1], on_error="skip")
        write_part(part, urls[1])
        assert commit_parts(urls[1], [part]).manifest.digest == stream.manifest.digest

    def test_leaves_no_other_objects(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        ingest(ImageFolder(open_store(images)), url, shard_size=SHARD, on_error="skip")
        manifest = asyncio.run(load_manifest(open_store(url)))
        named = {entry.key for entry in (*manifest.shards, *manifest.bundles)}
        assert keys(url) == {*named, "manifests/0000000001.clm"}

    def test_of_a_drive_that_was_full_is_the_same(
        self, images: Path, whole: IngestReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, left = local._write_all, [15]

        def write(file: int, data: memoryview) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(file, data)

        with monkeypatch.context() as patch:
            patch.setattr(local, "_write_all", write)
            with pytest.raises(StoreError, match="the local drive is full: free space"):
                ingest(ImageFolder(open_store(images)), tmp_path, shard_size=SHARD, on_error="skip")
        written = {path.name for path in tmp_path.glob("unfinished/*/part-*.json")}
        assert 0 < len(written) < len(plan(images, new_url()))
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.cls")}
        report = ingest(ImageFolder(open_store(images)), tmp_path, shard_size=SHARD, on_error="skip")
        assert report.manifest.digest == whole.manifest.digest
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert not list(tmp_path.rglob(".unfinished*"))

    def test_of_an_append_keeps_class_numbers(self, images: Path) -> None:
        url = new_url()
        with ShardWriter(
            url,
            columns={"image": "jpeg", "label": "int64", "path": "str"},
            metadata={"classes": {"label": ["b"]}},
            allow_empty=True,
        ):
            pass
        parts = plan(images, url, append=True)
        for part in parts:
            write_part(part, url)
        report = commit_parts(url)
        assert report.manifest.metadata["classes"] == {"label": ["b", "a"]}
        assert (report.manifest.snapshot, report.manifest.num_samples) == (2, NUM_FILES - 1)

    @pytest.mark.parametrize(
        "columns",
        [
            {"image": "jpeg", "label": "int64"},
            {"image": "jpeg", "label": "int64", "path": "str", "caption": "str"},
            {"label": "int64", "image": "jpeg", "path": "str"},
        ],
        ids=["fewer", "more", "in another order"],
    )
    def test_of_an_append_with_other_columns_is_refused(self, images: Path, columns: dict[str, str]) -> None:
        url = new_url()
        with ShardWriter(url, columns=columns) as writer:
            image = next(images.rglob("*.jpg")).read_bytes()
            everything = {"image": image, "label": 0, "path": "x", "caption": "y"}
            writer.write({name: everything[name] for name in columns})
        before = keys(url)
        with pytest.raises(SchemaError, match="columns differ"):
            ingest(ImageFolder(open_store(images)), url, append=True, shard_size=SHARD, on_error="skip")
        with pytest.raises(SchemaError, match="columns differ"):
            plan(images, url, append=True)
        assert keys(url) == before

    def test_of_an_append_after_a_drop_is_a_stream(self, images: Path) -> None:
        url = new_url()
        columns = {"image": "jpeg", "label": "int64", "path": "str", "caption": "str"}
        with ShardWriter(url, columns=columns, metadata={"classes": {"label": ["a", "b"]}}) as writer:
            image = next(images.rglob("*.jpg")).read_bytes()
            writer.write({"image": image, "label": 0, "path": "x", "caption": "y"})
        drop_column(url, "caption")
        with pytest.raises(SchemaError, match="added, renamed or dropped"):
            plan(images, url, append=True)
        report = ingest(ImageFolder(open_store(images)), url, append=True, shard_size=SHARD, on_error="skip")
        assert (report.manifest.snapshot, report.manifest.num_samples) == (3, NUM_FILES)
        assert is_intact(url)

    def test_of_a_part_does_not_depend_on_the_run(self, images: Path) -> None:
        url = new_url()
        part = plan(images, url)[1]
        first = write_part(part, url)
        records = keys(url)
        again = write_part(part, url, resume=False)
        assert [each.entry for each in first.shards] == [each.entry for each in again.shards]
        assert keys(url) == records

    def test_plans_are_equal(self, images: Path) -> None:
        url = new_url()
        assert [part.plan for part in plan(images, url)] == [part.plan for part in plan(images, url)]


class TestTheCommit:
    def test_happens_once(self, images: Path) -> None:
        url = new_url()
        parts = plan(images, url)
        for part in parts:
            write_part(part, url)
        reports = [commit_parts(url, parts) for _ in range(3)]
        assert [report.repeats for report in reports] == [False, True, True]
        assert {report.manifest.digest for report in reports} == {reports[0].manifest.digest}
        assert asyncio.run(latest_snapshot(open_store(url))) == 1

    def test_names_a_part_that_is_not_written(self, images: Path) -> None:
        url = new_url()
        parts = plan(images, url)
        for part in parts:
            if part.number != 2:
                write_part(part, url)
        with pytest.raises(NotFound, match=f"1 of {len(parts)} parts are not written, or their shards are gone: 2;"):
            commit_parts(url, parts)
        assert asyncio.run(latest_snapshot(open_store(url))) is None
        write_part(parts[2], url)
        assert commit_parts(url, parts).num_samples == NUM_FILES - 1

    def test_names_a_part_whose_shard_is_gone(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        parts = plan(images, url)
        written = [write_part(part, url) for part in parts]
        asyncio.run(open_store(url).delete(written[1].shards[0].entry.key))
        with pytest.raises(NotFound, match="gone: 1;"):
            commit_parts(url, parts)
        write_part(parts[1], url)  # notices it, too
        assert commit_parts(url, parts).manifest.digest == whole.manifest.digest

    @pytest.mark.parametrize("change", ["lost", "repeated", "other"])
    def test_refuses_other_parts(self, images: Path, change: str) -> None:
        url = new_url()
        parts: Sequence[IngestPart] = plan(images, url)
        for part in parts:
            write_part(part, url)
        if change == "lost":
            given, text = parts[:-1], "missing"
        elif change == "repeated":
            given, text = [*parts, parts[0]], "more than once"
        else:
            other = plan_parts(ImageFolder(open_store(images), shuffle_seed=1), url, shard_size=SHARD)
            given, text = [*parts[:-1], other[-1]], "different plans"
        with pytest.raises(ConfigurationError, match=text):
            commit_parts(url, given)

    def test_of_several_plans_asks_which(self, images: Path) -> None:
        url = new_url()
        parts = plan(images, url)
        for part in parts:
            write_part(part, url)
        plan_parts(ImageFolder(open_store(images), shuffle_seed=1), url, shard_size=SHARD)
        with pytest.raises(ConfigurationError, match="several unfinished imports"):
            commit_parts(url)
        assert sorted(unfinished_imports(url).values()) == [(0, len(parts)), (len(parts), len(parts))]
        assert commit_parts(url, parts[0].plan).num_samples == NUM_FILES - 1
        assert list(unfinished_imports(url)) != [parts[0].plan]

    def test_without_a_plan(self) -> None:
        with pytest.raises(NotFound, match="no unfinished import"):
            commit_parts(new_url())

    def test_after_another_writer_uses_the_written_parts(self, images: Path) -> None:
        url = new_url()
        for part in (parts := plan(images, url, append=True)):
            write_part(part, url)
        columns = {"image": "jpeg", "label": "int64", "path": "str"}
        classes = {"classes": {"label": ["a", "b"]}}
        with ShardWriter(url, columns=columns, metadata=classes, allow_empty=True) as other:
            pass
        with pytest.raises(CommitConflict):
            commit_parts(url, parts)
        again = plan(images, url, append=True)
        assert again[0].plan == parts[0].plan
        assert commit_parts(url, again).manifest.parent == other.manifest.digest

    def test_of_a_source_that_was_appended(self, images: Path) -> None:
        url = new_url()
        ingest(ImageFolder(open_store(images)), url, shard_size=SHARD, on_error="skip", append=True)
        with pytest.raises(AlreadyExists, match="this commit already"):
            plan(images, url, append=True)

    def test_of_two_drivers_at_once(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        late: list[IngestReport] = []

        def run(**options: object) -> IngestReport:
            importer = ImageFolder(open_store(images))
            return ingest(importer, url, shard_size=SHARD, on_error="skip", **options)  # type: ignore[arg-type]

        def meanwhile(progress: object) -> None:
            if getattr(progress, "num_done", 0) == NUM_FILES and not late:
                late.append(run())

        first = run(on_progress=meanwhile)
        assert {first.manifest.digest, late[0].manifest.digest} == {whole.manifest.digest}
        assert (late[0].repeats, first.repeats) == (False, True)


class TestResuming:
    def test_reads_only_what_is_missing(self, images: Path, whole: IngestReport, tmp_path: Path) -> None:
        url = new_url()

        class StopError(Exception):
            pass

        def stop(now: object) -> None:
            if getattr(now, "num_done", 0) > NUM_FILES // 2:
                raise StopError

        def run(**options: object) -> IngestReport:
            importer = ImageFolder(open_store(images))
            return ingest(importer, url, shard_size=SHARD, on_error="skip", **options)  # type: ignore[arg-type]

        with pytest.raises(StopError):
            run(on_progress=stop)
        ((done, of),) = unfinished_imports(url).values()
        assert 0 < done < of
        seen: list[int] = []
        report = run(on_progress=lambda now: seen.append(now.num_done))
        assert report.manifest.digest == whole.manifest.digest
        assert (report.num_samples, seen[-1]) == (NUM_FILES - 1, NUM_FILES)

    def test_a_damaged_record_is_made_again(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        parts = plan(images, url)
        write_part(parts[0], url)
        record = next(key for key in keys(url) if "part-" in key)
        asyncio.run(open_store(url).put(record, b"{"))
        report = ingest(ImageFolder(open_store(images)), url, shard_size=SHARD, on_error="skip")
        assert report.manifest.digest == whole.manifest.digest

    def test_can_be_declined(self, images: Path, whole: IngestReport) -> None:
        url = new_url()
        for part in plan(images, url):
            write_part(part, url)
        report = ingest(ImageFolder(open_store(images)), url, shard_size=SHARD, on_error="skip", resume=False)
        assert report.manifest.digest == whole.manifest.digest

    def test_a_changed_source_begins_another_import(self, images: Path, tmp_path: Path) -> None:
        import shutil

        source = tmp_path / "copy"
        shutil.copytree(images, source)
        url = new_url()
        before = plan(source, url)
        (source / "a" / "000.jpg").write_bytes((source / "a" / "002.jpg").read_bytes())
        assert plan(source, url)[0].plan != before[0].plan


@pytest.mark.slow
class TestAFailingStore:
    @pytest.mark.parametrize("seed", range(5))
    def test_that_fails_three_times_in_ten(self, images: Path, whole: IngestReport, seed: int) -> None:
        url = new_url()
        store = FaultStore(MemoryStore(url), seeded(seed, fail=0.3))
        parts = retried(lambda: plan(images, store))
        for part in parts:
            retried(lambda part=part: write_part(part, store))  # type: ignore[misc]
        report = retried(lambda: commit_parts(store, parts))
        assert report.manifest.digest == whole.manifest.digest
        assert is_intact(url)

    def test_onto_a_snapshot_that_was_deleted(self, images: Path) -> None:
        url = new_url()
        columns = {"image": "jpeg", "label": "int64", "path": "str"}
        for _ in range(2):
            with ShardWriter(url, columns=columns, overwrite=True, allow_empty=True):
                pass
            if not asyncio.run(list_snapshots(open_store(url)))[1:]:
                parts = plan(images, url, append=True)
                for part in parts:
                    write_part(part, url)
        asyncio.run(open_store(url).delete("manifests/0000000001.clm"))
        with pytest.raises(CommitConflict, match="deleted since the import was planned"):
            commit_parts(url, parts)

    def test_of_nothing_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").write_text("")
        url = new_url()
        parts = plan_parts(TextFiles(str(tmp_path)), url)
        for part in parts:
            write_part(part, url)
        with pytest.raises(NotFound, match="no samples"):
            commit_parts(url, parts)
        assert asyncio.run(latest_snapshot(open_store(url))) is None

    @pytest.mark.parametrize("by", ["parts", "name", "nothing"])
    def test_that_is_interrupted_while_the_records_are_deleted(
        self, images: Path, whole: IngestReport, by: str
    ) -> None:
        url = new_url()
        parts = plan(images, url)
        for part in parts:
            write_part(part, url)
        left = [3]

        def script(call: Call) -> Sequence[Fault]:
            left[0] -= call.operation == "delete"
            return (Fail(AccessDenied),) if call.operation == "delete" and left[0] < 0 else ()

        commit_parts(FaultStore(MemoryStore(url), script), parts)
        assert 0 < sum(key.startswith("unfinished/") for key in keys(url)) < len(parts) + 1
        report = commit_parts(url, {"parts": parts, "name": parts[0].plan, "nothing": None}[by])
        assert (report.repeats, report.manifest.digest) == (True, whole.manifest.digest)
        assert not any(key.startswith("unfinished/") for key in keys(url))

    def test_whose_commit_arrives_without_an_answer(self, images: Path, whole: IngestReport) -> None:
        url = new_url()

        def script(call: Call) -> Sequence[Fault]:
            lost = call.operation in ("put", "put_if_absent") and call.key.startswith("manifests/")
            return (Fail(ServerError, after=True),) if lost else ()

        parts = plan(images, url)
        for part in parts:
            write_part(part, url)
        store = FaultStore(MemoryStore(url), script)
        assert commit_parts(store, parts).manifest.digest == whole.manifest.digest
        assert any(call.key.startswith("manifests/") and "put" in call.operation for call in store.calls)
        assert asyncio.run(latest_snapshot(open_store(url))) == 1


def retried(call: Callable[[], T]) -> T:
    """Calls again what failed in spite of the store's own retries."""
    for _ in range(20):
        try:
            return call()
        except StorageError as error:
            if not error.retryable:
                raise
    raise AssertionError("it failed twenty times")


class TestSources:
    def test_of_one_stream_are_refused(self) -> None:
        def numbers() -> Iterator[dict[str, object]]:
            yield {"x": 1}

        with pytest.raises(ConfigurationError, match="one stream"):
            plan_parts(PythonGenerator(numbers), new_url())

    def test_of_many_files(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        for number in range(5):
            values = [f"{number * 997 + row * 7919}" * 20 for row in range(200)]
            parquet.write_table(pa.table({"x": range(200), "text": values}), tmp_path / f"{number}.parquet")
        one = ingest(ParquetFiles(tmp_path), new_url(), shard_size=SHARD)
        url = new_url()
        parts = plan_parts(ParquetFiles(tmp_path), url, shard_size=SHARD)
        assert len(parts) > 1
        for part in parts:
            write_part(pickle.loads(pickle.dumps(part)), url)
        assert commit_parts(url, parts).manifest.digest == one.manifest.digest
        assert one.num_samples == 1000

    def test_of_tar_files(self, tmp_path: Path) -> None:
        import io
        import tarfile

        for number in range(3):
            with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
                for row in range(40):
                    member = tarfile.TarInfo(f"{number}-{row}.txt")
                    member.size = 300
                    archive.addfile(member, io.BytesIO(b"x" * 300))
        one = ingest(TarFiles(tmp_path), new_url(), shard_size=SHARD)
        url = new_url()
        parts = plan_parts(TarFiles(tmp_path), url, shard_size=SHARD)
        for part in parts:
            write_part(pickle.loads(pickle.dumps(part)), url)
        assert commit_parts(url, parts).manifest.digest == one.manifest.digest
        assert (len(parts), one.num_samples) == (3, 120)

    def test_with_a_damaged_file(self, images: Path) -> None:
        url = new_url()
        parts = plan_parts(ImageFolder(open_store(images)), url, shard_size=SHARD)
        with pytest.raises(CorruptData, match="on_error='skip'"):
            for part in parts:
                write_part(part, url)
