"""Where one shard ends and the next begins: decided sample by sample, so that a shard keeps to its size. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from storage.shards.builder import ShardBuilder
from storage.shards.columns import Schema

__all__ = ["ShardCutter"]

_ARRAY_HEADER_BYTES = 272  # at most, before a ragged array's values


class ShardCutter:
    """Adds samples to one builder after another.

    The cut depends on the samples alone, never on time, so the same samples make the same shards.

    Args:
        schema: Of every sample.
        shard_bytes: A finished shard is no larger, unless it is of one sample only.
    """

    def __init__(self, schema: Schema, *, shard_bytes: int) -> None:
        self._schema = schema
        self._shard_bytes = shard_bytes
        self._builder = ShardBuilder(schema)
        # What a sample costs whatever its values: its fixed columns and its places in the index.
        self._row_bytes = sum(column.min_tail_bytes for column in schema)
        self._variable = [
            (column.name, _json_bytes if column.type == "json" else _num_bytes)
            for column in (*schema.payload, *schema.small)
        ]

    @property
    def num_samples(self) -> int:
        """In the shard that is open."""
        return self._builder.num_samples

    def add(self, sample: Mapping[str, object]) -> ShardBuilder | None:
        """Adds a sample; returns the shard before it if that is full now.

        Raises:
            SchemaError: The sample does not fit the columns; nothing has changed.
        """
        full = (
            self._builder.num_samples > 0
            and isinstance(sample, Mapping)
            and (self._builder.estimated_bytes + self._estimate(sample) > self._shard_bytes)
        )
        if not full:
            self._builder.add(sample)
            return None
        following = ShardBuilder(self._schema)
        following.add(sample)  # may raise: before the cut, so that a refused sample moves no border
        done, self._builder = self._builder, following
        return done

    def take_rest(self) -> ShardBuilder | None:
        """Returns the open shard, if there is anything in it, and opens an empty one."""
        if not self._builder.num_samples:
            return None
        done, self._builder = self._builder, ShardBuilder(self._schema)
        return done

    def _estimate(self, sample: Mapping[str, object]) -> int:
        return self._row_bytes + sum(num_bytes(sample.get(name)) for name, num_bytes in self._variable)


# About how many bytes a value takes, rather too many. Nonsense counts as nothing: the builder refuses it.


def _num_bytes(value: object) -> int:
    if isinstance(value, bytes | bytearray):
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
