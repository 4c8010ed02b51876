from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from concurrent_loader.storage import (
    ConfigurationError,
    FetchEngine,
    FormatError,
    Manifest,
    NotFound,
    ShardWriter,
    SnapshotDeleted,
    collect_garbage,
    list_tags,
    load_manifest,
    tag_snapshot,
)
from concurrent_loader.storage.cache import open_shard_cache
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.lifecycle.garbage import _Collection, _select
from concurrent_loader.storage.lifecycle.references import DATA
from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import MemoryStore
from concurrent_loader.storage.stores.objects import ObjectMeta

sys.path.insert(0, str(Path(__file__).parent))
from dataset_in_memory import age, keys, memory_store, write

DAY = timedelta(days=1)


@pytest.fixture
def store() -> MemoryStore:
    """Three snapshots: 10 samples, 15 by appending, 5 others; the last one is a day old."""
    store = memory_store()
    write(store, range(10))
    write(store, range(10, 15), append=True)
    age(store, days=30)
    write(store, range(100, 105), overwrite=True)
    age(store, days=1)
    return store


def manifest_references(manifest: Manifest) -> set[str]:
    return {entry.key for entry in (*manifest.shards, *manifest.bundles)}


async def data_keys(store: MemoryStore) -> set[str]:
    return {key for prefix in DATA for key in await keys(store, prefix)}


async def is_intact(store: MemoryStore, snapshot: int | None = None) -> bool:
    engine = FetchEngine(store)
    return not (await verify_dataset(engine, await load_manifest(engine, snapshot))).problems


class TestSnapshots:
    async def test_nothing_is_deleted_without_a_rule(self, store: MemoryStore) -> None:
        before = await keys(store)
        report = await collect_garbage(store)
        assert (report.deleted_snapshots, report.kept_snapshots, report.num_objects) == ((), (1, 2, 3), 0)
        assert await keys(store) - {"collected/clock.json"} == before

    async def test_two_phases(self, store: MemoryStore) -> None:
        old = manifest_references(await load_manifest(store, 1)) | manifest_references(await load_manifest(store, 2))
        first = await collect_garbage(store, keep=1)
        assert (first.deleted_snapshots, first.num_objects, first.num_waiting) == ((1, 2), 0, len(old))
        assert await list_snapshots(store) == [3]
        assert old <= await data_keys(store)  # for readers that have them open
        age(store, days=6)
        assert (await collect_garbage(store, keep=1)).num_objects == 0
        age(store, days=2)
        last = await collect_garbage(store, keep=1)
        assert (last.num_objects, last.num_waiting) == (len(old), 0)
        assert last.num_bytes == first.waiting_bytes
        assert await data_keys(store) == manifest_references(await load_manifest(store))
        assert await keys(store, "collected/") == {"collected/clock.json"}
        assert await is_intact(store)

    async def test_shared_shards_stay(self, store: MemoryStore) -> None:
        write(store, range(200, 203), append=True)
        await collect_garbage(store, keep=1)
        age(store, days=8)
        await collect_garbage(store, keep=1)
        assert await is_intact(store, 4)
        assert (await load_manifest(store)).num_samples == 8

    async def test_tags_protect(self, store: MemoryStore) -> None:
        await tag_snapshot(store, "paper", 1)
        for _ in range(2):
            assert (await collect_garbage(store, keep=1)).kept_snapshots == (1, 3)
            age(store, days=8)
        assert await is_intact(store, 1)

    async def test_dry_run_deletes_nothing(self, store: MemoryStore) -> None:
        before = await keys(store)
        report = await collect_garbage(store, keep=1, dry_run=True)
        assert await keys(store) == before
        did = await collect_garbage(store, keep=1)
        assert (report.deleted_snapshots, report.num_waiting) == (did.deleted_snapshots, did.num_waiting)

    async def test_tag_that_comes_meanwhile_restores_its_snapshot(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        delete = MemoryStore.delete

        async def tag_and_delete(self: MemoryStore, key: str) -> None:
            if key == "manifests/0000000001.clm":
                await self.put("tags/late.json", b'{"version":1,"snapshot":1}')
            await delete(self, key)

        monkeypatch.setattr(MemoryStore, "delete", tag_and_delete)
        report = await collect_garbage(store, keep=1)
        assert (report.deleted_snapshots, report.kept_snapshots) == ((2,), (1, 3))
        assert await list_tags(store) == {"late": 1}
        assert await is_intact(store, 1)

    async def test_interrupted_between_copy_and_delete(self, store: MemoryStore) -> None:
        await store.put("collected/0000000001.clm", (await store.get("manifests/0000000001.clm")).data)
        age(store, "collected/", days=30)
        report = await collect_garbage(store, keep=1)
        assert report.num_objects == 0  # its age begins anew with the deletion
        assert await list_snapshots(store) == [3]

    @pytest.mark.parametrize(
        ("keep", "older", "doomed"),
        [
            (None, None, set()),
            (1, None, {1, 2, 4}),
            (2, None, {1, 2}),
            (9, None, set()),
            (None, 0, {1, 2, 4}),
            (None, 8, {1, 2}),  # snapshot 4 was the newest until 7 days ago
            (None, 12, {1}),
            (3, 0, {1}),
            (1, 15, set()),
        ],
    )
    def test_rules(self, keep: int | None, older: int | None, doomed: set[int]) -> None:
        now = datetime(2026, 1, 31, tzinfo=UTC)
        times = {1: now - 30 * DAY, 2: now - 14 * DAY, 4: now - 9 * DAY, 7: now - 7 * DAY}
        assert _select(times, keep, None if older is None else older * DAY, now) == doomed


class TestObjects:
    async def test_orphans_of_a_crashed_writer(self, store: MemoryStore) -> None:
        writer = ShardWriter(store, columns={"x": "int64", "data": "bytes"}, shard_size=6000, append=True)
        before = await data_keys(store)
        for number in range(20):
            writer.write({"x": number, "data": bytes([77 + number]) * 1000})
        writer._queue.flush()  # type: ignore[union-attr]
        writer.close()  # as if it was killed
        assert await data_keys(store) > before
        assert (await collect_garbage(store)).num_waiting > 0
        age(store, days=8)
        assert (await collect_garbage(store)).num_objects > 0
        assert await data_keys(store) == before
        assert all([await is_intact(store, snapshot) for snapshot in (1, 2, 3)])

    async def test_running_writer_commits_in_spite_of_a_collection(self, store: MemoryStore) -> None:
        with ShardWriter(store, columns={"x": "int64", "data": "bytes"}, shard_size=6000, append=True) as writer:
            for number in range(40):
                writer.write({"x": number, "data": bytes([99 + number]) * 1000})
                if number == 30:
                    await collect_garbage(store, keep=1)
        assert await is_intact(store)

    async def test_writer_that_finds_an_old_orphan_renews_it(self, store: MemoryStore) -> None:
        """The dangerous case: the same samples once more, whose shards are orphans that are due."""
        await collect_garbage(store, keep=1)
        age(store, days=30)
        with ShardWriter(store, columns={"x": "int64", "data": "bytes"}, shard_size=6000, overwrite=True) as writer:
            for number in range(10):  # the samples of snapshot 1
                writer.write({"x": number, "data": bytes([number]) * 1000})
            writer._queue.flush()  # type: ignore[union-attr]
            renewed = {each.key for each in writer._written._parts[0]._shards}
            assert len(renewed) > 1
            assert (await collect_garbage(store, keep=1)).num_objects > 0
            assert renewed <= await keys(store, "shards/")
        assert await is_intact(store)

    async def test_object_that_is_renewed_during_the_collection(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.put(f"shards/{'a' * 32}.cls", b"orphan")
        age(store, days=30)
        head = MemoryStore.head

        async def renew_and_head(self: MemoryStore, key: str) -> ObjectMeta:
            if key.startswith("shards/"):
                await self.put(key, b"orphan")
            return await head(self, key)

        monkeypatch.setattr(MemoryStore, "head", renew_and_head)
        await collect_garbage(store)
        assert f"shards/{'a' * 32}.cls" in await keys(store)

    async def test_renewed_object_that_is_deleted_fails_the_commit(self, store: MemoryStore) -> None:
        age(store, days=1)
        uploader = Uploader(store=store)
        [key, *_] = await keys(store, "shards/")
        await uploader.put_content_addressed(key, (await store.get(key)).data)
        await uploader.confirm_replaced()
        age(store, days=1)
        await uploader.put_content_addressed(key, (await store.get(key)).data)
        await store.delete(key)
        with pytest.raises(NotFound, match="write the samples again"):
            await uploader.confirm_replaced()

    async def test_recent_object_is_not_written_again(self, store: MemoryStore) -> None:
        await store.put("shards/x", b"abc")
        etag = (await store.head("shards/x")).etag
        await Uploader(store=store).put_content_addressed("shards/x", b"abc")
        assert (await store.head("shards/x")).etag == etag

    async def test_foreign_objects_are_never_touched(self, store: MemoryStore) -> None:
        foreign = {"notes.txt", "shards/README", "shards/x/y.cls", "manifests/old.bak", "other/a", "tags/x.txt"}
        for key in foreign:
            await store.put(key, b"mine")
        age(store, days=100)
        await collect_garbage(store, keep=1, grace=timedelta(0))
        assert foreign <= await keys(store)

    async def test_damaged_manifest_stops_everything(self, store: MemoryStore) -> None:
        await store.put(f"shards/{'a' * 32}.cls", b"orphan")
        await store.put("manifests/0000000002.clm", b"x" * 100)
        age(store, days=30)
        before = await data_keys(store)
        with pytest.raises(FormatError):
            await collect_garbage(store)
        with pytest.raises(FormatError):
            await collect_garbage(store, keep=1)
        assert await data_keys(store) == before


class TestRecords:
    def record(self, key: str) -> bytes:
        return msgspec.json.encode(
            [
                {
                    "size": 1, "num_samples": 1, "tail_start": 32, "digest": "b" * 32, "chunk_digests": [],
                    "payload_bytes": 0, "place": {"start": 0, "end": 1, "tail_key": key, "tail_offset": 0},
                }
            ]
        )  # fmt: skip

    async def test_a_job_protects_its_objects_until_it_is_abandoned(self, store: MemoryStore) -> None:
        tail = f"tails/{'c' * 32}.clt"
        await store.put(tail, b"tail")
        await store.put("unfinished/job/a.json", self.record(tail))
        age(store, days=30)
        await store.put("unfinished/job/resumed.json", b"[]")
        report = await collect_garbage(store)
        assert (report.num_objects, report.num_abandoned) == (0, 0)
        age(store, days=8)
        report = await collect_garbage(store)
        assert (report.num_objects, report.num_abandoned) == (1, 1)
        assert not await keys(store, "unfinished/")
        assert tail not in await keys(store)

    async def test_a_job_that_is_resumed_during_the_collection_keeps_its_objects(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tail = f"tails/{'c' * 32}.clt"
        await store.put(tail, b"tail")
        await store.put("unfinished/job/a.json", self.record(tail))
        age(store, days=30)
        real = _Collection._collected

        async def resume(self: _Collection) -> Any:
            await store.put("unfinished/job/resumed.json", b"[]")  # after the records were listed
            return await real(self)

        monkeypatch.setattr(_Collection, "_collected", resume)
        report = await collect_garbage(store)
        assert (report.num_objects, report.num_abandoned) == (0, 0)
        assert tail in await keys(store)

    async def test_field_that_is_not_known_here_protects(self, store: MemoryStore) -> None:
        """Manifests of later versions may name objects in fields that garbage collection was not told of."""
        key = f"shards/{'d' * 32}.cls"
        await store.put(key, b"of a later version")
        with ShardWriter(store, columns={"x": "int64"}, overwrite=True, metadata={"new": {"key": key}}) as writer:
            writer.write({"x": 1})
        age(store, days=30)
        await collect_garbage(store)
        assert key in await keys(store)

    async def test_damaged_record_protects_nothing(self, store: MemoryStore) -> None:
        await store.put("unfinished/job/a.json", b"{")
        assert (await collect_garbage(store)).num_abandoned == 0


class TestReaders:
    async def test_open_snapshot_is_readable_during_the_grace_period_and_then_a_typed_error(
        self, store: MemoryStore
    ) -> None:
        engine = FetchEngine(store)
        manifest = await load_manifest(engine, 2)
        reader = DatasetReader(manifest, engine, open_shard_cache(engine, None))
        assert (await reader.read(0))["x"] == 0
        await collect_garbage(store, keep=1)
        assert (await reader.read(9))["x"] == 9
        with pytest.raises(SnapshotDeleted):
            await load_manifest(engine, 2)
        age(store, days=8)
        await collect_garbage(store, keep=1)
        with pytest.raises(SnapshotDeleted, match="snapshot 2 was deleted while it was read"):
            await reader.read(13)
        await reader.cache.close()

    async def test_a_collected_snapshot_is_known_without_a_newer_one(self, store: MemoryStore) -> None:
        engine = FetchEngine(store)
        manifest = await load_manifest(engine, 2)
        reader = DatasetReader(manifest, engine, open_shard_cache(engine, None))
        await collect_garbage(store, keep=1)
        for key in (*manifest.referenced_keys(), "manifests/0000000003.clm"):  # as if a listing were not complete
            await store.delete(key)
        with pytest.raises(SnapshotDeleted, match="snapshot 2 was deleted while it was read; open the newest one "):
            await reader.read(0)
        with pytest.raises(SnapshotDeleted, match="not visible yet"):
            await load_manifest(engine, 2)
        with pytest.raises(NotFound, match="no such snapshot"):
            await load_manifest(engine, 7)
        await reader.cache.close()

    async def test_missing_shard_of_a_snapshot_that_exists(self, store: MemoryStore) -> None:
        engine = FetchEngine(store)
        manifest = await load_manifest(engine)
        reader = DatasetReader(manifest, engine, open_shard_cache(engine, None))
        await store.delete(manifest.shards[0].key)
        with pytest.raises(NotFound) as caught:
            await reader.read(0)
        assert not isinstance(caught.value, SnapshotDeleted)
        await reader.cache.close()


class TestArguments:
    @pytest.mark.parametrize(
        "options", [{"keep": 0}, {"keep": True}, {"keep": 1.5}, {"grace": 7}, {"older_than": -DAY}, {"grace": "7d"}]
    )
    async def test_invalid(self, store: MemoryStore, options: dict[str, object]) -> None:
        with pytest.raises(ConfigurationError):
            await collect_garbage(store, **options)  # type: ignore[arg-type]

    async def test_no_dataset(self) -> None:
        with pytest.raises(NotFound, match="no dataset here"):
            await collect_garbage(memory_store())

    async def test_store_without_times(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "concurrent_loader.storage.stores.backends.memory._meta",
            lambda key, found: ObjectMeta(key, len(found.data), found.etag),
        )
        with pytest.raises(ConfigurationError, match="keeps no times"):
            await collect_garbage(store, keep=1)
