"""Reads single samples with a limit on the bytes of each value, so that a look at a dataset stays cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.errors import StorageError

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.format.index import ShardIndex
    from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["NotFetched", "read_sample"]


@dataclass(frozen=True, slots=True)
class NotFetched:
    """Takes the place of a value that is larger than the limit.

    Attributes:
        num_bytes: Size of the stored value.

    Example:
        >>> from concurrent_loader.preview.read_sample import NotFetched
        >>> NotFetched(2**30).num_bytes
        1073741824
    """

    num_bytes: int


async def read_sample(
    reader: DatasetReader, sample: int, columns: Sequence[str] | None = None, *, max_value_bytes: int
) -> dict[str, Any]:
    """Reads the values of one sample. Encoded images stay bytes.

    Args:
        reader: Reader of the snapshot.
        sample: Number of the sample, from 0.
        columns: Names of the columns; all by default.
        max_value_bytes: Largest payload value to fetch. A larger one is a `NotFetched` in the result.

    Raises:
        IndexError: The sample does not exist.
        SchemaError: A column does not exist.
        StorageError: A value cannot be fetched, or is damaged.
    """
    names = reader.check_columns(columns)
    shard, row = reader.locate(sample)
    payload = {column.name for column in reader.schema.payload}
    values: dict[str, Any] = {}
    try:
        for name in names:
            part, stored = reader.place(name)
            index = await part.index(shard)
            if name not in payload:
                values[name] = index.value(stored, row)
                continue
            span = index.payload_range(row, stored)
            num_bytes = span.end - span.start
            if num_bytes > max_value_bytes:
                values[name] = NotFetched(num_bytes)
            else:
                decode = _decode_of(index, stored, row)
                values[name] = await reader.cache.read(part.entry(shard), span.start, span.end, decode)
    except StorageError as error:
        error.locate(url=reader.engine.store.url, shard=reader.entry(shard).key, sample=sample)
        raise
    return values


def _decode_of(index: ShardIndex, name: str, row: int) -> Any:
    return lambda data: index.decode_value(name, row, data)
