"""Writes samples into the parts of a dataset: its shards, and a shard of each column set at the same borders.

A dataset whose columns are all in its shards has one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import with_token
from concurrent_loader.storage.shards.manifest.manifest import ColumnPlace, ColumnSet, Manifest
from concurrent_loader.storage.shards.manifest.statistics import merge_statistics
from concurrent_loader.storage.shards.writing.batch_columns import EncodedBatch, encode_batch
from concurrent_loader.storage.shards.writing.shard_sizing import ShardSplitter, estimate_of
from concurrent_loader.storage.shards.writing.written_shards import WrittenShards
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["PartSplitter", "WrittenParts", "part_schemas"]

Places = Mapping[str, ColumnPlace]
Upload = Callable[[str, Buffer], None]


def part_schemas(schema: Schema, places: Places) -> list[Schema]:
    """Returns the columns of each part, under their names in the files.

    Args:
        schema: Columns of the dataset.
        places: Where each column is stored; empty if all are in the shards.
    """
    if not places:
        return [schema]
    return [
        Schema.parse({place.name: schema[name].type for name, place in places.items() if place.part == number})
        for number in range(1 + max(place.part for place in places.values()))
    ]


class PartSplitter:
    """Adds samples to one builder after another, in each part. The size of the dataset's shards decides the borders.

    Args:
        schema: Columns of every sample.
        places: Where each column is stored; empty if all are in the shards.
        shard_bytes: Upper bound of a finished shard of the dataset; the shards of column sets have no bound.
    """

    def __init__(self, schema: Schema, places: Places, *, shard_bytes: int) -> None:
        self._schema = schema
        schemas = part_schemas(schema, places)
        self._cutter = ShardSplitter(schemas[0], shard_bytes=shard_bytes)
        self._sets = [ShardBuilder(each) for each in schemas[1:]]
        self._names: list[dict[str, str]] = [{} for _ in schemas]  # name in the files → name of the column
        for name, place in places.items():
            self._names[place.part][place.name] = name

    def add(self, sample: Mapping[str, object]) -> list[ShardBuilder] | None:
        """Adds a sample; returns the previous shard of each part if the dataset's shard is full.

        Raises:
            SchemaError: The sample does not fit the columns; nothing has changed.
            ConfigurationError: A shard of a column set is full before that of the dataset. The splitter is unusable.
        """
        if not any(self._names):
            full = self._cutter.add(sample)
            return None if full is None else [full]
        self._schema.check_sample_keys(sample)
        for names in self._names[1:]:  # before anything changes: a rejected sample must change no part
            for name in names.values():
                self._schema[name].pieces(sample[name])
        values = [{stored: sample[name] for stored, name in names.items()} for names in self._names]
        full = self._cutter.add(values[0])
        done = None if full is None else [full, *self._sets]
        if done is not None:
            self._sets = [ShardBuilder(each.schema) for each in self._sets]
        try:
            for builder, each in zip(self._sets, values[1:], strict=True):
                builder.add(each)
        except SchemaError as error:
            raise _too_large(error) from error
        return done

    def encode(self, columns: Any) -> EncodedBatch:
        """Checks and encodes a batch; see `concurrent_loader.storage.shards.writing.batch_columns.encode_batch`."""
        return encode_batch(self._schema, columns, estimate_of)

    def extend(self, batch: EncodedBatch) -> Iterator[list[ShardBuilder]]:
        """Adds many samples; yields the shard of each part when the dataset's shard is full. Raises like `add`."""
        parts = [batch.select(names) for names in self._names] if any(self._names) else [batch]
        for rows, full in self._cutter.extend(parts[0]):
            try:
                for builder, part in zip(self._sets, parts[1:], strict=True):
                    builder.extend(part.fixed, part.values, part.nulls, rows)
            except SchemaError as error:
                raise _too_large(error) from error
            if full is not None:
                done, self._sets = [full, *self._sets], [ShardBuilder(each.schema) for each in self._sets]
                yield done

    def take_rest(self) -> list[ShardBuilder] | None:
        """Returns the open shard of each part if it has samples, and opens empty ones."""
        rest = self._cutter.take_rest()
        if rest is None:
            return None
        done, self._sets = self._sets, [ShardBuilder(each.schema) for each in self._sets]
        return [rest, *done]


def _too_large(error: SchemaError) -> ConfigurationError:
    return ConfigurationError(
        f"the added columns of one shard are too large: {error.what}; choose a smaller shard_size"
    )


class WrittenParts:
    """The finished shards of a writer, in each part.

    Args:
        schema: Columns of every sample.
        places: Where each column is stored; empty if all are in the shards.
    """

    def __init__(self, schema: Schema, places: Places) -> None:
        self._schema = schema
        self._places = dict(places)
        self._parts = [WrittenShards(each) for each in part_schemas(schema, places)]

    def add(self, builders: Sequence[ShardBuilder], upload: Upload) -> None:
        """Finishes a shard of each part and starts the uploads; see `WrittenShards.add`."""
        for part, builder in zip(self._parts, builders, strict=True):
            part.add(builder, upload)

    def flush(self, upload: Upload) -> None:
        """Starts the upload of the last, shorter bundles."""
        for part in self._parts:
            part.flush(upload)

    def manifest(
        self, parent: Manifest | None, *, append: bool, metadata: Mapping[str, Any], token: str | None
    ) -> Manifest:
        """Returns the manifest of the next snapshot; see `WrittenShards.manifest`."""
        if not self._places or parent is None:
            return self._parts[0].manifest(parent, append=append, metadata=metadata, token=token)
        made = [
            part.manifest(old, append=True, metadata={}, token=None)
            for part, old in zip(self._parts, parent.parts, strict=True)
        ]
        own = {
            name: made[place.part].statistics[place.name]
            for name, place in self._places.items()
            if place.name in made[place.part].statistics
        }
        return replace(
            made[0],
            schema=self._schema.to_dict(),
            places=self._places,
            column_sets=tuple(ColumnSet(shards=each.shards, bundles=each.bundles) for each in made[1:]),
            statistics=merge_statistics(parent.statistics, own),
            metadata=with_token({**parent.metadata, **metadata}, token, parent.snapshot + 1),
            parent=parent.digest,
        )
