from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from concurrent_loader.storage import (
    AlreadyExists,
    ConfigurationError,
    FormatError,
    NotFound,
    ShardWriter,
    SnapshotDeleted,
    StorageError,
    Store,
    delete,
    delete_tag,
    describe_snapshots,
    diff_snapshots,
    list_datasets,
    list_tags,
    load_manifest,
    open_store,
    tag_snapshot,
)
from concurrent_loader.storage.shards.manifest.snapshots import find_snapshot, list_manifests
from concurrent_loader.storage.stores import MemoryStore
from concurrent_loader.storage.stores.objects import ObjectMeta


def write(store: Store, numbers: range, **options: bool) -> None:
    with ShardWriter(store, columns={"x": "int64", "data": "bytes"}, shard_size=4096, **options) as writer:
        for number in numbers:
            writer.write({"x": number, "data": bytes([number % 256]) * 1000})


@pytest.fixture
def store() -> MemoryStore:
    """A dataset of three snapshots: 10 samples, 15 by appending, 5 others."""
    store = MemoryStore(f"memory://{datetime.now(UTC).timestamp()}")
    write(store, range(10))
    write(store, range(10, 15), append=True)
    write(store, range(100, 105), overwrite=True)
    return store


class TestSnapshots:
    async def test_describes_all(self, store: Store) -> None:
        await tag_snapshot(store, "old", 1)
        await tag_snapshot(store, "first", 1)
        found = await describe_snapshots(store)
        assert [(info.snapshot, info.num_samples, info.tags) for info in found] == [
            (1, 10, ("first", "old")),
            (2, 15, ()),
            (3, 5, ()),
        ]
        assert all(info.committed is not None and info.num_bytes > 5000 for info in found)

    async def test_no_dataset(self) -> None:
        with pytest.raises(NotFound, match="no dataset here"):
            await describe_snapshots(open_store("memory://nothing-at-all"))

    async def test_deleted_snapshot_is_a_typed_error(self, store: Store) -> None:
        await store.delete("manifests/0000000002.clm")
        with pytest.raises(SnapshotDeleted, match="deleted by garbage collection; the newest is 3"):
            await load_manifest(store, 2)
        with pytest.raises(NotFound, match="no such snapshot") as caught:
            await load_manifest(store, 4)
        assert not isinstance(caught.value, SnapshotDeleted)


class TestTimes:
    async def test_newest_by_then(self, store: Store) -> None:
        times = [meta.last_modified for meta in (await list_manifests(store)).values()]
        assert None not in times
        assert await find_snapshot(store, datetime.now(UTC)) == 3
        assert times[0] is not None
        with pytest.raises(NotFound, match="no snapshot is that old"):
            await find_snapshot(store, times[0] - timedelta(seconds=1))

    async def test_between_two(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        day = datetime(2026, 1, 1, tzinfo=UTC)

        async def manifests(_source: object) -> dict[int, ObjectMeta]:
            return {at: ObjectMeta("", 0, None, day + timedelta(days=at)) for at in (1, 2, 3)}

        monkeypatch.setattr("concurrent_loader.storage.shards.manifest.snapshots.list_manifests", manifests)
        assert [await find_snapshot(store, day + timedelta(days=days)) for days in (1, 1.5, 2, 9)] == [1, 1, 2, 3]

    async def test_needs_a_zone(self, store: Store) -> None:
        with pytest.raises(ConfigurationError, match="needs a time zone"):
            await load_manifest(store, datetime(2026, 1, 1))

    async def test_store_without_times(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        async def manifests(_source: object) -> dict[int, ObjectMeta]:
            return {1: ObjectMeta("manifests/0000000001.clm", 1)}

        monkeypatch.setattr("concurrent_loader.storage.shards.manifest.snapshots.list_manifests", manifests)
        with pytest.raises(ConfigurationError, match="keeps no times"):
            await load_manifest(store, datetime.now(UTC))


class TestTags:
    async def test_open_by_tag(self, store: Store) -> None:
        assert await tag_snapshot(store, "paper", 2) == 2
        assert (await load_manifest(store, "paper")).num_samples == 15
        assert await list_tags(store) == {"paper": 2}
        assert bytes((await store.get("tags/paper.json")).data) == b'{"version":1,"snapshot":2}'

    async def test_newest_by_default(self, store: Store) -> None:
        assert await tag_snapshot(store, "now") == 3
        assert await tag_snapshot(store, "also", "now") == 3

    async def test_moves_only_on_request(self, store: Store) -> None:
        await tag_snapshot(store, "stable", 1)
        assert await tag_snapshot(store, "stable", 1) == 1
        with pytest.raises(AlreadyExists, match="names snapshot 1; pass move=True"):
            await tag_snapshot(store, "stable", 2)
        await tag_snapshot(store, "stable", 2, move=True)
        assert await list_tags(store) == {"stable": 2}

    async def test_delete(self, store: Store) -> None:
        await tag_snapshot(store, "stable", 1)
        await delete_tag(store, "stable")
        await delete_tag(store, "stable")
        with pytest.raises(NotFound, match="no tag 'stable'"):
            await load_manifest(store, "stable")

    async def test_unknown_snapshot(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await tag_snapshot(store, "stable", 9)
        assert await list_tags(store) == {}

    async def test_snapshot_that_is_deleted_meanwhile(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        put = MemoryStore.put_if_absent

        async def put_and_collect(self: MemoryStore, key: str, data: bytes) -> ObjectMeta:
            await self.delete("manifests/0000000001.clm")
            return await put(self, key, data)

        monkeypatch.setattr(MemoryStore, "put_if_absent", put_and_collect)
        with pytest.raises(NotFound):
            await tag_snapshot(store, "stable", 1)
        assert await list_tags(store) == {}

    async def test_a_move_to_a_snapshot_that_is_deleted_meanwhile(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await tag_snapshot(store, "stable", 1)
        put = MemoryStore.put

        async def put_and_collect(self: MemoryStore, key: str, data: bytes) -> ObjectMeta:
            await self.delete("manifests/0000000002.clm")
            return await put(self, key, data)

        monkeypatch.setattr(MemoryStore, "put", put_and_collect)
        with pytest.raises(NotFound):
            await tag_snapshot(store, "stable", 2, move=True)
        assert await list_tags(store) == {"stable": 1}

    @pytest.mark.parametrize("name", ["", "7", "a/b", "-a", "x" * 101, "ä", "2026-01-01", "2026-01-01T10", "a\n", None])
    async def test_invalid_names(self, store: Store, name: str) -> None:
        with pytest.raises(ConfigurationError, match="a tag must have"):
            await tag_snapshot(store, name)

    @pytest.mark.parametrize("name", ["a", "v1.0", "7b", "2026-01-01-best", "x" * 100])
    async def test_valid_names(self, store: Store, name: str) -> None:
        await tag_snapshot(store, name)
        assert await list_tags(store) == {name: 3}

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"{}", b'{"version":2,"snapshot":1}', b'{"version":1,"snapshot":0}', b" " * 5000]
    )
    async def test_damaged_tag(self, store: Store, body: bytes) -> None:
        await store.put("tags/bad.json", body)
        with pytest.raises(FormatError):
            await load_manifest(store, "bad")

    async def test_other_objects_are_ignored(self, store: Store) -> None:
        for key in ("tags/a/b.json", "tags/x.txt", "tags/7.json"):
            await store.put(key, b"?")
        assert await list_tags(store) == {}


class TestDiff:
    async def test_append(self, store: Store) -> None:
        found = diff_snapshots(await load_manifest(store, 1), await load_manifest(store, 2))
        assert found.is_append
        assert (found.added_samples, found.removed_samples, found.removed_shards) == (5, 0, 0)
        assert found.common_shards > 1
        assert found.added_bytes > 5000

    async def test_overwrite(self, store: Store) -> None:
        found = diff_snapshots(await load_manifest(store, 2), await load_manifest(store, 3))
        assert not found.is_append
        assert (found.added_samples, found.removed_samples, found.common_shards) == (5, 15, 0)
        assert found.num_samples == (15, 5)

    def test_deleted_samples(self) -> None:
        store = open_store(f"memory://{uuid4().hex}")
        write(store, range(15))
        delete(store.url, ids=[0, 2])
        write(store, range(15, 17), append=True)
        first, second, third = (asyncio.run(load_manifest(store, number)) for number in (1, 2, 3))
        found = diff_snapshots(first, second)
        assert (found.num_samples, found.deleted_samples, found.is_append) == ((15, 13), 2, False)
        assert (found.added_samples, found.removed_samples, found.removed_shards) == (0, 0, 0)
        assert diff_snapshots(second, third).is_append
        write(store, range(15), overwrite=True)
        delete(store.url, ids=[1, 2])  # as many of the same shard, but others
        assert not diff_snapshots(second, asyncio.run(load_manifest(store, 5))).is_append
        found = diff_snapshots(first, third)
        assert (found.added_samples, found.removed_samples, found.deleted_samples) == (2, 0, 2)

    async def test_columns_and_metadata(self, store: Store) -> None:
        with ShardWriter(store, columns={"x": "int32", "y": "str"}, overwrite=True, metadata={"b": 1}) as writer:
            writer.write({"x": 1, "y": "a"})
        found = diff_snapshots(await load_manifest(store, 3), await load_manifest(store, 4))
        assert found.changed_columns == {"x": ("int64", "int32")}
        assert found.added_columns == {"y": "str"}
        assert found.removed_columns == {"data": "bytes"}
        assert found.changed_metadata == ("b",)

    async def test_shard_that_is_there_twice(self, store: Store) -> None:
        write(store, range(100, 105), append=True)
        found = diff_snapshots(await load_manifest(store, 3), await load_manifest(store, 4))
        assert (found.added_samples, found.removed_samples) == (5, 0)


class TestCatalog:
    async def test_datasets_at_any_depth(self, store: Store) -> None:
        url = f"{store.url}-list"
        write(open_store(f"{url}/a/b"), range(3))
        write(open_store(f"{url}/c"), range(4))
        write(open_store(f"{url}/c"), range(4), append=True)
        top = open_store(url)
        await top.put("c/manifests/notes.txt", b"x")
        await top.put("d/shards/x.cls", b"no dataset")
        found = await list_datasets(top)
        assert [(info.path, info.num_samples, info.snapshots) for info in found] == [("a/b", 3, (1,)), ("c", 8, (1, 2))]
        assert found[0].columns == {"x": "int64", "data": "bytes"}
        assert (found[1].stored_bytes or 0) > (found[1].num_bytes or 0) / 2

    async def test_many_shards_are_skipped(self, store: Store) -> None:
        base = f"{store.url}-many"
        write(open_store(f"{base}/a"), range(3))
        write(open_store(f"{base}/b/shards/zoo"), range(4))
        bucket = open_store(base)
        for folder in ("a", "b"):
            for number in range(2000):
                await bucket.put(f"{folder}/shards/{number:032x}.cls", b"x")
        listed: list[str] = []

        class Counting(MemoryStore):
            async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta | StorageError]:
                async for meta in super()._list_after(prefix, after):
                    listed.append(meta.key)
                    yield meta

        found = await list_datasets(Counting(base))
        assert [(info.path, info.num_samples) for info in found] == [("a", 3), ("b/shards/zoo", 4)]
        assert found[0].stored_bytes is None
        assert len(listed) < 2 * 1001 + 20
        whole = await list_datasets(bucket, stored=True)
        assert (whole[0].stored_bytes or 0) > 2000

    async def test_the_url_itself(self, store: Store) -> None:
        [info] = await list_datasets(store)
        assert (info.path, info.num_samples, info.snapshots, info.problem) == ("", 5, (1, 2, 3), None)

    async def test_damaged_dataset_is_listed(self, store: Store) -> None:
        await store.put("manifests/0000000009.clm", b"x" * 50)
        [info] = await list_datasets(store)
        assert info.num_samples is None
        assert "not a manifest" in (info.problem or "")
