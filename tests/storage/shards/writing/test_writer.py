from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    FormatError,
    NotFound,
    SchemaError,
    ServerError,
    StoreClosed,
)
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.shards.format.index import ShardIndex, verify_shard
from concurrent_loader.storage.shards.manifest import commit_tokens
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.manifest_file import encode
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.column_bundles import BundleBuilder
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import MemoryStore, open_store
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore, Wait, in_order

COLUMNS = {"image": "bytes", "label": "int64", "name": "str"}
NO_PATIENCE = RetryPolicy(max_attempts=1)
pytestmark = pytest.mark.usefixtures("no_leaks")


def sample(number: int, size: int = 500) -> dict[str, Any]:
    return {"image": number.to_bytes(4, "big") * (size // 4), "label": number % 10, "name": f"sample {number}"}


@pytest.fixture
def url() -> str:
    return f"memory://writer-{uuid4()}"


def write(url: Any, numbers: Any, **options: Any) -> Manifest:
    options = {"columns": COLUMNS, "shard_size": "16KiB", **options}
    with ShardWriter(url, **options) as writer:
        for number in numbers:
            writer.write(sample(number))
    return writer.manifest


def read(url: str, snapshot: int | None = None) -> tuple[Manifest, list[int]]:
    """A second reader, as simple as can be: the numbers of all samples, every byte verified."""

    async def run() -> tuple[Manifest, list[int]]:
        async with open_store(url) as store:
            manifest = await load_manifest(store, snapshot)
            numbers: list[int] = []
            for entry in manifest.shards:
                data = (await store.get(entry.key)).data
                index = verify_shard(data, shard=entry.key)
                assert (len(data), index.num_samples, index.tail_start) == (
                    entry.size,
                    entry.num_samples,
                    entry.tail_start,
                )
                for row in range(index.num_samples):
                    place = index.payload_range(row, "image")
                    numbers.append(int.from_bytes(data[place.start : place.start + 4], "big"))
                    assert index.value("name", row) == f"sample {numbers[-1]}"
            return manifest, numbers

    return asyncio.run(run())


def objects(url: str) -> dict[str, bytes]:
    async def run() -> dict[str, bytes]:
        async with open_store(url) as store:
            return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list()}

    return asyncio.run(run())


class TestOneWriter:
    def test_what_is_written_is_read(self, url: str) -> None:
        manifest = write(url, range(300), metadata={"by": "a test"})
        assert read(url) == (manifest, list(range(300)))
        assert (manifest.snapshot, manifest.parent, manifest.num_samples) == (1, None, 300)
        assert len(manifest.shards) > 5
        assert all(entry.size <= 16 << 10 for entry in manifest.shards)
        assert manifest.metadata == {"by": "a test"}
        assert manifest.statistics == {
            "image": {"max_bytes": 500, "min_bytes": 500, "total_bytes": 150_000},
            "label": {"max": 9, "min": 0},
        }
        assert sum(entry.payload_bytes for entry in manifest.shards) == 150_000

    def test_nothing_but_what_the_manifest_names(self, url: str) -> None:
        manifest = write(url, range(100))
        named = {entry.key for entry in (*manifest.shards, *manifest.bundles)}
        assert set(objects(url)) == {*named, "manifests/0000000001.clm"}

    def test_no_samples(self, url: str) -> None:
        assert write(url, [], allow_empty=True).num_samples == 0
        assert read(url)[1] == []

    def test_commit_ends_it(self, url: str) -> None:
        writer = ShardWriter(url, columns=COLUMNS)
        writer.write(sample(1))
        with pytest.raises(StoreClosed):
            _ = writer.manifest
        manifest = writer.commit()
        assert writer.commit() is writer.manifest is manifest
        with pytest.raises(StoreClosed, match="append"):
            writer.write(sample(2))
        writer.close()
        assert read(url)[1] == [1]

    def test_in_an_event_loop(self, url: str) -> None:
        async def run() -> Manifest:
            return write(url, range(3))

        assert asyncio.run(run()).num_samples == 3

    def test_metadata_up_to_the_commit(self, url: str) -> None:
        with ShardWriter(url, columns=COLUMNS, allow_empty=True, metadata={"a": 1, "b": 1}) as writer:
            writer.update_metadata({"b": (2,)})
            with pytest.raises(ConfigurationError):
                writer.update_metadata({"c": float("nan")})
        assert read(url)[0].metadata == {"a": 1, "b": [2]}

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"columns": {}}, SchemaError),
            ({"columns": {"x": "no such type"}}, SchemaError),
            ({"append": True, "overwrite": True}, ConfigurationError),
            ({"shard_size": "1KiB"}, ConfigurationError),
            ({"shard_size": "2GiB"}, ConfigurationError),
            ({"shard_size": "much"}, ConfigurationError),
            ({"uploads_in_flight": 0}, ConfigurationError),
            ({"metadata": {"x": b""}}, ConfigurationError),
            ({"storage_options": {"endpoint_url": "http://x"}}, ConfigurationError),
        ],
    )
    def test_options_that_cannot_work(self, url: str, options: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            write(url, [], allow_empty=True, **options)
        assert objects(url) == {}


class TestDeterminism:
    def test_the_same_samples_make_the_same_objects(self) -> None:
        urls = [f"memory://{uuid4()}" for _ in range(3)]
        for url, in_flight in zip(urls, (1, 2, 8), strict=True):
            write(url, range(500), uploads_in_flight=in_flight)
        first, *others = map(objects, urls)
        assert all(other == first for other in others)

    def test_refused_samples_leave_no_trace(self) -> None:
        urls = [f"memory://{uuid4()}" for _ in range(2)]
        write(urls[0], range(200))
        with ShardWriter(urls[1], columns=COLUMNS, shard_size="16KiB") as writer:
            for number in range(200):
                with pytest.raises(SchemaError) as caught:
                    writer.write({**sample(number), "label": "three"})
                assert (caught.value.sample, caught.value.column) == (number, "label")
                with pytest.raises(SchemaError):
                    writer.write({"image": b""})
                writer.write(sample(number))
        assert objects(urls[0]) == objects(urls[1])


class TestNothingIsVisibleBeforeTheCommit:
    def test_an_exception_in_the_block(self, url: str) -> None:
        with pytest.raises(ZeroDivisionError), ShardWriter(url, columns=COLUMNS, shard_size="4KiB") as writer:
            for number in range(100):
                writer.write(sample(number))
            raise ZeroDivisionError
        with pytest.raises(NotFound):
            read(url)
        with pytest.raises(StoreClosed):
            writer.commit()
        write(url, [7])
        assert read(url)[1] == [7]

    def test_close_without_commit(self, url: str) -> None:
        writer = ShardWriter(url, columns=COLUMNS)
        writer.write(sample(1))
        writer.close()
        writer.close()
        with pytest.raises(StoreClosed):
            writer.write(sample(2))
        assert not any(key.startswith("manifests/") for key in objects(url))

    @pytest.mark.processes
    def test_killed(self, tmp_path: Path) -> None:
        """SIGKILL while it writes: the folder holds shards, no data set, and can be written again."""
        script = (
            "import itertools, sys\n"
            "from concurrent_loader.storage.shards.writing.writer import ShardWriter\n"
            "writer = ShardWriter(sys.argv[1], columns={'image': 'bytes'}, shard_size='64KiB')\n"
            "for number in itertools.count():\n"
            "    writer.write({'image': number.to_bytes(4, 'big') * 1000})\n"
            "    if number == 300: print('well under way', flush=True)\n"
        )
        root = tmp_path / "data"
        process = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, cwd=Path.cwd())
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"well under way\n"
            process.send_signal(signal.SIGKILL)
        assert list(root.glob("shards/*.cls"))
        with pytest.raises(NotFound):
            read(str(root))
        assert write(str(root), range(5)) == read(str(root))[0]

    def test_an_interrupt_in_the_middle_of_a_write_cannot_be_committed(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = ShardWriter(url, columns=COLUMNS)

        def interrupt(_sample: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(writer._cutter, "add", interrupt)
        with pytest.raises(KeyboardInterrupt), writer:
            writer.write(sample(1))
        writer = ShardWriter(url, columns=COLUMNS)
        monkeypatch.setattr(writer._cutter, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.write(sample(1))
        with pytest.raises(StoreClosed, match="interrupted"):
            writer.commit()
        writer.close()


class TestSnapshots:
    def test_an_existing_data_set_is_not_touched(self, url: str) -> None:
        write(url, range(10))
        before = objects(url)
        with pytest.raises(AlreadyExists, match="append"):
            write(url, range(5))
        assert objects(url) == before

    def test_append(self, url: str) -> None:
        first = write(url, range(100), metadata={"a": 1, "b": 1})
        second = write(url, range(100, 150), append=True, metadata={"b": 2})
        assert read(url) == (second, list(range(150)))
        assert read(url, 1) == (first, list(range(100)))
        assert (second.snapshot, second.parent) == (2, first.digest)
        assert second.shards[: len(first.shards)] == first.shards
        assert second.metadata == {"a": 1, "b": 2}
        assert second.statistics["image"]["total_bytes"] == 150 * 500

    def test_append_to_nothing_begins(self, url: str) -> None:
        assert write(url, range(3), append=True).snapshot == 1

    def test_append_of_samples_that_are_there_already(self, url: str) -> None:
        write(url, range(50))
        assert write(url, range(50), append=True).num_samples == 100
        assert read(url)[1] == [*range(50), *range(50)]

    def test_append_needs_the_same_columns(self, url: str) -> None:
        write(url, range(3))
        for columns in ({**COLUMNS, "label": "int32"}, {"label": "int64", "image": "bytes", "name": "str"}):
            with pytest.raises(SchemaError, match="columns"):
                write(url, range(3), append=True, columns=columns)

    def test_overwrite(self, url: str) -> None:
        first = write(url, range(100), metadata={"a": 1})
        with ShardWriter(url, columns={"x": "float32"}, overwrite=True) as writer:
            writer.write({"x": 1.5})
        second = writer.manifest
        assert (second.snapshot, second.parent, second.num_samples) == (2, first.digest, 1)
        assert (second.metadata, list(second.schema)) == ({}, ["x"])
        assert read(url, 1) == (first, list(range(100)))

    def test_overwrite_of_nothing_begins(self, url: str) -> None:
        assert write(url, range(3), overwrite=True).snapshot == 1

    def test_a_damaged_parent_is_not_built_upon(self, url: str) -> None:
        manifest = write(url, range(3))
        asyncio.run(open_store(url).put("manifests/0000000001.clm", encode(manifest)[:-1]))
        for mode in ("append", "overwrite"):
            with pytest.raises(FormatError):
                write(url, range(3), **{mode: True})


class TestConflicts:
    def test_two_appends_one_wins_and_the_other_rebases(self, url: str) -> None:
        write(url, range(10))
        ours = ShardWriter(url, columns=COLUMNS, append=True)
        ours.write(sample(10))
        write(url, [20], append=True)
        with pytest.raises(CommitConflict, match="rebase"):
            ours.commit(rebase=False)
        assert read(url)[1] == [*range(10), 20]
        merged = ours.commit(rebase=True)  # even later
        assert read(url) == (merged, [*range(10), 20, 10])
        assert merged.snapshot == 3
        assert [(bundle.first_sample, bundle.num_samples) for bundle in merged.bundles] == [(0, 10), (10, 1), (11, 1)]

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_a_conflict_is_solved_by_itself(self, url: str, mode: str) -> None:
        write(url, [1])
        with ShardWriter(url, columns=COLUMNS, **{mode: True}) as ours:
            ours.write(sample(2))
            write(url, [3], append=True)
            write(url, [4], append=True)
        assert read(url) == (ours.manifest, [1, 3, 4, 2] if mode == "append" else [2])
        assert ours.manifest.snapshot == 4

    def test_conflicts_without_end(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("concurrent_loader.storage.shards.writing.writer._MAX_REBASES", 3)
        write(url, [1])
        store = MemoryStore(url)
        ours = ShardWriter(store, columns=COLUMNS, append=True)
        ours.write(sample(2))
        tries = 0
        put = store.put_if_absent

        async def lose(key: str, data: bytes) -> Any:
            nonlocal tries
            if key.startswith("manifests/"):
                tries += 1
                await put(key, encode(replace(await load_manifest(store), snapshot=tries + 1, parent="0" * 32)))
            return await put(key, data)

        monkeypatch.setattr(store, "put_if_absent", lose)
        with pytest.raises(CommitConflict):
            ours.commit()
        assert tries == 4
        monkeypatch.undo()
        assert ours.commit().snapshot == 6

    def test_empty_writer(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="allow_empty=True"), ShardWriter(url, columns=COLUMNS):
            pass
        assert asyncio.run(latest_snapshot(open_store(url))) is None
        with ShardWriter(url, columns=COLUMNS, allow_empty=True) as writer:
            pass
        assert writer.manifest.num_samples == 0

    def test_a_conflict_without_rebase_stays_one(self, url: str) -> None:
        ours = ShardWriter(url, columns=COLUMNS)
        ours.write(sample(1))
        write(url, [2])
        for _ in range(2):
            with pytest.raises(CommitConflict):
                ours.commit()
        ours.write(sample(3))  # goes on as before
        ours.commit(rebase=True)
        assert read(url)[1] == [2, 1, 3]

    def test_rebase_onto_other_columns(self, url: str) -> None:
        ours = ShardWriter(url, columns=COLUMNS)
        ours.write(sample(1))
        with ShardWriter(url, columns={"x": "int8"}) as theirs:
            theirs.write({"x": 1})
        with pytest.raises(SchemaError), ours:
            ours.commit(rebase=True)

    def test_rebase_of_an_overwrite_is_an_overwrite(self, url: str) -> None:
        write(url, [1])
        ours = ShardWriter(url, columns=COLUMNS, overwrite=True)
        ours.write(sample(2))
        write(url, [3], append=True)
        ours.commit(rebase=True)
        assert read(url) == (ours.manifest, [2])
        assert ours.manifest.snapshot == 3

    def test_many_writers_at_once(self, url: str) -> None:
        num_writers = 6
        ready = threading.Barrier(num_writers)
        conflicts = []

        def work(number: int) -> None:
            writer = ShardWriter(url, columns=COLUMNS, append=True)
            writer.write(sample(number))
            ready.wait()
            rebase = False
            while True:
                try:
                    writer.commit(rebase=rebase)
                except CommitConflict:
                    conflicts.append(number)
                    rebase = True
                else:
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(num_writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manifest, numbers = read(url)
        assert sorted(numbers) == list(range(num_writers))
        assert manifest.snapshot == num_writers
        assert len(conflicts) >= num_writers - 1


class TestBundles:
    @pytest.mark.slow
    def test_labels_of_many_samples_are_few_requests(self, url: str) -> None:
        num_samples = 20_000
        with ShardWriter(
            url, columns={"label": "int64", "box": "float32[4]", "data": "bytes"}, shard_size="16KiB"
        ) as writer:
            for number in range(num_samples):
                writer.write({"label": number, "box": np.full(4, number, "f4"), "data": b"12345678"})
        manifest = writer.manifest
        assert len(manifest.shards) > 50
        assert len(manifest.bundles) == 1
        counting = FaultStore(open_store(url), lambda call: ())

        async def fetch() -> ShardIndex:
            (bundle,) = (await load_manifest(counting)).bundles
            tail = (await counting.get_range(bundle.key, bundle.tail_start, bundle.size)).data
            return ShardIndex.parse(tail, tail_start=bundle.tail_start, size=bundle.size)

        index = asyncio.run(fetch())
        assert np.array_equal(index.column("label"), np.arange(num_samples))
        assert np.array_equal(index.column("box")[:, 3], np.arange(num_samples, dtype="f4"))
        assert [call.operation for call in counting.calls] == ["list", "get", "get"]

    def test_runs(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        small = functools.partial(BundleBuilder, max_samples=70)
        monkeypatch.setattr("concurrent_loader.storage.shards.writing.written_shards.BundleBuilder", small)
        manifest = write(url, range(200))
        assert [(bundle.first_sample, bundle.num_samples) for bundle in manifest.bundles] == [
            (0, 70),
            (70, 70),
            (140, 60),
        ]

    def test_none_without_fixed_columns(self, url: str) -> None:
        with ShardWriter(url, columns={"data": "bytes", "text": "str"}) as writer:
            writer.write({"data": b"", "text": ""})
        assert writer.manifest.bundles == ()

    def test_data_sets_of_fixed_columns_alone(self, url: str) -> None:
        with ShardWriter(url, columns={"x": "int8"}) as writer:
            writer.write({"x": 1})
        assert writer.manifest.shards[0].payload_bytes == 0
        assert writer.manifest.bundles[0].digest == writer.manifest.shards[0].digest


def puts_of(prefix: str, *faults: Fault | None) -> Any:
    script = in_order(faults, operation="put")
    return lambda call: script(call) if call.key.startswith(prefix) else ()


def lost_commit(call: Call, seen: list[Call]) -> list[Fault]:
    """Applies a commit and loses the answer, and that of the look that follows it."""
    if not call.key.startswith("manifests/") or call.operation not in ("put", "get") or len(seen) == 2:
        return []
    if call.operation == "put":
        seen.append(call)
        return [Fail(ServerError, after=True)]
    if not seen:
        return []
    seen.append(call)
    return [Fail(ServerError)]


class TestFaults:
    def test_transient_ones_are_sat_out(self, url: str) -> None:
        patient = RetryPolicy(base_delay_s=1e-6)
        script = puts_of("", Fail(ServerError), None, Fail(ServerError, after=True), Fail(ServerError))
        manifest = write(FaultStore(open_store(url), script), range(300), retry=patient)
        assert read(url) == (manifest, list(range(300)))

    def test_an_upload_that_fails_surfaces_and_loses_nothing(self, url: str) -> None:
        store = FaultStore(open_store(url), puts_of("shards/", Fail(ServerError), Fail(AccessDenied)))
        writer = ShardWriter(store, columns=COLUMNS, shard_size="4KiB", retry=NO_PATIENCE)
        errors: list[Exception] = []
        for number in range(100):
            while True:
                try:
                    writer.write(sample(number))
                except (ServerError, AccessDenied) as error:
                    errors.append(error)
                else:
                    break
        manifest = writer.commit()
        assert errors  # two uploads that fail at the same time are one error; both are sent again
        assert read(url) == (manifest, list(range(100)))

    def test_an_upload_that_fails_at_the_end_surfaces_in_commit(self, url: str) -> None:
        store = FaultStore(open_store(url), puts_of("", Fail(ServerError)))
        with pytest.raises(ServerError) as caught:
            write(store, range(3), retry=NO_PATIENCE)
        assert caught.value.key is not None
        assert not any(key.startswith("manifests/") for key in objects(url))

    def test_an_interrupt_while_failed_uploads_start_again_loses_none(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = FaultStore(open_store(url), puts_of("shards/", *[Fail(ServerError)] * 3))
        queue = UploadQueue(store, in_flight=1, retry=NO_PATIENCE)
        keys = [f"shards/{number}" for number in range(4)]
        for key in keys:
            queue.put(key, key.encode())
        with pytest.raises(ServerError):
            queue.flush()

        def interrupt(*_args: object, **_options: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr("concurrent_loader.storage.shards.writing.upload_queue.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.check()
        queue.flush()
        queue.close()
        assert objects(url) == {key: key.encode() for key in keys}

    def test_commit_can_be_repeated(self, url: str) -> None:
        store = FaultStore(open_store(url), puts_of("", Fail(ServerError), None, Fail(ServerError)))
        writer = ShardWriter(store, columns=COLUMNS, retry=NO_PATIENCE)
        writer.write(sample(1))
        for _ in range(2):  # the shard's upload, then the manifest's
            with pytest.raises(ServerError):
                writer.commit()
        manifest = writer.commit()
        assert read(url) == (manifest, [1])

    def test_a_commit_whose_answer_was_lost_is_found(self, url: str) -> None:
        store = FaultStore(open_store(url), puts_of("manifests/", Fail(ServerError, after=True)))
        assert write(store, [1], retry=NO_PATIENCE).snapshot == 1
        assert read(url)[1] == [1]

    @pytest.mark.parametrize("rebase", [False, True])
    def test_a_commit_whose_answer_was_lost_is_not_made_twice(self, url: str, *, rebase: bool) -> None:
        write(url, [1])
        store = FaultStore(open_store(url), partial(lost_commit, seen=[]))
        writer = ShardWriter(store, columns=COLUMNS, append=True, retry=NO_PATIENCE)
        writer.write(sample(2))
        with pytest.raises(ServerError, match="whether the object was written is unknown"):
            writer.commit()
        write(url, [3], append=True)  # and the world goes on
        assert writer.commit(rebase=rebase).snapshot == 2
        assert read(url)[1] == [1, 2, 3]

    def test_uploads_are_bounded_and_overlap(self, url: str) -> None:
        """`write` goes on while two uploads are under way, and waits for a third."""
        gates = Gates()
        writer = ShardWriter(
            FaultStore(open_store(url), gates.script), columns=COLUMNS, shard_size="4KiB", uploads_in_flight=2
        )
        thread = threading.Thread(target=lambda: [writer.write(sample(number)) for number in range(100)])
        thread.start()
        assert gates.arrived.acquire(timeout=10)
        assert gates.arrived.acquire(timeout=10)
        assert not gates.arrived.acquire(timeout=0.1)
        assert thread.is_alive()
        gates.open()
        thread.join()
        assert writer.commit().num_samples == 100

    def test_close_cancels_uploads(self, url: str) -> None:
        gates = Gates()
        writer = ShardWriter(FaultStore(open_store(url), gates.script), columns=COLUMNS, shard_size="4KiB")
        for number in range(20):
            writer.write(sample(number))
        assert gates.arrived.acquire(timeout=10)
        writer.close()
        assert objects(url) == {}


class Gates:
    """Holds uploads of shards back until they are let through, and counts who has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = asyncio.Event()

    def script(self, call: Call) -> Iterator[Fault]:
        if call.key.startswith("shards/"):
            yield Wait(self._wait)

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)

    async def _wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.arrived.release()
        await self._open.wait()


def test_a_store_of_the_callers_stays_open(url: str) -> None:
    store = MemoryStore(url)
    write(store, range(3))
    assert asyncio.run(latest_snapshot(store)) == 1


@pytest.mark.s3
@pytest.mark.parametrize("client", ["native", "aiobotocore"])
def test_s3(s3_bucket: Any, client: str) -> None:
    url = f"{s3_bucket.url}/photos"
    options = {"client": client, "storage_options": s3_bucket.storage_options}
    write(url, range(200), **options)
    with pytest.raises(AlreadyExists):
        write(url, range(5), **options)
    ours = ShardWriter(url, columns=COLUMNS, append=True, **options)
    ours.write(sample(300))
    write(url, range(200, 250), append=True, **options)
    with pytest.raises(CommitConflict):
        ours.commit(rebase=False)
    manifest = ours.commit(rebase=True)

    async def check() -> None:
        async with open_store(url, **s3_bucket.storage_options) as store:
            assert await load_manifest(store) == manifest
            for entry in (*manifest.shards, *manifest.bundles):
                verify_shard((await store.get(entry.key)).data, shard=entry.key)

    asyncio.run(check())
    assert (manifest.snapshot, manifest.num_samples) == (3, 251)


@pytest.mark.parametrize("not_a_sample", [None, [1], "sample"])
def test_what_is_no_sample_is_a_typed_error(not_a_sample: Any, tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path), columns={"number": "int64"}) as writer:
        writer.write({"number": 1})
        with pytest.raises(SchemaError, match="a sample must be a dict"):
            writer.write(not_a_sample)
        writer.write({"number": 2})
    assert writer.manifest.num_samples == 2


@pytest.mark.parametrize("key", ["commit_tokens", "same_samples_as"])
def test_metadata_keys_of_the_writer_are_reserved(url: str, key: str) -> None:
    """With the second one, loader states of another dataset would fit."""
    with pytest.raises(ConfigurationError, match=f"{key}.*reserved"):
        ShardWriter(url, columns=COLUMNS, metadata={key: {}})
    with (
        pytest.raises(ConfigurationError, match=f"{key}.*reserved"),
        ShardWriter(url, columns=COLUMNS) as writer,
    ):
        writer.update_metadata({key: {}})


# -- tokens ------------------------------------------------------------------------------------------------------------


class TestTokens:
    def test_a_commit_made_again_adds_nothing(self, url: str) -> None:
        write(url, range(10))
        for _ in range(3):
            assert write(url, range(10, 20), append=True, token="monday").snapshot == 2
        assert write(url, range(20, 30), append=True, token="tuesday").snapshot == 3
        with ShardWriter(url, columns=COLUMNS, append=True, token="monday") as writer:
            assert writer.repeats
            writer.write({"nothing": "is looked at"})
            writer.update_metadata({"x": 1})
        assert (writer.num_samples, writer.manifest.snapshot) == (0, 2)
        manifest, numbers = read(url)
        assert numbers == list(range(30))
        assert manifest.metadata == {"commit_tokens": {"monday": 2, "tuesday": 3}}

    def test_a_lost_answer_and_a_new_process(self, url: str) -> None:
        store = FaultStore(open_store(url), partial(lost_commit, seen=[]))
        with pytest.raises(ServerError):
            write(store, range(10), append=True, token="monday", retry=NO_PATIENCE)
        assert write(url, range(10), append=True, token="monday").snapshot == 1
        assert read(url)[1] == list(range(10))

    def test_of_two_at_once_one_adds(self, url: str) -> None:
        with ShardWriter(url, columns=COLUMNS, append=True, token="monday") as ours:
            ours.write(sample(0))
            theirs = write(url, [0], append=True, token="monday")
            write(url, [1], append=True)
        assert ours.repeats
        assert ours.manifest.digest == theirs.digest
        assert read(url)[1] == [0, 1]

    def test_rebasing_finds_it(self, url: str) -> None:
        ours = ShardWriter(url, columns=COLUMNS, append=True, token="monday")
        ours.write(sample(0))
        write(url, [1])
        with pytest.raises(CommitConflict):
            ours.commit(rebase=False)
        write(url, [0], append=True, token="monday")
        assert ours.commit(rebase=True).snapshot == 2
        assert read(url)[1] == [1, 0]

    def test_without_append_it_is_no_conflict_either(self, url: str) -> None:
        assert write(url, [0], token="a").digest == write(url, [0], token="a").digest
        with pytest.raises(AlreadyExists):
            write(url, [0], token="b")
        write(url, [1], overwrite=True, token="b")
        assert write(url, [1], overwrite=True, token="b").metadata == {"commit_tokens": {"b": 2}}
        assert write(url, [2], append=True, token="a").snapshot == 3  # what had been overwritten is not there

    def test_a_deleted_snapshot_still_counts(self, url: str) -> None:
        write(url, [0], token="a")
        write(url, [1], append=True)
        asyncio.run(open_store(url).delete("manifests/0000000001.clm"))
        assert write(url, [0], append=True, token="a").snapshot == 2

    @pytest.mark.parametrize("kept", [3, [], {"a": "x", "b": True}, {"a": -1}])
    def test_what_somebody_else_keeps_there_is_not_believed(self, url: str, kept: Any) -> None:
        manifest = Manifest(snapshot=1, schema=COLUMNS, metadata={"commit_tokens": kept})
        asyncio.run(open_store(url).put("manifests/0000000001.clm", encode(manifest)))
        assert write(url, [0], append=True, token="a").metadata == {"commit_tokens": {"a": 2}}

    def test_their_number_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commit_tokens, "MAX_TOKENS", 2)
        metadata: dict[str, Any] = {"x": 1}
        for number in range(1, 5):
            metadata = commit_tokens.with_token(metadata, f"{9 - number}", number)
        assert metadata == {"x": 1, "commit_tokens": {"6": 3, "5": 4}}

    @pytest.mark.parametrize(
        "options",
        [{"token": ""}, {"token": "x" * 201}, {"token": "a\n"}, {"token": 3}, {"metadata": {"commit_tokens": {}}}],
    )
    def test_what_cannot_be_one(self, url: str, options: Any) -> None:
        with pytest.raises(ConfigurationError, match="token"):
            write(url, [0], **options)
