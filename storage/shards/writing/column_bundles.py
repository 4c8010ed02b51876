"""Gathers the FIXED columns of many shards into bundles. No I/O.

A bundle is a shard file without payload, for a run of samples. With bundles, a reader gets one column of all samples by
a few range GETs instead of one GET per shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.nulls import joined
from concurrent_loader.storage.shards.format.schema import Schema

__all__ = ["MAX_BUNDLE_BYTES", "MAX_BUNDLE_SAMPLES", "BundleBuilder", "fixed_row_bytes"]

MAX_BUNDLE_SAMPLES = 1_000_000
MAX_BUNDLE_BYTES = 64 << 20  # wide columns give more bundles, not larger ones, because a writer holds one in memory

FixedArrays = Mapping[str, npt.NDArray[Any]]


class BundleBuilder:
    """Collects the FIXED columns of successive shards and cuts them into runs.

    Args:
        schema: Columns of the dataset.
        max_samples: Upper bound of the samples of a run.
        max_bytes: Upper bound of the bytes of a run's values.
    """

    def __init__(
        self, schema: Schema, *, max_samples: int = MAX_BUNDLE_SAMPLES, max_bytes: int = MAX_BUNDLE_BYTES
    ) -> None:
        self._schema = Schema(schema.fixed) if schema.fixed else None
        self._run_samples = max(1, min(max_samples, max_bytes // max(1, fixed_row_bytes(schema))))
        self._waiting: list[FixedArrays] = []
        self._num_waiting = 0

    def add(self, arrays: FixedArrays, num_samples: int) -> Iterator[FinishedShard]:
        """Adds the columns of more samples, as arrays (n, ...) whose nulls are masked; yields completed runs."""
        if self._schema is None:
            return
        while num_samples:
            taken = min(num_samples, self._run_samples - self._num_waiting)
            self._waiting.append({name: values[:taken] for name, values in arrays.items()})
            self._num_waiting += taken
            arrays = {name: values[taken:] for name, values in arrays.items()}
            num_samples -= taken
            if self._num_waiting == self._run_samples:
                yield from self.flush()

    def flush(self) -> Iterator[FinishedShard]:
        """Yields the remaining samples as a last, shorter run."""
        if self._schema is None or not self._num_waiting:
            return
        builder = ShardBuilder(self._schema)
        builder.extend_fixed(
            {
                column.name: joined([arrays[column.name] for arrays in self._waiting], optional=column.optional)
                for column in self._schema
            }
        )
        self._waiting.clear()
        self._num_waiting = 0
        yield builder.finish()


def fixed_row_bytes(schema: Schema) -> int:
    """Returns the number of bytes of the FIXED columns of one sample."""
    return sum(
        column.dtype.itemsize * math.prod(column.shape or ()) for column in schema.fixed if column.dtype is not None
    )
