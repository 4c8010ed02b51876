"""Deleted rows: as a set of numbers, as bytes, and in a manifest from a stranger."""

from __future__ import annotations

import base64
import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import BundleEntry, Manifest, ShardEntry, bundle_key, shard_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode

GOLDEN = Path(__file__).parents[1] / "golden" / "manifest_v3_deleted_rows.clm"
HEADER_BYTES = 32


def a_manifest(*num_samples: int, deleted: DeletedRows | None = None) -> Manifest:
    shards = []
    for number, count in enumerate(num_samples):
        digest = xxhash.xxh3_128_hexdigest(b"%d" % number)
        shards.append(
            ShardEntry(
                key=shard_key(digest), size=4096, num_samples=count, tail_start=1024, digest=digest,
                chunk_digests=(number,), payload_bytes=900,
            )
        )  # fmt: skip
    digest = xxhash.xxh3_128_hexdigest(b"bundle")
    bundle = BundleEntry(
        key=bundle_key(digest), size=1024, tail_start=32, digest=digest, chunk_digests=(7,), first_sample=0,
        num_samples=sum(num_samples),
    )  # fmt: skip
    return Manifest(
        snapshot=2, schema={"image": "jpeg", "label": "int64"}, shards=tuple(shards), bundles=(bundle,),
        parent="0123456789abcdef" * 2, deleted=deleted,
    )  # fmt: skip


def reframed(body: dict[str, Any], version: int = 3) -> bytes:
    text = json.dumps(body).encode()
    return struct.pack("<8sIIQQ", b"CLMANIF\n", version, 0, len(text), xxhash.xxh3_64_intdigest(text)) + text


rows = st.sets(st.integers(0, 40), min_size=1, max_size=40)


class TestAgainstASet:
    @given(rows)
    def test_numbers_of_samples_and_rows(self, deleted: set[int]) -> None:
        runs = DeletedRows.of(np.array(sorted(deleted)))
        live = [row for row in range(60) if row not in deleted]
        assert len(runs) == len(deleted)
        assert runs.stored(np.arange(len(live))).tolist() == live
        assert runs.contains(np.arange(60)).tolist() == [row in deleted for row in range(60)]
        assert runs.num_live_before(np.arange(60)).tolist() == [sum(each < row for each in live) for row in range(60)]
        assert runs.live_rows(7, 31).tolist() == [row for row in live if 7 <= row < 31]

    @given(rows, rows)
    def test_union(self, first: set[int], second: set[int]) -> None:
        one, two = (DeletedRows.of(np.array(list(each))) for each in (first, second))
        assert one.union(two) == two.union(one) == DeletedRows.of(np.array(sorted(first | second)))
        assert one.union(None) is one

    @given(st.sets(st.integers(0, 2**52), min_size=1, max_size=30))
    def test_round_trip(self, deleted: set[int]) -> None:
        runs = DeletedRows.of(np.array(sorted(deleted)))
        assert DeletedRows.frombytes(runs.tobytes()) == runs

    @given(st.lists(st.integers(0, 9), max_size=6), st.data())
    def test_places_in_shards(self, counts: list[int], data: st.DataObject) -> None:
        total = sum(counts)
        deleted = data.draw(st.sets(st.integers(0, max(0, total - 1)), max_size=total))
        runs = DeletedRows.of(np.array(sorted(deleted))) if deleted else None
        live = LiveRows(a_manifest(*counts, deleted=runs))
        model = [(shard, row) for shard, count in enumerate(counts) for row in range(count)]
        model = [place for number, place in enumerate(model) if number not in deleted]
        assert len(live) == len(model)
        assert live.all_live == (not deleted)
        for sample, (shard, row) in enumerate(model):
            assert live.rows(shard, sample) == row
            assert live.sample(shard, row) == sample
            assert live.first_samples[shard] <= sample < live.first_samples[shard + 1]
        for shard in range(len(counts)):
            assert live.rows_of_shard(shard).tolist() == [row for at, row in model if at == shard]


class TestBytes:
    @pytest.mark.slow
    def test_size_of_ten_million_samples(self) -> None:
        """About two bytes a deleted row when few rows are deleted at random, one when half are, none for a run."""
        random = np.random.default_rng(0).random(10**6)
        for share, most in ((0.01, 2.3), (0.5, 1.01)):
            runs = DeletedRows.of(np.flatnonzero(random < share))
            assert len(runs.tobytes()) < most * len(runs)
        assert len(DeletedRows.of(np.arange(10, 10**6)).tobytes()) == 4

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\1",  # no pair
            b"\1\2\3",
            b"\1\0",  # a run without rows
            b"\1\2\0\1",  # runs that touch: the same rows could be written in two ways
            b"\1\x80",  # cut off
            b"\x80\0\1",  # longer than necessary
            b"\x81\0\1",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\1\1",  # nine digits
            b"\xff\xff\xff\xff\xff\xff\xff\x7f\1",  # a number above 2**53
            b"\0" + b"\xff\xff\xff\xff\xff\xff\xff\x0f" * 3,  # a sum above 2**53
        ],
    )
    def test_hostile(self, data: bytes) -> None:
        with pytest.raises(FormatError):
            DeletedRows.frombytes(data)

    @given(st.binary(max_size=40))
    def test_garbage_is_refused_or_canonical(self, data: bytes) -> None:
        try:
            runs = DeletedRows.frombytes(data)
        except FormatError:
            return
        assert runs.tobytes() == data

    def test_a_huge_run_takes_no_memory(self) -> None:
        runs = DeletedRows.frombytes(b"\1\xff\xff\xff\xff\xff\xff\x7f")
        assert len(runs) == 2**49 - 1
        assert runs.stored([0, 1]).tolist() == [0, 2**49]


class TestManifest:
    def test_counts(self) -> None:
        manifest = a_manifest(10, 7, deleted=DeletedRows.of(np.array([0, 11, 12])))
        assert (manifest.num_samples, manifest.num_stored_samples, manifest.num_bytes) == (14, 17, 8192)
        assert manifest.digest != a_manifest(10, 7).digest

    def test_golden(self) -> None:
        manifest = a_manifest(10, 7, deleted=DeletedRows.of(np.array([0, 3, 4, 11, 12, 16])))
        if os.environ.get("WRITE_GOLDEN"):
            GOLDEN.write_bytes(encode(manifest))
        assert encode(manifest) == GOLDEN.read_bytes()
        assert decode(GOLDEN.read_bytes()) == manifest

    def test_the_golden_file_is_what_the_specification_says(self) -> None:
        data = GOLDEN.read_bytes()
        body = json.loads(data[HEADER_BYTES:])
        assert data[8] == 3
        assert body["requires"] == ["deleted-rows"]
        assert list(body)[-2:] == ["deleted_rows", "requires"]
        assert base64.b64decode(body["deleted_rows"]) == bytes([0, 1, 2, 2, 6, 2, 3, 1])
        assert body["num_samples"] == 17 - 6

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"deleted_rows": None}, "requires"),
            ({"deleted_rows": ""}, "pairs"),
            ({"deleted_rows": "no base64"}, "format"),
            ({"deleted_rows": [0]}, "format"),
            ({"deleted_rows": base64.b64encode(bytes([16, 2])).decode()}, "does not exist"),
            ({"deleted_rows": base64.b64encode(bytes([0, 5])).decode()}, "num_samples"),
            ({"num_samples": 17}, "num_samples"),
            ({"requires": []}, "format"),
            ({"requires": ["deleted-rows", "deleted-rows"]}, "requires"),
        ],
    )
    def test_hostile(self, change: dict[str, Any], message: str) -> None:
        body = json.loads(GOLDEN.read_bytes()[HEADER_BYTES:])
        assert decode(reframed(body)).num_samples == 11
        with pytest.raises(FormatError, match=message):
            decode(reframed({**body, **change}))

    def test_an_older_version_has_no_deleted_rows(self) -> None:
        body = json.loads(GOLDEN.read_bytes()[HEADER_BYTES:])
        del body["requires"]
        with pytest.raises(FormatError, match="requires"):
            decode(reframed(body, version=1))

    def test_bundles_count_stored_rows(self) -> None:
        manifest = a_manifest(10, 7, deleted=DeletedRows.of(np.arange(9)))
        assert decode(encode(manifest)).bundles[0].num_samples == 17
        with pytest.raises(FormatError, match="beyond the last sample"):
            encode(replace(manifest, bundles=(replace(manifest.bundles[0], num_samples=18),)))
