"""Where the columns of a dataset are stored: in its shards, or in shards of their own that were added later.

A *column set* has one shard for each shard of the dataset, with the same samples and with other columns. So columns can
be added, renamed and dropped without writing a shard again. docs/reference/format.md ("Column sets") specifies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry, ShardTable

__all__ = ["ColumnPlace", "ColumnSet"]


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """The place of a column.

    Attributes:
        part: 0 for the shards of the dataset; n for the n-th column set, counted from 1.
        name: Name of the column in the files.
    """

    part: int
    name: str


@dataclass(frozen=True, kw_only=True)
class ColumnSet:
    """The shards and bundles of columns that were added together.

    Attributes:
        shards: One shard for each of the dataset's shards, in their order, with as many samples.
        bundles: Bundles of the FIXED columns, by first sample.
    """

    shards: tuple[ShardEntry, ...] | ShardTable
    bundles: tuple[BundleEntry, ...] = ()

    @cached_property
    def table(self) -> ShardTable:
        """All shards as a table.

        Raises:
            FormatError: A digest is invalid, or a number exceeds 64 bits.
        """
        return ShardTable.of(self.shards)
