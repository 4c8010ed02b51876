"""The places of virtual shards in a manifest: kept exactly, and refused if they are impossible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry, ShardTable
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRange, SourceRanges

FILE = SourceFile(url="s3://bucket/tars", key="a.tar", size=10_000, etag='"e"')
RANGE = SourceRange(file=FILE, start=512, end=8704, tail_key="tails/x.clt", tail_offset=77)


def entry(source: SourceRange | None = RANGE, *, tail_start: int = 32 + 8192) -> ShardEntry:
    return ShardEntry(
        key="shards/" + "0" * 32 + ".cls" if source is None else source.name,
        size=tail_start + 500,
        num_samples=3,
        tail_start=tail_start,
        digest="0" * 32,
        chunk_digests=(1,),
        payload_bytes=3000,
        source=source,
    )


def manifest(*entries: ShardEntry) -> Manifest:
    return Manifest(snapshot=1, schema={"image": "bytes", "label": "int64"}, shards=entries)


def test_it_is_kept():
    gz = replace(FILE, key="b.gz", transform="gz", etag=None)
    entries = (
        entry(),
        entry(None),
        entry(replace(RANGE, file=gz, start=0, end=10_000, tail_offset=0), tail_start=4096),
    )
    made = manifest(*entries)
    read = decode(encode(made))
    assert tuple(read.shards) == entries
    assert read == replace(made, shards=read.shards)
    assert encode(read) == encode(made)
    assert encode(made)[8] == 2
    assert read.table.ranges.is_virtual.tolist() == [True, False, True]
    assert read.shards[0].key == "a.tar[512:8704]"


def test_a_manifest_without_virtual_shards_keeps_its_version():
    assert encode(manifest(entry(None)))[8] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": -1, "end": 8191}, "impossible"),
        ({"start": 9000}, "impossible"),
        ({"start": 1809, "end": 10_001}, "impossible"),
        ({"end": 8000}, "impossible"),
        ({"tail_offset": -1}, "impossible"),
        ({"tail_key": "shards/x.clt"}, "must begin with tails/"),
        ({"tail_key": "tails/../x"}, "a key is invalid"),
        ({"file": replace(FILE, key="../x")}, "a key is invalid"),
        ({"file": replace(FILE, transform="exec")}, "unknown transform"),
        ({"file": replace(FILE, url="s3://KEY:hunter2@bucket/x")}, "URL of adopted data is invalid"),
        ({"file": replace(FILE, etag='"x"\r\nfoo: bar')}, "ETag of adopted data is invalid"),
        ({"file": replace(FILE, etag='"中"')}, "ETag of adopted data is invalid"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(FormatError, match=message) as caught:
        encode(manifest(entry(replace(RANGE, **change))))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 512, 8704, 0, 0], [0, 512, 8704, 0, 0]],
        [[1, 512, 8704, 0, 0]],
        [[-2, 512, 8704, 0, 0]],
        [[0, 512, 8704, 1, 0]],
        [[0, 512, 8704, -1, 0]],
        [],
    ],
)
def test_rows_must_fit(rows):
    ranges = SourceRanges([FILE], ["tails/x.clt"], np.array(rows, np.int64).reshape(-1, 5))
    table = ShardTable.joined([ShardTable.of([entry(None)])], ranges)
    with pytest.raises(FormatError, match=r"names an object that is not listed|needs a row"):
        encode(replace(manifest(), shards=table))


def test_a_large_shard_needs_its_chunks():
    large = replace(entry(), size=CHUNK_BYTES + 1)
    with pytest.raises(FormatError, match="one digest"):
        encode(manifest(large))
