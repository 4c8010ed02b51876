"""Defines what the loader needs from a dataset, of whatever kind: the interface between datasets and the pipeline.

A dataset is a row of *units* (shards or single objects), each with some samples. The plan names the rows of the units
that come next. A `Source` fetches units on the dataset's event loop, and translates the plan's rows into stored rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.options import PlanOptions
from concurrent_loader.order.protocol import BatchIndex, Plan
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.media import ClipIndex
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.sizes import Size

__all__ = ["FetchTimes", "GroupChooser", "LoadableDataset", "OpenUnit", "RowFetcher", "Source", "StoredDataset"]

Indices = npt.NDArray[np.int64]

GroupChooser = Callable[[int, ClipIndex], tuple[int, int]]
"""Function of a sample's number and a video's index: the first and the last group of pictures to fetch."""


class OpenUnit(Protocol):
    """A unit that is ready to be read. Reading methods may be called from any number of threads."""

    @property
    def key(self) -> str:
        """Key of the unit's object."""

    @property
    def cached(self) -> bool:
        """Whether the bytes come from a local file, which may be damaged, and which `Source.replace` fetches again."""

    def encoding(self, column: str) -> str:
        """Returns the encoding of a column's stored values; empty for this project's own."""

    def payload(self, column: str, rows: Indices) -> Sequence[bytes | memoryview | None]:
        """Returns the verified bytes of a payload column, or of text, for some rows; None for nulls."""

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | Sequence[Any]:
        """Returns the values of a column for some rows: an array for numbers, otherwise a list."""


RowFetcher = Callable[[], Coroutine[Any, Any, OpenUnit | None]]
"""Function that fetches a few rows of a unit by themselves; returns None if only the whole unit can be verified.

Raises:
    StorageError: A request failed, or bytes are damaged.
"""


class Source(Protocol):
    """Fetches the units of a dataset for one iteration. All methods are for the dataset's event loop."""

    @property
    def max_concurrent(self) -> int | None:
        """Maximum number of units to request at once at the moment, at least 1; None for no limit.

        Further requests would only wait.
        """

    def num_bytes(self, unit: int) -> int:
        """Returns the size of a unit that counts against the prefetch budget."""

    def num_samples(self, unit: int) -> int:
        """Returns the number of a unit's samples in the plan."""

    def url(self, unit: int) -> str:
        """Returns the URL of a unit's dataset, for errors."""

    def key(self, unit: int) -> str:
        """Returns the key of a unit's object."""

    def fetch_times(self, unit: int) -> tuple[float, float | None] | None:
        """Returns the start and end of a unit's fetch from the store in monotonic seconds.

        The end is None while the fetch is under way; the result is None if there was no fetch. May be called from any
        thread.
        """

    async def set_schedule(self, plan: Any, world_size: int, *, shared: bool = False) -> None:
        """Gives the cache the epoch's plan, so that it can choose what to evict.

        Args:
            plan: Plan of the epoch.
            world_size: Number of ranks that share the epoch.
            shared: Whether other processes also make batches of this rank, False by default.
        """

    def set_step(self, step: int) -> None:
        """Gives the cache the current step of the epoch."""

    def choose_groups(self, choosers: Sequence[Mapping[str, GroupChooser]]) -> None:
        """Makes `acquire` fetch a part of each video that has an index. Called at most once, before everything else.

        Args:
            choosers: Column of videos → function that chooses the part; one mapping for each of the dataset's parts.
        """

    async def acquire(self, unit: int) -> OpenUnit:
        """Fetches a unit, and keeps it open until `release`."""

    async def row_fetcher(self, unit: int, rows: Indices) -> RowFetcher | None:
        """Returns a function that fetches a few rows of a unit, which are not released; it sends no request itself.

        Args:
            unit: Number of the unit.
            rows: (n,) int64: stored rows, in ascending order.

        Returns:
            None if the whole unit takes little more than these rows, or is local.
        """

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        """Releases a unit.

        Args:
            unit: Number of the unit.
            done_for_epoch: Whether no rank needs the unit again in this epoch, False by default.
        """

    async def replace(self, unit: int, damaged: OpenUnit) -> OpenUnit:
        """Deletes the damaged local copy of a unit, and fetches the unit again."""

    async def end(self) -> None:
        """Waits until all released units are closed. The last call of an iteration."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        """Translates the plan's rows and sample numbers into those of the stored dataset."""


class FetchTimes(dict[int, tuple[float, float | None]]):
    """Start and end of the requests for units that are read in parts, by unit number.

    A unit on the local drive answers at once.
    """

    @contextmanager
    def of(self, unit: int) -> Iterator[None]:
        """Records the block as the request for a unit."""
        began_s = time.monotonic()
        self[unit] = began_s, None
        try:
            yield
        finally:
            self[unit] = began_s, time.monotonic()


class StoredDataset(Protocol):
    """A dataset that owns open resources."""

    @property
    def url(self) -> str: ...
    @property
    def unit_sizes(self) -> Indices:
        """(num_units,) int64, sizes of the units in bytes."""

    def __len__(self) -> int: ...
    def close(self) -> None: ...


class LoadableDataset(Protocol):
    """A dataset that `concurrent_loader.ConcurrentDataLoader` can load."""

    @property
    def schema(self) -> Schema: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def loop(self) -> LoopThread:
        """Thread with the event loop on which a `Source` is used."""

    @property
    def source(self) -> Source:
        """New source for one iteration."""

    @property
    def parts(self) -> Sequence[LoadableDataset]:
        """Datasets whose schema and columns batches have: itself, or several if each batch comes from one of them."""

    @property
    def stored(self) -> Sequence[StoredDataset]:
        """Datasets that own the open resources, each once."""

    @property
    def cache_dir(self) -> str | None:
        """Cache folder as given; None without a cache."""

    def with_cache(self, cache_dir: str, cache_bytes: Size | None = None) -> LoadableDataset:
        """Returns the same samples with another cache."""

    @property
    def fetch_stats(self) -> FetchStats: ...
    @property
    def cache_stats(self) -> CacheStats: ...

    def source_for(self, options: PlanOptions, epoch: int) -> Source:
        """Returns a new source for one iteration over an epoch, whose plan has the same options."""

    def plan(self, options: PlanOptions, epoch: int) -> Plan:
        """Returns the order of an epoch.

        Raises:
            ConfigurationError: The options do not fit together, or do not fit the dataset.
        """
