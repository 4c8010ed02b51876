"""Datasets made up: of noise, or with nothing behind the manifest: enough to open, plan, seek and resume."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import lru_cache

import xxhash

from concurrent_loader import ShardDataset, ShardWriter, open_store
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry, shard_key
from concurrent_loader.storage.shards.manifest.manifest_file import encode
from concurrent_loader.storage.shards.manifest.snapshots import commit

_NOISE_STEP = 4096
_INDEX_BYTES = 24  # a sample's part of the tail: offset, digest, label
_TAIL_BYTES = 1024  # the rest of it, about


def noise(number: int, num_bytes: int) -> bytes:
    """Bytes that no codec makes smaller; neighbours' differ."""
    start = number % _NOISE_STEP
    return _noise(num_bytes + _NOISE_STEP)[start : start + num_bytes]


def write_noise(
    url: str,
    *,
    num_samples: int,
    sample_bytes: int,
    shard_bytes: int = CHUNK_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> Manifest:
    """Really writes noise in ``data``, with its ``number``; returns the manifest."""
    options = dict(storage_options or {})
    columns = {"data": "bytes", "number": "int64"}
    with ShardWriter(url, columns=columns, shard_size=shard_bytes, storage_options=options) as writer:
        for number in range(num_samples):
            writer.write({"data": noise(number, sample_bytes), "number": number})
    with ShardDataset(url, storage_options=options) as dataset:
        return dataset.manifest


def synthetic_manifest(num_samples: int, sample_bytes: int, *, shard_bytes: int = CHUNK_BYTES) -> Manifest:
    """Describes shards as the writer would cut them; their digests are numbers that look like some."""
    room_bytes = shard_bytes - HEADER_BYTES - FOOTER_BYTES - _TAIL_BYTES
    per_shard = max(1, room_bytes // (sample_bytes + _INDEX_BYTES))
    firsts = range(0, num_samples, per_shard)
    shards = tuple(
        _shard(number, min(per_shard, num_samples - first), sample_bytes) for number, first in enumerate(firsts)
    )
    return Manifest(snapshot=1, schema={"data": "bytes", "number": "int64"}, shards=shards)


def write_manifest(url: str, manifest: Manifest) -> int:
    """Commits a manifest as a writer would; returns its size in bytes."""

    async def write() -> None:
        async with open_store(url) as store:
            await commit(store, manifest)

    asyncio.run(write())
    return len(encode(manifest))


@lru_cache(maxsize=1)
def _noise(num_bytes: int) -> bytes:
    return random.Random(0).randbytes(num_bytes)


def _shard(number: int, num_samples: int, sample_bytes: int) -> ShardEntry:
    digest = xxhash.xxh3_128_hexdigest(number.to_bytes(8, "little"))
    payload_bytes = num_samples * sample_bytes
    tail_start = HEADER_BYTES + payload_bytes
    size = tail_start + num_samples * _INDEX_BYTES + _TAIL_BYTES + FOOTER_BYTES
    return ShardEntry(
        key=shard_key(digest),
        size=size,
        num_samples=num_samples,
        tail_start=tail_start,
        digest=digest,
        chunk_digests=tuple(
            xxhash.xxh3_64_intdigest(f"{digest}{chunk}".encode()) for chunk in range(-(-size // CHUNK_BYTES))
        ),
        payload_bytes=payload_bytes,
    )
