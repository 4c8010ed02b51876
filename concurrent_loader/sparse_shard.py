"""Some samples of a shard, fetched range by range instead of the whole shard: beside the cache's open shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError
from storage.shards.columns import ColumnKind
from storage.shards.index import ShardIndex
from storage.shards.manifest import ShardEntry
from storage.shards.reader import DatasetReader

__all__ = ["SparseShard", "is_sparse"]

Indices = npt.NDArray[np.int64]

# What a request costs beside its bytes, in bytes: at 90 MB/s a connection some 3 ms of 30 to the first byte, because
# many requests wait at once.
_REQUEST_BYTES = 256 * 1024


def is_sparse(entry: ShardEntry, num_rows: int) -> bool:
    """Whether so many samples are better fetched one by one: where that costs less than half of the whole shard."""
    if num_rows == 0 or num_rows == entry.num_samples:
        return False
    bytes_each = entry.payload_bytes / entry.num_samples + _REQUEST_BYTES
    return 2 * num_rows * bytes_each <= entry.payload_bytes


class SparseShard:
    """A few samples of a shard in memory, verified, as the loader reads whole shards.

    Args:
        index: Of the shard.
        key: Of the shard.
        payload: (column, row) → bytes.
    """

    cached = False  # a decayed local copy has been fetched again before this was made

    def __init__(self, index: ShardIndex, key: str, payload: dict[tuple[str, int], bytes]) -> None:
        self.key = key
        self._index = index
        self._payload = payload

    @classmethod
    async def read(cls, reader: DatasetReader, shard: int, rows: Indices, wanted: Sequence[str]) -> Self:
        """Fetches the index and the samples, from the local drive where they are there.

        Args:
            reader: The snapshot.
            shard: The shard's place in the manifest.
            rows: (n,) of the shard.
            wanted: Payload columns; perhaps none, then the index is all that is fetched.

        Raises:
            StorageError: Names shard and sample.
        """
        entry = reader.entry(shard)
        index = await reader.index(shard)
        payload: dict[tuple[str, int], bytes] = {}

        async def bring(row: int) -> None:
            spans = [index.payload_range(row, name) for name in wanted]
            start, end = min(span.start for span in spans), max(span.end for span in spans)

            def checked(data: memoryview) -> None:
                for name, span in zip(wanted, spans, strict=True):
                    value = data[span.start - start : span.end - start]
                    index.check_value(name, row, value)
                    payload[name, row] = bytes(value)

            try:
                await reader.cache.read(entry, start, end, checked)
            except StorageError as error:
                error.locate(shard=entry.key, sample=int(reader.first_samples[shard]) + row)
                raise

        if wanted:
            try:
                async with asyncio.TaskGroup() as group:
                    for row in rows.tolist():
                        group.create_task(bring(row))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return cls(index, entry.key, payload)

    def payload(self, column: str, rows: Indices) -> list[bytes]:
        """Returns the stored bytes of a payload column for some rows."""
        return [self._payload[column, row] for row in rows.tolist()]

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | list[Any]:
        """Returns one column's values for some rows, as `storage.cache.OpenShard.values` does."""
        spec = self._index.schema[column]
        if spec.kind is ColumnKind.PAYLOAD:
            return [spec.decode(data) for data in self.payload(column, rows)]
        return self._index.values(column, rows)
