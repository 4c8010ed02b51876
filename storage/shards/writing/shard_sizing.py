"""Cuts a stream of samples into shards of bounded size. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.schema import Column, Schema
from concurrent_loader.storage.shards.writing.batch_columns import EncodedBatch, Sizes
from concurrent_loader.storage.sizes import Size, parse_size

__all__ = ["ShardSplitter", "estimate_of", "parse_shard_size"]

_MIN_SHARD_BYTES = 4 << 10
_MAX_SHARD_BYTES = 1 << 30
_BYTES = (bytes, bytearray)
_ARRAY_HEADER_BYTES = 272  # upper bound of the bytes before a ragged array's values


def parse_shard_size(shard_size: Size) -> int:
    """Returns the upper bound of a shard in bytes.

    Raises:
        ConfigurationError: The size is invalid, or not 4 KiB to 1 GiB.
    """
    shard_bytes = parse_size(shard_size, name="shard_size")
    if not _MIN_SHARD_BYTES <= shard_bytes <= _MAX_SHARD_BYTES:
        raise ConfigurationError("shard_size must be 4 KiB to 1 GiB", got=shard_size)
    return shard_bytes


class ShardSplitter:
    """Adds samples to one builder after another.

    The cuts depend only on the samples, so the same samples give the same shards.

    Args:
        schema: Columns of every sample.
        shard_bytes: Upper bound of a finished shard; a shard with a single sample may exceed it.
    """

    def __init__(self, schema: Schema, *, shard_bytes: int) -> None:
        self._schema = schema
        self._shard_bytes = shard_bytes
        self._builder = ShardBuilder(schema)
        # The cost of a sample that does not depend on its values: fixed columns and index entries.
        self._row_bytes = sum(column.min_tail_bytes for column in schema)
        self._variable = [(column.name, estimate_of(column)) for column in (*schema.payload, *schema.small)]

    @property
    def num_samples(self) -> int:
        """Number of samples in the open shard."""
        return self._builder.num_samples

    def add(self, sample: Mapping[str, object]) -> ShardBuilder | None:
        """Adds a sample; returns the previous shard if it is full.

        Raises:
            SchemaError: The sample does not fit the columns; nothing has changed.
        """
        full = (
            self._builder.num_samples > 0
            and (type(sample) is dict or isinstance(sample, Mapping))
            and (self._builder.estimated_bytes + self._estimate(sample) > self._shard_bytes)
        )
        if not full:
            self._builder.add(sample)
            return None
        following = ShardBuilder(self._schema)
        following.add(sample)  # may raise, so it comes before the cut: a rejected sample must not move a border
        done, self._builder = self._builder, following
        return done

    def extend(self, batch: EncodedBatch) -> Iterator[tuple[range, ShardBuilder | None]]:
        """Adds many samples, cut as by `add`.

        Yields:
            Rows that were added to the open shard, and this shard if further samples go to the next one.
        """
        start, sizes = 0, (batch.num_bytes, batch.estimated_bytes)
        while start < batch.num_samples:
            rows = range(start, self._last_fitting(start, *sizes))
            self._builder.extend(batch.fixed, batch.values, batch.nulls, rows)
            start = rows.stop
            done: ShardBuilder | None = None
            if start < batch.num_samples:
                done, self._builder = self._builder, ShardBuilder(self._schema)
            yield rows, done

    def take_rest(self) -> ShardBuilder | None:
        """Returns the open shard if it has samples, and opens an empty one."""
        if not self._builder.num_samples:
            return None
        done, self._builder = self._builder, ShardBuilder(self._schema)
        return done

    def _last_fitting(self, start: int, num_bytes: Sizes, estimates: Sizes) -> int:
        """Returns the first row that does not fit into the open shard, or the number of rows."""
        is_empty = self._builder.num_samples == 0
        before = self._builder.estimated_bytes
        num_nulls = sum(column.optional for column in self._schema)
        num_rows = 1024
        while True:
            stop = min(len(num_bytes), start + num_rows)
            added = np.arange(stop - start)
            bitmaps = ((self._builder.num_samples + added + 7) // 8 - (self._builder.num_samples + 7) // 8) * num_nulls
            sizes = np.cumsum(num_bytes[start:stop]) - num_bytes[start:stop]
            sizes += before + bitmaps + self._row_bytes * (added + 1) + estimates[start:stop]
            full = np.flatnonzero(sizes[is_empty:] > self._shard_bytes)
            if len(full):
                return start + int(full[0]) + is_empty
            if stop == len(num_bytes):
                return stop
            num_rows *= 4

    def _estimate(self, sample: Mapping[str, object]) -> int:
        estimate = self._row_bytes
        for name, num_bytes in self._variable:
            estimate += num_bytes(sample.get(name))
        return estimate


def estimate_of(column: Column) -> Callable[[object], int]:
    """Returns the upper estimate of the bytes of a value, for a SMALL or PAYLOAD column."""
    return _json_bytes if column.base_type == "json" else _num_bytes


# Upper estimates of the bytes of a value. An unsuitable value counts as zero, because the builder rejects it.


def _num_bytes(value: object) -> int:
    if isinstance(value, _BYTES):
        return len(value)
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    num_bytes = getattr(value, "nbytes", None)  # memoryview, array, tensor
    return num_bytes + _ARRAY_HEADER_BYTES if isinstance(num_bytes, int) else 0


def _json_bytes(value: object) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return 0
