from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import CommitConflict, ConfigurationError, FormatError, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest.manifest import (
    BundleEntry,
    Manifest,
    ShardEntry,
    bundle_key,
    manifest_key,
    shard_key,
)
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode
from concurrent_loader.storage.shards.manifest.snapshots import commit, latest_snapshot, list_snapshots, load_manifest
from concurrent_loader.storage.stores import MemoryStore

GOLDEN = Path(__file__).parents[1] / "golden" / "manifest_v1.clm"
MIB = 1 << 20
HEADER_BYTES = 32


def a_shard(number: int, *, size: int = 4096, num_samples: int = 10) -> ShardEntry:
    digest = xxhash.xxh3_128_hexdigest(str(number).encode())
    return ShardEntry(
        key=shard_key(digest),
        size=size,
        num_samples=num_samples,
        tail_start=size - 1024,
        digest=digest,
        chunk_digests=tuple(range(1, 1 + -(-size // (8 * MIB)))),
        payload_bytes=size - 2048,
    )


def a_bundle(first_sample: int, num_samples: int) -> BundleEntry:
    digest = xxhash.xxh3_128_hexdigest(b"bundle%d" % first_sample)
    return BundleEntry(
        key=bundle_key(digest),
        size=1024,
        tail_start=32,
        digest=digest,
        chunk_digests=(2**64 - 1,),
        first_sample=first_sample,
        num_samples=num_samples,
    )


def a_manifest(**changes: Any) -> Manifest:
    whole = Manifest(
        snapshot=2,
        schema={"image": "jpeg", "label": "int64", "boxes": "float32[...]", "caption": "str"},
        shards=(a_shard(1), a_shard(2, size=20 * MIB, num_samples=7)),
        bundles=(a_bundle(0, 15), a_bundle(15, 2)),
        statistics={"label": {"max": 9, "min": 0}, "image": {"max_bytes": 3, "min_bytes": 1, "total_bytes": 34}},
        metadata={"classes": {"label": ["cat", "Ünïcode"]}, "deep": [1, {"a": None, "b": [True, 1.5]}]},
        parent="0123456789abcdef0123456789abcdef",
    )
    return replace(whole, **changes)


def reframed(body: bytes) -> bytes:
    """Puts a body under a header that fits it, so that only the body itself is on trial."""
    return struct.pack("<8sIIQQ", b"CLMANIF\n", 1, 0, len(body), xxhash.xxh3_64_intdigest(body)) + body


def with_body(change: Any) -> bytes:
    body = json.loads(encode(a_manifest())[HEADER_BYTES:])
    change(body)
    return reframed(json.dumps(body).encode())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://manifest-{uuid4()}")


class TestFile:
    def test_round_trip(self) -> None:
        manifest = a_manifest()
        again = decode(encode(manifest))
        assert again == manifest
        assert list(again.schema) == ["image", "label", "boxes", "caption"]
        assert again.digest == manifest.digest == xxhash.xxh3_128_hexdigest(encode(manifest))

    def test_sums(self) -> None:
        manifest = a_manifest()
        assert manifest.num_samples == 17
        assert manifest.num_bytes == 4096 + 20 * MIB
        assert 0 <= manifest.fingerprint < 2**63
        assert manifest.fingerprint == int(manifest.digest, 16) >> 65

    def test_equal_manifests_have_equal_bytes(self) -> None:
        shuffled = a_manifest(
            metadata=dict(reversed(a_manifest().metadata.items())),
            statistics=dict(reversed(a_manifest().statistics.items())),
        )
        assert encode(shuffled) == encode(a_manifest())

    def test_golden(self) -> None:
        if os.environ.get("WRITE_GOLDEN"):
            GOLDEN.write_bytes(encode(a_manifest()))
        assert encode(a_manifest()) == GOLDEN.read_bytes()
        assert decode(GOLDEN.read_bytes()) == a_manifest()

    def test_digest_is_of_the_bytes_that_were_read(self) -> None:
        data = with_body(lambda body: None)  # json.dumps writes blanks: the same manifest in other bytes
        assert decode(data) == a_manifest()
        assert decode(data).digest == xxhash.xxh3_128_hexdigest(data) != a_manifest().digest

    def test_truncated_anywhere(self) -> None:
        data = encode(a_manifest())
        for length in range(len(data)):
            with pytest.raises(FormatError):
                decode(data[:length])
        with pytest.raises(FormatError):
            decode(data + b"\0")

    def test_a_flipped_bit_anywhere(self) -> None:
        data = bytearray(encode(a_manifest()))
        for place in range(len(data)):
            data[place] ^= 1 << place % 8
            with pytest.raises(FormatError):
                decode(bytes(data))
            data[place] ^= 1 << place % 8

    @given(st.binary(max_size=200))
    def test_garbage_body(self, body: bytes) -> None:
        with pytest.raises(FormatError):
            decode(reframed(body))

    def test_nesting_bomb(self) -> None:
        with pytest.raises(FormatError):
            decode(reframed(b"[" * 1_000_000))
        deep = "[" * 100_000 + "]" * 100_000
        body = encode(a_manifest(metadata={}))[HEADER_BYTES:].replace(
            b'"metadata":{}', b'"metadata":{"x":%s}' % deep.encode()
        )
        with pytest.raises(FormatError):
            decode(reframed(body))

    def test_later_version_says_upgrade(self) -> None:
        data = bytearray(encode(a_manifest()))
        data[8] = 4
        with pytest.raises(FormatError, match="upgrade"):
            decode(bytes(data))
        data[8] = 2
        with pytest.raises(FormatError, match="for virtual shards only"):
            decode(bytes(data))

    def test_unknown_feature_is_refused_by_name(self) -> None:
        """Before its fields are looked at, which an older library cannot know."""
        body = json.loads(encode(a_manifest())[HEADER_BYTES:])
        body.update(requires=["time-travel"], hours=[1, 2])
        data = bytearray(reframed(json.dumps(body).encode()))
        data[8] = 3
        with pytest.raises(FormatError, match="'time-travel'; upgrade concurrent-loader"):
            decode(bytes(data))

    @pytest.mark.parametrize("requires", [[], None, "x", ["x" * 65], ["x"] * 65, [1]])
    def test_version_3_lists_features(self, requires: object) -> None:
        body = json.loads(encode(a_manifest())[HEADER_BYTES:])
        data = bytearray(reframed(json.dumps({**body, "requires": requires}).encode()))
        data[8] = 3
        with pytest.raises(FormatError):
            decode(bytes(data))

    def test_features_need_version_3(self) -> None:
        body = json.loads(encode(a_manifest())[HEADER_BYTES:])
        with pytest.raises(FormatError, match="only version 3"):
            decode(reframed(json.dumps({**body, "requires": ["time-travel"]}).encode()))

    def test_too_large_to_write(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("concurrent_loader.storage.shards.manifest.manifest_body.MAX_MANIFEST_BYTES", 100)
        with pytest.raises(FormatError, match="larger shards"):
            encode(a_manifest())


HOSTILE: dict[str, Any] = {
    "unknown field": lambda body: body.update(extra=1),
    "missing field": lambda body: body.pop("shards"),
    "snapshot 0": lambda body: body.update(snapshot=0),
    "snapshot beyond the key": lambda body: body.update(snapshot=10**10),
    "snapshot 1 with a parent": lambda body: body.update(snapshot=1),
    "no parent": lambda body: body.update(parent=None),
    "parent is no digest": lambda body: body.update(parent="x" * 32),
    "parent with a line end": lambda body: body.update(parent="0" * 32 + "\n"),
    "sum of samples": lambda body: body.update(num_samples=18),
    "sum of bytes": lambda body: body.update(num_bytes=1),
    "a column twice": lambda body: body["columns"].append({"name": "label", "type": "int64"}),
    "no column": lambda body: body.update(columns=[], statistics={}),
    "column of no type": lambda body: body["columns"].append({"name": "x", "type": "no such"}),
    "column of no name": lambda body: body["columns"].append({"name": "../x", "type": "int8"}),
    "column type in another form": lambda body: body["columns"].append({"name": "x", "type": "int8[ 3 ]"}),
    "column with a surplus": lambda body: body["columns"][0].update(x=1),
    "statistics of nothing": lambda body: body["statistics"].update(nothing={"min": 1}),
    "negative size": lambda body: body["shards"][0].update(size=-1),
    "fractional size": lambda body: body["shards"][0].update(size=4096.5),
    "size beyond 2**53": lambda body: body["shards"][0].update(size=2**60),
    "negative samples": lambda body: body["shards"][0].update(num_samples=-10),
    "more samples than bytes": lambda body: body["shards"][0].update(num_samples=4097),
    "more samples than the tail has room for": lambda body: body["shards"][0].update(num_samples=41),
    "more samples than a bundle has room for": lambda body: body["bundles"][0].update(num_samples=117),
    "tail behind the end": lambda body: body["shards"][0].update(tail_start=4095),
    "tail in the header": lambda body: body["shards"][0].update(tail_start=31, payload_bytes=0),
    "payload larger than its place": lambda body: body["shards"][0].update(payload_bytes=3070),
    "a digest missing": lambda body: body["shards"][1].update(chunk_digests="0" * 32),
    "a digest too many": lambda body: body["shards"][0].update(chunk_digests="0" * 32),
    "half a digest": lambda body: body["shards"][0].update(chunk_digests="0" * 15),
    "shard elsewhere": lambda body: body["shards"][0].update(key="manifests/x"),
    "shard outside": lambda body: body["shards"][0].update(key="shards/../../x"),
    "absolute key": lambda body: body["shards"][0].update(key="/etc/passwd"),
    "empty key": lambda body: body["shards"][0].update(key=""),
    "long key": lambda body: body["shards"][0].update(key="shards/" + "x" * 1024),
    "key with control characters": lambda body: body["shards"][0].update(key="shards/\x1b[2J"),
    "bundle among shards": lambda body: body["bundles"][0].update(key="shards/x"),
    "bundles overlap": lambda body: body["bundles"][1].update(first_sample=14),
    "bundles out of order": lambda body: body["bundles"].reverse(),
    "bundle beyond the end": lambda body: body["bundles"][1].update(num_samples=3),
    "bundle of nothing": lambda body: body["bundles"][1].update(num_samples=0),
    "metadata is a list": lambda body: body.update(metadata=[]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused(name: str) -> None:
    with pytest.raises(FormatError):
        decode(with_body(HOSTILE[name]))


def test_an_unchanged_body_is_accepted() -> None:
    assert decode(with_body(lambda body: None)) == a_manifest()


def test_contradictions_are_not_written_either() -> None:
    with pytest.raises(FormatError):
        encode(a_manifest(bundles=(a_bundle(0, 18),)))


def test_keys() -> None:
    assert manifest_key(1) == "manifests/0000000001.clm"
    assert manifest_key(9_999_999_999) == "manifests/9999999999.clm"
    for wrong in (0, -1, 10**10, True, "1"):
        with pytest.raises(ConfigurationError):
            manifest_key(wrong)  # type: ignore[arg-type]


class TestInTheStore:
    async def test_commit_and_load(self, store: MemoryStore) -> None:
        first, second = a_manifest(snapshot=1, parent=None), a_manifest()
        await commit(store, first)
        await commit(FetchEngine(store), second)
        assert await list_snapshots(store) == [1, 2]
        assert await latest_snapshot(store) == 2
        assert await load_manifest(store) == second
        assert await load_manifest(FetchEngine(store), 1) == first

    async def test_other_objects_are_no_snapshots(self, store: MemoryStore) -> None:
        for key in (
            "manifests/x",
            "manifests/0000000000.clm",
            "manifests/00000000011.clm",
            "manifests/0000000009.clm/x",
        ):
            await store.put(key, b"")
        assert await latest_snapshot(store) is None

    async def test_nothing_there(self, store: MemoryStore) -> None:
        with pytest.raises(NotFound, match="no dataset here"):
            await load_manifest(store)
        await commit(store, a_manifest())
        with pytest.raises(NotFound, match="no such snapshot"):
            await load_manifest(store, 7)

    async def test_second_commit_of_a_number_conflicts(self, store: MemoryStore) -> None:
        await commit(store, a_manifest())
        with pytest.raises(CommitConflict):
            await commit(store, a_manifest(metadata={}))
        with pytest.raises(CommitConflict):
            await commit(store, a_manifest())  # even of equal bytes: the other writer's samples are not ours
        assert await load_manifest(store) == a_manifest()

    async def test_renamed_manifest(self, store: MemoryStore) -> None:
        await store.put(manifest_key(3), encode(a_manifest()))
        with pytest.raises(FormatError, match="key of another snapshot") as caught:
            await load_manifest(store)
        assert caught.value.key == manifest_key(3)

    async def test_damaged_manifest_is_named(self, store: MemoryStore) -> None:
        await store.put(manifest_key(3), b"x")
        with pytest.raises(FormatError) as caught:
            await load_manifest(store)
        assert (caught.value.key, caught.value.url) == (manifest_key(3), store.url)

    async def test_huge_manifest_is_not_fetched(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        await store.put(manifest_key(2), encode(a_manifest()))
        monkeypatch.setattr("concurrent_loader.storage.shards.manifest.snapshots.MAX_MANIFEST_BYTES", 100)
        monkeypatch.delattr(MemoryStore, "_get")
        with pytest.raises(FormatError, match="too large"):
            await load_manifest(store)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["snapshot", "parent", "shards", "columns", "metadata"]),
                       st.recursive(st.none() | st.integers() | st.text(), st.lists)))  # fmt: skip
def test_any_json_gives_a_manifest_or_a_format_error(changes: dict[str, Any]) -> None:
    try:
        decode(with_body(lambda body: body.update(changes)))
    except StorageError as error:
        assert isinstance(error, FormatError)  # noqa: PT017
