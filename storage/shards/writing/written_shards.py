"""Records the shards, bundles and statistics of one writer, and makes the manifest from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import with_token
from concurrent_loader.storage.shards.manifest.manifest import BundleEntry, Manifest, ShardEntry, bundle_key, shard_key
from concurrent_loader.storage.shards.manifest.statistics import (
    Statistics,
    fixed_facts,
    merge_statistics,
    payload_facts,
)
from concurrent_loader.storage.shards.writing.column_bundles import BundleBuilder
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "DoneShard",
    "WrittenShards",
    "check_append",
    "check_same_columns",
    "finish_part",
    "finish_shard",
    "shard_entry",
    "shard_statistics",
]

Upload = Callable[[str, Buffer], None]

_CHANGED = "columns of this dataset were added, renamed or dropped; append with ShardWriter"


@dataclass(frozen=True, slots=True)
class DoneShard:
    """A shard whose tail is in the dataset.

    Attributes:
        entry: Entry for the manifest.
        fixed: FIXED columns, as arrays (n, *shape).
        statistics: Statistics of its columns.
    """

    entry: ShardEntry
    fixed: dict[str, npt.NDArray[Any]]
    statistics: Statistics


class WrittenShards:
    """The shards that a writer has finished.

    Args:
        schema: Columns of every sample.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._bundler = BundleBuilder(schema)
        self._shards: list[ShardEntry] = []
        self._bundles: list[BundleEntry] = []  # first_sample counts this writer's samples
        self._statistics: Statistics = {column.name: {"num_null": 0} for column in schema if column.optional}

    def add(self, builder: ShardBuilder, upload: Upload) -> None:
        """Finishes a shard, starts its upload, and starts uploads of the bundles that it completes."""
        done = finish_shard(builder, upload)
        self.add_entry(done.entry, done.fixed, done.statistics, upload)

    def add_entry(
        self, entry: ShardEntry, fixed: Mapping[str, np.ndarray[Any, Any]], statistics: Statistics, upload: Upload
    ) -> None:
        """Adds a shard that is in its place already, and starts uploads of the bundles that it completes.

        Args:
            entry: Entry of the shard.
            fixed: Values of its FIXED columns, as arrays (n, *shape).
            statistics: Statistics of its columns.
            upload: Function that starts an upload.
        """
        self._shards.append(entry)
        self._statistics = merge_statistics(self._statistics, statistics)
        for bundle in self._bundler.add(fixed, entry.num_samples):
            self._add_bundle(bundle, upload)

    def flush(self, upload: Upload) -> None:
        """Starts the upload of the last, shorter bundle."""
        for bundle in self._bundler.flush():
            self._add_bundle(bundle, upload)

    def manifest(
        self, parent: Manifest | None, *, append: bool, metadata: Mapping[str, Any], token: str | None
    ) -> Manifest:
        """Returns the manifest of the next snapshot.

        Args:
            parent: Newest snapshot, or None.
            append: Whether the snapshot keeps the parent's samples.
            metadata: Metadata of the writer, which replaces the parent's keys.
            token: Name of the commit, or None.

        Raises:
            SchemaError: Columns of the parent to append to are not in its shards.
        """
        base = parent if append else None
        if base is not None and base.places:
            raise SchemaError(_CHANGED)
        first = base.num_stored_samples if base else 0
        bundles = (replace(entry, first_sample=first + entry.first_sample) for entry in self._bundles)
        snapshot = parent.snapshot + 1 if parent else 1
        return Manifest(
            snapshot=snapshot,
            schema=self._schema.to_dict(),
            shards=(*(base.shards if base else ()), *self._shards),
            bundles=(*(base.bundles if base else ()), *bundles),
            statistics=merge_statistics(base.statistics if base else {}, self._statistics),
            metadata=with_token({**(base.metadata if base else {}), **metadata}, token, snapshot),
            parent=parent.digest if parent else None,
            deleted=base.deleted if base else None,
        )

    def _add_bundle(self, bundle: FinishedShard, upload: Upload) -> None:
        first = self._bundles[-1].first_sample + self._bundles[-1].num_samples if self._bundles else 0
        entry = BundleEntry(
            key=bundle_key(bundle.digest),
            size=bundle.size,
            tail_start=bundle.tail_start,
            digest=bundle.digest,
            chunk_digests=bundle.chunk_digests,
            first_sample=first,
            num_samples=bundle.num_samples,
        )
        self._bundles.append(entry)
        upload(entry.key, bundle.data)


def finish_part(builder: ShardBuilder) -> tuple[DoneShard, memoryview]:
    """Finishes a shard; returns the facts about it, and its bytes."""
    shard = builder.finish()
    entry = shard_entry(shard)
    # Parsed as a reader would, so that an unreadable shard is never committed.
    tail = shard.data[entry.tail_start :]
    index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
    fixed = {column.name: builder.fixed_values(column.name) for column in builder.schema.fixed}
    return DoneShard(entry, fixed, shard_statistics(index)), shard.data


def finish_shard(builder: ShardBuilder, upload: Upload) -> DoneShard:
    """Finishes a shard, and starts its upload."""
    done, data = finish_part(builder)
    upload(done.entry.key, data)
    return done


def shard_entry(shard: FinishedShard) -> ShardEntry:
    """Returns the manifest's entry of a finished shard."""
    return ShardEntry(
        key=shard_key(shard.digest),
        size=shard.size,
        num_samples=shard.num_samples,
        tail_start=shard.tail_start,
        digest=shard.digest,
        chunk_digests=shard.chunk_digests,
        payload_bytes=shard.payload_bytes,
    )


def shard_statistics(index: ShardIndex) -> Statistics:
    """Returns the statistics of the columns of one shard."""
    facts = {column.name: fixed_facts(np.asanyarray(index.column(column.name))) for column in index.schema.fixed}
    for column in index.schema.payload:
        lengths = index.payload_ends(column.name) - index.payload_starts(column.name)
        valid = index.valid(column.name)
        facts[column.name] = payload_facts(lengths if valid is None else lengths[valid])
    for column in index.schema:
        if (valid := index.valid(column.name)) is not None:
            facts.setdefault(column.name, {})["num_null"] = int(np.count_nonzero(~valid))
    return facts


def check_append(parent: Manifest, schema: Schema, url: str) -> None:
    """Checks that shards with these columns can be added to a snapshot.

    Raises:
        SchemaError: The snapshot has other columns, or they were added, renamed or dropped.
    """
    if parent.places:
        raise SchemaError(_CHANGED, url=url)
    check_same_columns(parent, schema, url)


def check_same_columns(parent: Manifest, schema: Schema, url: str) -> None:
    """Checks that a snapshot has these columns, in this order.

    Raises:
        SchemaError: It has others.
    """
    if list(parent.schema.items()) != list(schema.to_dict().items()):
        raise SchemaError(
            "the columns differ from those of the dataset to append to", url=url,
            expected=parent.schema, got=schema.to_dict(),
        )  # fmt: skip
