"""What must hold in a manifest beyond the types of its fields: checked when it is written and whenever one is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import ConfigurationError, FormatError, SchemaError
from storage.shards.columns import Schema
from storage.shards.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES
from storage.stores.protocol import check_key

if TYPE_CHECKING:
    from storage.shards.manifest import BundleEntry, Manifest, ShardEntry

__all__ = ["check_manifest"]


def check_manifest(manifest: Manifest, *, url: str | None = None) -> None:
    """Checks keys, sizes, counts and the order of bundles.

    Raises:
        FormatError: Something contradicts itself.
    """
    try:
        canonical = Schema.parse(manifest.schema).to_dict()
    except SchemaError as error:
        raise FormatError(f"the manifest's columns cannot be: {error}", url=url) from error
    if canonical != manifest.schema:
        raise FormatError(
            "a column's type is not in its canonical form", url=url, expected=canonical, got=manifest.schema
        )
    if (manifest.snapshot == 1) != (manifest.parent is None):
        raise FormatError("snapshot 1 has no parent, every other has one", url=url, got=manifest.snapshot)
    unknown = manifest.statistics.keys() - manifest.schema.keys()
    if unknown:
        raise FormatError("statistics of a column that is not there", url=url, column=min(unknown))
    for shard in manifest.shards:
        _check_file(shard, "shards/", url)
        if shard.payload_bytes > shard.tail_start - HEADER_BYTES:
            raise FormatError("payload_bytes do not fit in front of the tail", url=url, shard=shard.key)
    covered = 0
    for bundle in manifest.bundles:
        _check_file(bundle, "columns/", url)
        if bundle.first_sample < covered:
            raise FormatError(
                "bundles overlap or are out of order", url=url, shard=bundle.key, sample=bundle.first_sample
            )
        if not bundle.num_samples:
            raise FormatError("a bundle of no samples", url=url, shard=bundle.key)
        covered = bundle.first_sample + bundle.num_samples
    if covered > manifest.num_samples:
        raise FormatError("a bundle goes beyond the last sample", url=url, expected=manifest.num_samples, got=covered)


def _check_file(entry: ShardEntry | BundleEntry, folder: str, url: str | None) -> None:
    try:
        check_key(entry.key)
    except ConfigurationError as error:
        raise FormatError(f"a key that no store holds: {error.what}", url=url, shard=entry.key) from error
    if not entry.key.startswith(folder):
        raise FormatError(f"a key outside {folder}", url=url, shard=entry.key)
    if not HEADER_BYTES <= entry.tail_start <= entry.size - FOOTER_BYTES:
        raise FormatError("tail_start does not lie in the file", url=url, shard=entry.key, got=entry.tail_start)
    if entry.num_samples > entry.size:  # every sample has a byte at least; so nobody allocates for what cannot be
        raise FormatError(
            "more samples than bytes", url=url, shard=entry.key, expected=entry.size, got=entry.num_samples
        )
    num_chunks = -(-entry.size // CHUNK_BYTES)
    if len(entry.chunk_digests) != num_chunks:
        raise FormatError(
            "one digest a chunk is needed", url=url, shard=entry.key, expected=num_chunks, got=len(entry.chunk_digests)
        )
