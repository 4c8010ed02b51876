"""The immutable snapshot of a dataset: which shards, pinned by size and digest.

`concurrent_loader.storage.shards.manifest.manifest_file` turns a manifest into bytes and back;
`concurrent_loader.storage.shards.manifest.snapshots` writes it to the store and reads it from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import xxhash

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.manifest.column_sets import ColumnPlace, ColumnSet
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.manifest_body import FORMAT_VERSION, MAX_SNAPSHOT, encode_unchecked
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry, ShardTable, shard_key

__all__ = [
    "SAME_SAMPLES_AS",
    "BundleEntry",
    "ColumnPlace",
    "ColumnSet",
    "Manifest",
    "ShardEntry",
    "bundle_key",
    "manifest_key",
    "plain_metadata",
    "shard_key",
]

SAME_SAMPLES_AS = "same_samples_as"
"""Metadata key of a snapshot with the samples of another one: the digest of that one's manifest, and its own number.

Converted datasets have it, and snapshots in which only columns have changed.
"""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An immutable snapshot of a dataset.

    Attributes:
        snapshot: Number of the snapshot, from 1; each commit adds 1.
        schema: Column types by name, in the columns' order.
        shards: Shards in the order of the samples, as a `ShardTable` if read from a file.
        bundles: Bundles by first sample; they do not overlap, and need not cover every sample.
        statistics: Statistics by column name; see `concurrent_loader.storage.shards.manifest.statistics`.
        metadata: JSON metadata; importers store class names under ``classes``.
        parent: Digest of the previous snapshot's manifest; None for snapshot 1.
        deleted: Rows of the shards that are not in the snapshot; None if there are none.
        format_version: Version of the file format.
        column_sets: Shards of columns that were added later.
        places: Where each column is stored, by its name; empty if all are in the shards, under their own names.

    Example:
        >>> from concurrent_loader import ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     dataset.manifest.snapshot, dataset.manifest.num_samples
        (1, 20)
    """

    snapshot: int
    schema: dict[str, str]
    shards: tuple[ShardEntry, ...] | ShardTable = ()
    bundles: tuple[BundleEntry, ...] = ()
    statistics: dict[str, dict[str, int | float | None]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    deleted: DeletedRows | None = None
    format_version: int = FORMAT_VERSION
    column_sets: tuple[ColumnSet, ...] = ()
    places: dict[str, ColumnPlace] = field(default_factory=dict)

    @cached_property
    def table(self) -> ShardTable:
        """All shards as a table, which gives each field as an array.

        Raises:
            FormatError: A digest is invalid, or a number exceeds 64 bits.
        """
        return ShardTable.of(self.shards)

    @cached_property
    def num_samples(self) -> int:
        """Number of samples: of all stored rows, those that are not deleted. A reader sees samples 0 to this."""
        return self.num_stored_samples - (0 if self.deleted is None else len(self.deleted))

    @cached_property
    def num_stored_samples(self) -> int:
        """Number of rows in all shards, deleted ones included. Bundles count these."""
        return int(self.table.num_samples.sum())

    @cached_property
    def num_bytes(self) -> int:
        """Size of all shards in bytes, without column sets, and without bundles, which repeat values of the shards."""
        return int(self.table.sizes.sum())

    @cached_property
    def parts(self) -> tuple[Manifest, ...]:
        """The shards, then each column set, as snapshots of the columns in them, under the names in the files.

        A snapshot whose columns are all in its shards is its own and only part.
        """
        if not self.places:
            return (self,)
        stored = [(self.shards, self.bundles), *((each.shards, each.bundles) for each in self.column_sets)]
        return tuple(
            replace(
                self,
                schema={place.name: self.schema[name] for name, place in self.places.items() if place.part == number},
                shards=shards, bundles=bundles, statistics={}, column_sets=(), places={},
            )
            for number, (shards, bundles) in enumerate(stored)
        )  # fmt: skip

    def place_of(self, column: str) -> ColumnPlace:
        """Returns where a column is stored."""
        return self.places.get(column) or ColumnPlace(0, column)

    def referenced_keys(self) -> Iterator[str]:
        """Yields the key of every object in the dataset's folder that this snapshot needs, but its own manifest.

        A key may occur more than once. Objects of adopted data are not in the folder.
        """
        for table in (self.table, *(each.table for each in self.column_sets)):
            ranges = table.ranges
            if ranges is None:
                yield from table.keys
            else:
                yield from (key for key, virtual in zip(table.keys, ranges.is_virtual, strict=True) if not virtual)
                yield from ranges.tail_keys
        for bundles in (self.bundles, *(each.bundles for each in self.column_sets)):
            yield from (bundle.key for bundle in bundles)

    @cached_property
    def digest(self) -> str:
        """xxh3_128 of the manifest's file, as 32 hex digits."""
        return xxhash.xxh3_128_hexdigest(encode_unchecked(self))

    @property
    def samples_digest(self) -> str:
        """Digest of the first snapshot that has the same samples in the same order: this one's, or an earlier one's."""
        same = self.metadata.get(SAME_SAMPLES_AS)
        # Metadata is inherited by later snapshots, which have other samples.
        if isinstance(same, dict) and same.get("snapshot") == self.snapshot and _is_digest(same.get("digest")):
            digest: str = same["digest"]
            return digest
        return self.digest

    @property
    def fingerprint(self) -> int:
        """63 bits that identify the samples and their order in loader states.

        They are those of the digest. A snapshot that was converted from another one, or that has other columns of the
        same samples, has the other one's.
        """
        return int(self.samples_digest[:16], 16) >> 1


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def bundle_key(digest: str) -> str:
    """Returns the key of a bundle of FIXED columns."""
    return f"columns/{digest}.cls"


def manifest_key(snapshot: int) -> str:
    """Returns the key of a snapshot's manifest.

    Raises:
        ConfigurationError: The number is not that of a snapshot.
    """
    if isinstance(snapshot, bool) or not isinstance(snapshot, int) or not 1 <= snapshot <= MAX_SNAPSHOT:
        raise ConfigurationError("a snapshot must be an integer of at least 1", got=snapshot)
    return f"manifests/{snapshot:010d}.clm"


def plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as it will be read back: tuples become lists, keys become strings.

    Raises:
        ConfigurationError: The metadata is not JSON, or holds NaN, infinities or lone surrogates.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        kept = msgspec.json.decode(msgspec.json.encode(plain))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"metadata must be JSON: {error}") from error
    if kept != plain:
        raise ConfigurationError("the metadata has a number that JSON parsers do not keep exactly")
    return plain
