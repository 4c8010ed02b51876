"""What the loader needs of a data set, whatever kind it is: between data sets, which implement it, and the pipeline.

A data set is a row of *units* (shards, or single objects), each with some samples. The plan says which rows of which
unit come next; a `Source` brings units, on the data set's event loop, and says which samples they hold in truth.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from concurrent_loader.plan import BatchIndex, PlanOptions
from storage.cache import CacheStats
from storage.fetch import FetchStats
from storage.shards.columns import Schema
from storage.sizes import Size

if TYPE_CHECKING:
    from storage.loop_thread import LoopThread

__all__ = ["LoadableDataset", "OpenUnit", "Plan", "Source", "StoredDataset", "Visits"]

Indices = npt.NDArray[np.int64]


class OpenUnit(Protocol):
    """A unit whose bytes are at hand. Reading methods may be called from any number of threads."""

    @property
    def key(self) -> str:
        """Of the object that it is."""

    @property
    def cached(self) -> bool:
        """Whether the bytes come from a file that may have decayed, and that `Source.replace` can fetch again."""

    def payload(self, column: str, rows: Indices) -> Sequence[bytes | memoryview]:
        """Returns the verified bytes of a payload column for some rows."""

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | Sequence[Any]:
        """Returns one column's values for some rows: an array for numbers, else a list."""


class Plan(Protocol):
    """The order of one epoch; see `concurrent_loader.plan.EpochPlan`, which is the usual one."""

    @property
    def epoch(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def max_steps(self) -> int: ...

    def num_steps(self, rank: int = 0, world_size: int = 1) -> int: ...
    def batches(self, start_step: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[BatchIndex]: ...
    def upcoming(
        self, start_step: int = 0, rank: int = 0, world_size: int = 1, *, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, int | None]]: ...
    def last_use_step(self, shard: int, rank: int = 0, world_size: int = 1) -> int: ...
    def max_uses(self, shard: int, rank: int = 0, world_size: int = 1) -> int: ...


class Source(Protocol):
    """Brings the units of one data set to one iteration; all methods are for the data set's loop."""

    @property
    def num_at_once(self) -> int | None:
        """How many units to ask for at once, at least 1, at the moment: more would only wait. None: all there are."""

    def num_bytes(self, unit: int) -> int:
        """What a unit takes of the budget for fetching ahead."""

    def num_samples(self, unit: int) -> int:
        """How many samples the plan knows of in a unit."""

    def url(self, unit: int) -> str:
        """Where a unit lies, for errors."""

    def key(self, unit: int) -> str:
        """Under which key."""

    def fetched(self, unit: int) -> tuple[float, float | None] | None:
        """Says when the fetch of a unit from the store began and ended (None: not yet), in monotonic seconds.

        None if it was not fetched. May be called from any thread.
        """

    async def follow(self, plan: Any, world_size: int, *, shared: bool = False) -> None:
        """Tells what evicts which order is followed from now on.

        Args:
            plan: Of the epoch.
            world_size: Number of processes that share the epoch.
            shared: Whether others make batches of this rank's samples, too.
        """

    def at(self, step: int) -> None:
        """Tells how far the epoch is."""

    async def acquire(self, unit: int) -> OpenUnit:
        """Brings a unit and keeps it at hand until `release`."""

    def release(self, unit: int, *, spent: bool = False) -> None:
        """Lets go of a unit; ``spent``: nobody needs it any more in this epoch."""

    async def replace(self, unit: int, decayed: OpenUnit) -> OpenUnit:
        """Throws away the local copy of a unit whose bytes turned out wrong, and fetches it again."""

    async def end(self) -> None:
        """Waits until everything that was released is let go of; the last call of an iteration."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        """Turns rows and numbers as the plan counts them into those of the data set that is stored."""


class Visits(dict[int, tuple[float, float | None]]):
    """When units were asked for that are read in pieces, by their numbers; a drive that has them answers at once."""

    @contextmanager
    def of(self, unit: int) -> Iterator[None]:
        """Notes that a unit is asked for during the block."""
        began_s = time.monotonic()
        self[unit] = began_s, None
        try:
            yield
        finally:
            self[unit] = began_s, time.monotonic()


class StoredDataset(Protocol):
    """A data set that owns what is open."""

    @property
    def url(self) -> str: ...
    @property
    def unit_sizes(self) -> Indices:
        """(num_units,) int64, in bytes."""

    def __len__(self) -> int: ...
    def close(self) -> None: ...


class LoadableDataset(Protocol):
    """What `concurrent_loader.ConcurrentDataLoader` loads."""

    @property
    def schema(self) -> Schema: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def loop(self) -> LoopThread:
        """The thread on which `Source` is used."""

    @property
    def source(self) -> Source:
        """A new one for each iteration."""

    @property
    def parts(self) -> Sequence[LoadableDataset]:
        """Whose schema and columns batches have: itself; or several, where each batch is of one of them."""

    @property
    def stored(self) -> Sequence[StoredDataset]:
        """The data sets that own what is open, each once."""

    @property
    def cache_dir(self) -> str | None:
        """The folder that keeps what was fetched, as given."""

    def with_cache(self, cache_dir: str, cache_bytes: Size | None = None) -> LoadableDataset:
        """Returns the same samples, to be opened with another cache."""

    @property
    def fetch_stats(self) -> FetchStats: ...
    @property
    def cache_stats(self) -> CacheStats: ...

    def plan(self, options: PlanOptions, epoch: int) -> Plan:
        """Makes the order of an epoch.

        Raises:
            ConfigurationError: An argument that cannot work.
        """
