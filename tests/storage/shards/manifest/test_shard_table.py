from __future__ import annotations

import json
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.manifest import manifest_body
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry, ShardTable, shard_key

CHUNK_BYTES = 8 << 20
HEADER_BYTES = 32


def reframed(body: bytes) -> bytes:
    """Puts a body under a header that fits it."""
    return struct.pack("<8sIIQQ", b"CLMANIF\n", 1, 0, len(body), xxhash.xxh3_64_intdigest(body)) + body


def an_entry(number: int, *, num_chunks: int = 1, key: str | None = None) -> ShardEntry:
    digest = xxhash.xxh3_128_hexdigest(str(number).encode())
    size = num_chunks * CHUNK_BYTES - number
    return ShardEntry(
        key=shard_key(digest) if key is None else key,
        size=size,
        num_samples=number,
        tail_start=size - 1024 - number,
        digest=digest,
        chunk_digests=tuple(2**64 - 1 - number - chunk for chunk in range(num_chunks)),
        payload_bytes=size - 2048 - number,
    )


names = st.text(st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=20)
entries = st.builds(
    an_entry,
    st.integers(0, 1000),
    num_chunks=st.integers(1, 3),
    key=st.none() | names.filter(lambda name: name not in (".", "..")).map(lambda name: f"shards/{name}"),
)
rows = st.lists(entries, max_size=20).map(tuple)


@given(rows, rows)
def test_a_table_is_the_row_of_its_entries(first: tuple[ShardEntry, ...], second: tuple[ShardEntry, ...]) -> None:
    table = ShardTable.of(first)
    assert table == first
    assert tuple(table) == first
    assert table == ShardTable.of(first)
    assert (table == ShardTable.of(second)) == (first == second)
    assert [table[at] for at in range(-len(first), len(first))] == [*first, *first]
    assert table[1:-1] == first[1:-1]
    assert table.keys == [entry.key for entry in first]
    assert table.digests == [entry.digest for entry in first]
    assert table.sizes.tolist() == [entry.size for entry in first]
    assert table.num_chunks.tolist() == [len(entry.chunk_digests) for entry in first]
    assert ShardTable.joined([table, ShardTable.of(second)]) == first + second
    assert ShardTable.joined([]) == ()
    assert pickle.loads(pickle.dumps(table)) == table


@given(rows, st.integers(16, 4096))
def test_a_manifest_read_in_pieces(row: tuple[ShardEntry, ...], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_body, "_PIECE_BYTES", piece_bytes)
        manifest = Manifest(snapshot=1, schema={"x": "int8"}, shards=row)
        assert decode(encode(manifest)) == manifest
        body = json.loads(encode(manifest)[HEADER_BYTES:])
        assert decode(reframed(json.dumps(body, indent=1).encode())) == manifest  # as another writer may put it


def test_a_key_that_looks_like_the_border_of_two_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_body, "_PIECE_BYTES", 16)
    row = tuple(an_entry(number, key='shards/},{"key":"x"},{') for number in range(3))
    manifest = Manifest(snapshot=1, schema={"x": "int8"}, shards=row)
    assert decode(encode(manifest)).shards == row


@pytest.mark.parametrize(
    "text", ["{}", "null", "1", '"},{"', '[{"key":"shards/x"}]', "[null]", "[1,{},{}]", '{"x":[{},{}]}', "[[],{},{}]"]
)
@pytest.mark.parametrize("piece_bytes", [4, 1024])
def test_no_list_of_shards(text: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_body, "_PIECE_BYTES", piece_bytes)
    empty = encode(Manifest(snapshot=1, schema={"x": "int8"}))[HEADER_BYTES:]
    with pytest.raises(FormatError):
        decode(reframed(empty.replace(b'"shards":[]', f'"shards":{text}'.encode())))


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 31},
        {"digest": "0" * 31 + "G"},
        {"digest": "A" * 32},
        {"digest": "0" * 31 + "é"},
        {"digest": "0" * 31 + " "},
        {"size": 2**63},
        {"chunk_digests": (2**64,)},
    ],
)
def test_what_is_no_digest_or_no_number(change: dict[str, object]) -> None:
    row = (an_entry(1), replace(an_entry(2), **change))  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        ShardTable.of(row)
    with pytest.raises(FormatError):
        encode(Manifest(snapshot=1, schema={"x": "int8"}, shards=row))


@pytest.mark.parametrize("digests", [["0" * 31, "0" * 33], ["0" * 32, "A" * 32]])
def test_digests_are_checked_one_by_one(digests: list[str]) -> None:
    manifest = Manifest(snapshot=1, schema={"x": "int8"}, shards=(an_entry(1), an_entry(2)))
    body = json.loads(encode(manifest)[HEADER_BYTES:])
    for entry, digest in zip(body["shards"], digests, strict=True):
        entry.update(digest=digest, key=shard_key(digest))
    with pytest.raises(FormatError):
        decode(reframed(json.dumps(body).encode()))


def test_the_first_bad_shard_is_named() -> None:
    row = (an_entry(1), replace(an_entry(2), num_samples=10**9), replace(an_entry(3), num_samples=10**9))
    with pytest.raises(FormatError, match="more samples than fit") as caught:
        encode(Manifest(snapshot=1, schema={"x": "int8"}, shards=row))
    assert (caught.value.shard, caught.value.got) == (row[1].key, 10**9)


def test_columns_cannot_be_changed() -> None:
    table = ShardTable.of((an_entry(1),))
    for column in (table.sizes, table.num_samples, table.tail_starts, table.payload_bytes, table.num_chunks):
        assert column.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_no_entry_beyond_the_ends() -> None:
    table = ShardTable.of((an_entry(1),))
    for at in (1, -2):
        with pytest.raises(IndexError):
            table[at]
    assert "1 shards" in repr(table)
