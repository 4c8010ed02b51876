from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.storage.errors import AccessDenied
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.verify import VerifyProgress, VerifyReport, verify_dataset
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import MemoryStore
from concurrent_loader.storage.testing.faults.fault_store import Fail, FaultStore, FlipBit, in_order

COLUMNS = {"image": "bytes", "label": "int64", "box": "float32[2]", "name": "str"}


@pytest.fixture
def store() -> MemoryStore:
    url = f"memory://verify-{uuid4()}"
    for first in (0, 60):
        with ShardWriter(url, columns=COLUMNS, shard_size="8KiB", append=True) as writer:
            for number in range(first, first + 60):
                box = [np.nan, -0.0]
                writer.write({"image": bytes([number]) * 400, "label": number, "box": box, "name": str(number)})
    return MemoryStore(url)


async def verify(store: Any, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> VerifyReport:
    return await verify_dataset(FetchEngine(store), change(await load_manifest(store)))


async def damage(store: MemoryStore, key: str, *places: int) -> None:
    data = bytearray((await store.get(key)).data)
    for place in places:
        data[place] ^= 1
    await store.put(key, data)


async def index_of(store: MemoryStore, number: int) -> tuple[str, ShardIndex]:
    entry = (await load_manifest(store)).shards[number]
    tail = (await store.get_range(entry.key, entry.tail_start, entry.size)).data
    return entry.key, ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size)


async def test_a_sound_data_set(store: MemoryStore) -> None:
    seen: list[VerifyProgress] = []
    manifest = await load_manifest(store)
    report = await verify_dataset(FetchEngine(store), manifest, on_progress=seen.append)
    assert report.problems == ()
    assert (report.snapshot, report.num_samples, report.num_bundles) == (2, 120, 2)
    assert report.num_shards == len(manifest.shards) > 4
    assert len(seen) == report.num_shards + report.num_bundles
    assert seen[-1].num_bytes == seen[-1].num_bytes_total == report.num_bytes


async def test_every_damaged_value_is_named(store: MemoryStore) -> None:
    key, index = await index_of(store, 1)
    await damage(store, key, index.payload_range(2, "image").start, index.payload_range(5, "image").start)
    report = await verify(store)
    assert {problem.shard for problem in report.problems} == {key}
    assert [(problem.sample, problem.column) for problem in report.problems] == [
        (None, None),
        (2, "image"),
        (5, "image"),
    ]
    assert (report.problems[0].start, report.problems[0].end) == (0, index.size)
    assert report.num_samples == 120 - index.num_samples


@pytest.mark.parametrize("place", [0, 10, -1, -30, -70])
async def test_damage_anywhere_else(store: MemoryStore, place: int) -> None:
    manifest = await load_manifest(store)
    for entry in (manifest.shards[0], manifest.bundles[0]):
        await damage(store, entry.key, place)
    report = await verify(store)
    assert {problem.shard for problem in report.problems} == {manifest.shards[0].key, manifest.bundles[0].key}


async def test_damage_on_the_way_is_no_damage(store: MemoryStore) -> None:
    manifest = await load_manifest(store)
    flaky = FaultStore(store, in_order([FlipBit(12345), None, FlipBit(54321)]))
    assert (await verify_dataset(FetchEngine(flaky), manifest)).problems == ()


async def test_missing_and_replaced_objects(store: MemoryStore) -> None:
    manifest = await load_manifest(store)
    await store.delete(manifest.shards[0].key)
    await store.put(manifest.shards[1].key, b"short")
    await store.delete(manifest.bundles[1].key)
    report = await verify(store)
    assert [problem.shard for problem in report.problems] == [
        manifest.shards[0].key,
        manifest.shards[1].key,
        manifest.bundles[1].key,
    ]


async def test_a_store_that_cannot_be_read_is_an_error(store: MemoryStore) -> None:
    manifest = await load_manifest(store)
    with pytest.raises(AccessDenied):
        await verify_dataset(FetchEngine(FaultStore(store, in_order([None, Fail(AccessDenied)]))), manifest)


async def test_a_shard_of_something_else(store: MemoryStore) -> None:
    """Sound in itself and of the right size; only the manifest's digests know."""
    manifest = await load_manifest(store)
    pairs = itertools.combinations(manifest.shards, 2)
    first, second = next((a, b) for a, b in pairs if (a.size, a.tail_start) == (b.size, b.tail_start))
    await store.put(first.key, (await store.get(second.key)).data)
    report = await verify(store)
    assert {problem.shard for problem in report.problems} == {first.key}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"digest": "0" * 32}, "digest"),
        ({"payload_bytes": 1}, "payload bytes"),
        ({"tail_start": 4000}, "tail"),
    ],
)
async def test_a_manifest_that_contradicts_its_shard(store: MemoryStore, change: dict[str, Any], what: str) -> None:
    def wrong(manifest: Manifest) -> Manifest:
        return replace(manifest, shards=(replace(manifest.shards[0], **change), *manifest.shards[1:]))

    (problem,) = (await verify(store, wrong)).problems
    assert what in problem.what


async def test_a_manifest_with_other_columns(store: MemoryStore) -> None:
    report = await verify(store, lambda manifest: replace(manifest, schema={**manifest.schema, "label": "uint64"}))
    assert {problem.what for problem in report.problems} == {"the columns differ from the manifest"}


async def test_a_bundle_that_disagrees_with_its_shards(store: MemoryStore) -> None:
    manifest = await load_manifest(store)
    builder = ShardBuilder(Schema(Schema.parse(COLUMNS).fixed))
    labels = np.arange(60)
    labels[[20, 21, 50]] = -1
    box = np.tile(np.array([np.nan, -0.0], "f4"), (60, 1))
    builder.extend_fixed({"label": labels, "box": box})
    forged = builder.finish()
    await store.put("columns/forged", forged.tobytes())
    bundle = replace(
        manifest.bundles[0],
        key="columns/forged",
        digest=forged.digest,
        chunk_digests=forged.chunk_digests,
        size=forged.size,
    )
    report = await verify(store, lambda manifest: replace(manifest, bundles=(bundle, manifest.bundles[1])))
    firsts = np.cumsum([0, *(entry.num_samples for entry in manifest.shards)])
    found = [(problem.shard, problem.sample, problem.column) for problem in report.problems]
    expected = []
    for number, rows in ((20, {20, 21}), (50, {50})):
        shard = int(np.searchsorted(firsts, number, side="right")) - 1
        assert all(firsts[shard] <= row < firsts[shard + 1] for row in rows)
        expected.append((manifest.shards[shard].key, number - firsts[shard], "label"))
    assert found == expected


async def test_bundles_need_not_cover_everything(store: MemoryStore) -> None:
    for keep in ((), (0,), (1,)):
        report = await verify(
            store,
            lambda manifest, keep=keep: replace(manifest, bundles=tuple(manifest.bundles[number] for number in keep)),
        )
        assert report.problems == ()
        assert report.num_bundles == len(keep)


async def test_shards_of_many_chunks() -> None:
    url = f"memory://verify-{uuid4()}"
    with ShardWriter(url, columns={"data": "bytes"}, shard_size="64MiB") as writer:
        for number in range(3):
            writer.write({"data": bytes([number]) * (7 << 20)})
    store = MemoryStore(url)
    assert (await verify(store)).problems == ()
    await damage(store, writer.manifest.shards[0].key, CHUNK_BYTES + 5)
    chunk, value = (await verify(store)).problems
    assert (chunk.start, chunk.end) == (CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert (value.sample, value.column) == (1, "data")
    assert str(value).startswith(f"{writer.manifest.shards[0].key}, sample 1, column data: ")


async def test_an_empty_data_set() -> None:
    url = f"memory://verify-{uuid4()}"
    await asyncio.to_thread(lambda: ShardWriter(url, columns=COLUMNS, allow_empty=True).commit())
    assert (await verify(MemoryStore(url))).problems == ()
