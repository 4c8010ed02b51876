"""Chooses a sample of a dataset and reads it by ranges, within a limit on the bytes that are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.preview.class_counts import (
    ClassCount,
    class_columns,
    class_names,
    count_values,
    read_class_counts,
    small_columns_bytes,
)
from concurrent_loader.preview.read_sample import read_sample
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.nulls import plain_values
from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["Collected", "collect"]

_MAX_SHARDS = 64
_LABEL_SHARE, _TAIL_SHARE = 0.25, 0.25  # of the bytes: for the labels of all samples, and for the indexes of shards
_WAVE = 16  # samples fetched between two looks at the bytes that were really fetched
_MAX_VALUE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A sample of a dataset.

    Attributes:
        num_total: Number of samples in the dataset.
        samples: Sample numbers and values, in ascending order.
        value_bytes: Payload column → (n,) uint64, sizes of all its values in the shards that were looked at.
        counts: Column with classes → samples per class.
        num_counted: Number of samples in each of these counts: all, or those of some shards.
        num_left_out: Number of chosen samples that did not fit into the bytes.
        fetched_bytes: Bytes fetched, without the manifest.
    """

    num_total: int
    samples: Sequence[tuple[int, dict[str, Any]]]
    value_bytes: dict[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    counts: dict[str, list[ClassCount]] = field(default_factory=dict)
    num_counted: dict[str, int] = field(default_factory=dict)
    num_left_out: int = 0
    fetched_bytes: int = 0


async def collect(
    reader: DatasetReader,
    columns: Sequence[str],
    *,
    num_samples: int,
    max_bytes: int,
    seed: int = 0,
) -> Collected:
    """Reads a random sample of a dataset: labels, the indexes of some shards, and single samples of these shards.

    Args:
        reader: Reader of the snapshot, over an engine that was just opened.
        columns: Names of the columns to read.
        num_samples: Largest number of samples.
        max_bytes: Largest number of bytes to fetch, without the manifest.
        seed: Seed of the choice; the same seed chooses the same samples.

    Raises:
        ConfigurationError: The index of every shard is larger than the limit.
        StorageError: Something could not be fetched, or is damaged.
    """
    budget = _Budget(reader, max_bytes)
    counts: dict[str, list[ClassCount]] = {}
    label_bytes = small_columns_bytes(reader)
    if 0 <= label_bytes <= max_bytes * _LABEL_SHARE:
        counts = await read_class_counts(reader)
        budget.spend(label_bytes)
    num_counted = dict.fromkeys(counts, len(reader))

    rng = np.random.default_rng(seed)
    shards = _choose_shards(reader, num_samples, budget, rng)
    indexes = dict(zip(shards, await map_concurrently(reader.index, shards), strict=True))
    metadata = reader.manifest.metadata
    for name in class_columns(reader.schema, metadata):
        if name not in counts and indexes and (stored := _in_shards(reader, name)):
            rows_of = reader.live.rows_of_shard
            runs = (plain_values(index.values(stored, rows_of(at))) for at, index in indexes.items())
            values = list(chain.from_iterable(runs))
            if found := count_values(values, class_names(metadata, name)):
                counts[name], num_counted[name] = found, len(values)

    rows = _choose_rows(reader, shards, num_samples, rng)
    samples, num_left_out = await _read(reader, rows, indexes, columns, budget)
    return Collected(
        num_total=len(reader),
        samples=samples,
        value_bytes={
            column.name: np.concatenate(
                [index.payload_ends(stored) - index.payload_starts(stored) for index in indexes.values()]
            )
            for column in reader.schema.payload
            if indexes and (stored := _in_shards(reader, column.name))
        },
        counts=counts,
        num_counted=num_counted,
        num_left_out=num_left_out,
        fetched_bytes=budget.fetched,
    )


class _Budget:
    """Counts bytes by plan and by the engine's counters: the larger of the two, so that retries count as well."""

    def __init__(self, reader: DatasetReader, max_bytes: int) -> None:
        self._engine = reader.engine
        self._before = reader.engine.stats.num_bytes
        self._planned = 0
        self.max_bytes = max_bytes

    @property
    def fetched(self) -> int:
        return max(self._planned, self._engine.stats.num_bytes - self._before)

    @property
    def left(self) -> int:
        return self.max_bytes - self.fetched

    def spend(self, num_bytes: int) -> None:
        self._planned += num_bytes


def _choose_shards(reader: DatasetReader, num_samples: int, budget: _Budget, rng: np.random.Generator) -> list[int]:
    """Chooses shards at random whose indexes fit into a part of the bytes; the smallest index if none does."""
    table = reader.manifest.table
    tails = np.asarray(table.sizes, np.int64) - np.asarray(table.tail_starts, np.int64)
    if not len(tails):
        return []
    allotted = min(budget.left, int(budget.max_bytes * _TAIL_SHARE))
    chosen: list[int] = []
    has_samples = np.diff(reader.first_samples) > 0
    for shard in rng.permutation(np.flatnonzero(has_samples)).tolist():
        if len(chosen) == min(num_samples, _MAX_SHARDS):
            break
        if tails[shard] <= allotted:
            allotted -= int(tails[shard])
            chosen.append(shard)
    if not chosen and has_samples.any():
        chosen = [int(np.where(has_samples, tails, tails.max() + 1).argmin())]
    needed = int(tails[chosen].sum())
    if needed > budget.left:
        raise ConfigurationError(
            "the index of a single shard exceeds the bytes that may be fetched",
            expected=f"<= {budget.left}",
            got=needed,
        )
    budget.spend(needed)
    return sorted(chosen)


def _in_shards(reader: DatasetReader, column: str) -> str | None:
    """Returns the name of a column in the shards; None for one that was added later, in files of its own."""
    place = reader.manifest.place_of(column)
    return None if place.part else place.name


def _choose_rows(
    reader: DatasetReader, shards: list[int], num_samples: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Chooses (shard, row) pairs, in turn from each shard, so that any prefix is spread over the shards."""
    permuted = [
        [(shard, row) for row in rng.permutation(reader.live.rows_of_shard(shard))[:num_samples].tolist()]
        for shard in shards
    ]
    rows = [each for turn in zip_longest(*permuted) for each in turn if each is not None]
    return rows[:num_samples]


async def _read(
    reader: DatasetReader,
    rows: list[tuple[int, int]],
    indexes: dict[int, ShardIndex],
    columns: Sequence[str],
    budget: _Budget,
) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    samples: list[tuple[int, dict[str, Any]]] = []
    num_left_out = 0
    for start in range(0, len(rows), _WAVE):
        wave: list[int] = []
        for shard, row in rows[start : start + _WAVE]:
            num_bytes = _payload_bytes(reader, indexes[shard], row, columns)
            if num_bytes > budget.left:
                num_left_out += 1
                continue
            budget.spend(num_bytes)
            wave.append(reader.live.sample(shard, row))
        values = await map_concurrently(
            lambda number: read_sample(reader, number, columns, max_value_bytes=_MAX_VALUE_BYTES), wave
        )
        samples += zip(wave, values, strict=True)
    return sorted(samples, key=lambda each: each[0]), num_left_out


def _payload_bytes(reader: DatasetReader, index: ShardIndex, row: int, names: Sequence[str]) -> int:
    payload = {column.name for column in reader.schema.payload}
    stored = [_in_shards(reader, name) for name in names if name in payload]
    spans = [index.payload_range(row, name) for name in stored if name is not None]
    return sum(span.end - span.start for span in spans if span.end - span.start <= _MAX_VALUE_BYTES)
