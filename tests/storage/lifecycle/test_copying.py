from __future__ import annotations

import sys
from pathlib import Path

import pytest
import xxhash

from concurrent_loader.storage import (
    AlreadyExists,
    CopyProgress,
    DigestMismatch,
    FetchEngine,
    NotFound,
    RetryPolicy,
    ServerError,
    ShardWriter,
    StoreError,
    collect_garbage,
    copy_dataset,
    list_tags,
    load_manifest,
    tag_snapshot,
)
from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import LocalStore, MemoryStore, Store
from concurrent_loader.storage.stores.objects import ObjectMeta

sys.path.insert(0, str(Path(__file__).parent))
from dataset_in_memory import age, keys, memory_store, write

DATASET = ("manifests/", "shards/", "columns/", "tails/", "tags/")


@pytest.fixture
def source() -> MemoryStore:
    """Three snapshots and a tag."""
    store = memory_store()
    write(store, range(10))
    write(store, range(10, 15), append=True)
    write(store, range(100, 105), overwrite=True)
    return store


async def contents(store: Store) -> dict[str, bytes]:
    found = [key for key in await keys(store) if key.startswith(DATASET)]
    return {key: bytes((await store.get(key)).data) for key in found}


class ServerSide(MemoryStore):
    """Copies on the "server" like S3; ``wrong`` keys arrive with other bytes."""

    wrong: frozenset[str] = frozenset()
    error: Exception | None = None

    async def copy_from(self, source: Store, source_key: str, key: str) -> bool:
        if self.error is not None:
            raise self.error
        data = (await source.get(source_key)).data
        await self.put(key, b"?" * len(data) if key in self.wrong else data)
        return True


class TestCopy:
    async def test_is_the_same_dataset(self, source: MemoryStore, tmp_path: Path) -> None:
        await tag_snapshot(source, "paper", 2)
        target = LocalStore(str(tmp_path / "copy"))
        seen: list[CopyProgress] = []
        report = await copy_dataset(source, target, on_progress=seen.append)
        assert (report.snapshots, report.num_new_snapshots, report.num_kept, report.sources) == ((1, 2, 3), 3, 0, ())
        assert await contents(target) == await contents(source)
        assert not await keys(target, "copying/")
        assert seen[-1].num_bytes == seen[-1].num_bytes_total == report.num_bytes
        assert await list_tags(target) == {"paper": 2}

    async def test_again_copies_nothing_and_then_what_is_new(self, source: MemoryStore) -> None:
        target = memory_store()
        first = await copy_dataset(source, target)
        again = await copy_dataset(source, target)
        assert (again.num_objects, again.num_kept, again.num_new_snapshots) == (0, first.num_objects, 0)
        write(source, range(50), append=True)
        await tag_snapshot(source, "new")
        more = await copy_dataset(source, target)
        assert (more.num_new_snapshots, more.num_kept) == (1, first.num_objects)
        assert await contents(target) == await contents(source)

    async def test_interrupted_copy_is_no_dataset_and_continues(
        self, source: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = memory_store()
        puts = 0
        put = MemoryStore.put_if_absent

        async def fail_later(self: MemoryStore, key: str, data: bytes) -> ObjectMeta:
            nonlocal puts
            puts += 1
            if puts > 3:
                raise StoreError("gone")
            return await put(self, key, data)

        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "put_if_absent", fail_later)
            with pytest.raises(StoreError, match="gone"):
                await copy_dataset(source, target)
        assert await list_snapshots(target) == []
        there = await keys(target, "shards/") | await keys(target, "columns/")
        assert len(there) == 3
        # Garbage collection before the second run: the record of the copy protects what is there.
        await target.put("manifests/0000000001.clm", (await source.get("manifests/0000000001.clm")).data)
        age(target, "shards/", days=30)
        age(target, "columns/", days=30)
        await collect_garbage(target)
        assert there <= await keys(target)
        report = await copy_dataset(source, target)
        assert report.num_kept == 3
        assert await contents(target) == await contents(source)

    async def test_object_that_disappears_is_copied_again(
        self, source: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = memory_store()
        [victim, *_] = sorted(await keys(source, "shards/"))
        put, deleted = MemoryStore.put_if_absent, []

        async def put_and_lose(self: MemoryStore, key: str, data: bytes) -> ObjectMeta:
            meta = await put(self, key, data)
            if key == victim and not deleted:
                deleted.append(key)
                await self.delete(key)
            return meta

        monkeypatch.setattr(MemoryStore, "put_if_absent", put_and_lose)
        await copy_dataset(source, target)
        assert deleted
        assert await contents(target) == await contents(source)

    async def test_damaged_source(self, source: MemoryStore) -> None:
        target = memory_store()
        [victim, *_] = sorted(await keys(source, "shards/"))
        size = (await source.head(victim)).size
        await source.put(victim, b"x" * size)
        with pytest.raises(DigestMismatch, match="nothing was committed"):
            await copy_dataset(source, target)
        assert await list_snapshots(target) == []

    async def test_missing_object(self, source: MemoryStore) -> None:
        [victim, *_] = await keys(source, "shards/")
        await source.delete(victim)
        with pytest.raises(NotFound):
            await copy_dataset(source, memory_store())

    async def test_no_dataset(self) -> None:
        with pytest.raises(NotFound, match="no dataset here"):
            await copy_dataset(memory_store(), memory_store())

    async def test_never_overwrites_another_dataset(self, source: MemoryStore) -> None:
        target = memory_store()
        write(target, range(3))
        before = await contents(target)
        with pytest.raises(AlreadyExists, match="another dataset"):
            await copy_dataset(source, target)
        assert await contents(target) == before

    async def test_copy_that_was_written_to(self, source: MemoryStore) -> None:
        target = memory_store()
        await copy_dataset(source, target)
        write(target, range(7), append=True)
        with pytest.raises(AlreadyExists, match="another dataset"):
            await copy_dataset(source, target)

    async def test_source_whose_old_snapshots_were_collected(self, source: MemoryStore) -> None:
        target = memory_store()
        await copy_dataset(source, target)
        await collect_garbage(source, keep=1)
        write(source, range(7), append=True)
        assert (await copy_dataset(source, target)).snapshots == (3, 4)
        assert await list_snapshots(target) == [1, 2, 3, 4]

    async def test_field_that_is_not_known_here(self, source: MemoryStore) -> None:
        key = f"shards/{xxhash.xxh3_128_hexdigest(b'later')}.cls"
        await source.put(key, b"later")
        with ShardWriter(source, columns={"x": "int64"}, overwrite=True, metadata={"new": [key, "shards/a"]}) as writer:
            writer.write({"x": 1})
        target = memory_store()
        await copy_dataset(source, target)
        assert key in await keys(target)


class TestOnTheServer:
    def target(self) -> ServerSide:
        return ServerSide(memory_store().url)

    async def test_reads_back_without_a_digest_in_the_etag(self, source: MemoryStore) -> None:
        target = self.target()
        report = await copy_dataset(source, target)
        assert report.num_server_side == report.num_objects > 3
        assert await contents(target) == await contents(source)

    async def test_wrong_bytes_are_transferred_again(self, source: MemoryStore) -> None:
        target = self.target()
        target.wrong = frozenset(sorted(await keys(source, "shards/"))[:2])
        report = await copy_dataset(source, target)
        assert report.num_server_side == report.num_objects - 2
        assert await contents(target) == await contents(source)

    @pytest.mark.parametrize("error", [StoreError("not implemented"), ServerError("busy")])
    async def test_server_that_refuses(self, source: MemoryStore, error: Exception) -> None:
        target = self.target()
        target.error = error
        engine = FetchEngine(target, retry=RetryPolicy(max_attempts=1))
        assert (await copy_dataset(source, engine)).num_server_side == 0
        assert await contents(target) == await contents(source)


async def test_copy_is_intact(source: MemoryStore) -> None:
    target = memory_store()
    await copy_dataset(source, target)
    engine = FetchEngine(target)
    for snapshot in (1, 2, 3):
        manifest = await load_manifest(engine, snapshot)
        assert manifest.digest == (await load_manifest(source, snapshot)).digest
        assert not (await verify_dataset(engine, manifest)).problems
