"""Turns a manifest into its file and back, and checks every rule of the format on the way."""

from __future__ import annotations

import msgspec
import xxhash

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.manifest.checks import check_manifest
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.manifest import ColumnPlace, Manifest
from concurrent_loader.storage.shards.manifest.manifest_body import (
    MAX_MANIFEST_BYTES,
    bundle_entry,
    decode_body,
    encode_unchecked,
    parse_column_sets,
    parse_shards,
    parse_sources,
    required_features,
)
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["MAX_MANIFEST_BYTES", "decode", "encode"]


def encode(manifest: Manifest) -> bytes:
    """Returns the manifest's file; equal manifests give equal bytes.

    Raises:
        FormatError: The manifest contradicts itself, or its file would be larger than 256 MiB (use larger shards).
    """
    check_manifest(manifest)
    return encode_unchecked(manifest)


def decode(data: Buffer, *, url: str | None = None) -> Manifest:
    """Parses a manifest's file; nothing in it is trusted.

    Args:
        data: Bytes of the file.
        url: Address of the file, for error messages.

    Raises:
        FormatError: The bytes are no manifest, are damaged, are of a later version, or contradict themselves.
    """
    try:
        parsed = decode_body(data, url=url)
        shards = parse_shards(memoryview(parsed.shards), parse_sources(parsed.sources))
        deleted = None if parsed.deleted_rows is None else DeletedRows.frombytes(parsed.deleted_rows)
        column_sets = parse_column_sets(parsed.column_sets)
    except FormatError as error:
        error.locate(url=url)
        raise
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"the manifest's body does not follow the format: {error}", url=url) from error
    schema = {column.name: column.type for column in parsed.columns}
    if len(schema) != len(parsed.columns):
        raise FormatError("the manifest names a column twice", url=url)
    if parsed.places and len(parsed.places) != len(schema):
        raise FormatError("each column needs one place", url=url, expected=len(schema), got=len(parsed.places))
    places = [ColumnPlace(each.part, each.name) for each in parsed.places]
    manifest = Manifest(
        snapshot=parsed.snapshot,
        schema=schema,
        shards=shards,
        bundles=tuple(bundle_entry(body) for body in parsed.bundles),
        statistics=parsed.statistics,
        metadata=parsed.metadata,
        parent=parsed.parent,
        deleted=deleted,
        column_sets=column_sets,
        places=dict(zip(schema, places, strict=False)),
    )
    check_manifest(manifest, url=url)
    needed = required_features(manifest)
    if parsed.requires != needed:
        raise FormatError(
            "requires does not list what the manifest needs", url=url, expected=needed, got=parsed.requires
        )
    for name in ("num_samples", "num_bytes"):
        if getattr(parsed, name) != getattr(manifest, name):
            raise FormatError(
                f"{name} is not the sum over the shards, without deleted rows", url=url,
                expected=getattr(manifest, name), got=getattr(parsed, name),
            )  # fmt: skip
    # The digest is that of the bytes read: another writer may encode the same manifest as other JSON.
    manifest.__dict__["digest"] = xxhash.xxh3_128_hexdigest(data)
    return manifest
