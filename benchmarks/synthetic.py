"""A data set of which only the manifest is there: enough to open, plan, seek and resume, at any number of samples."""

from __future__ import annotations

import asyncio

import xxhash

from storage.shards.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES
from storage.shards.manifest import Manifest, ShardEntry, commit, encode, shard_key
from storage.stores import open_store

__all__ = ["synthetic_manifest", "write_manifest"]

_INDEX_BYTES = 24  # a sample's part of the tail: offset, digest, label
_TAIL_BYTES = 1024  # the rest of it, about


def synthetic_manifest(num_samples: int, sample_bytes: int, *, shard_bytes: int = CHUNK_BYTES) -> Manifest:
    """Describes shards as the writer would cut them; their digests are numbers that look like some.

    Args:
        num_samples: Of the data set.
        sample_bytes: Of each.
        shard_bytes: No shard is larger, unless a single sample is.
    """
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
