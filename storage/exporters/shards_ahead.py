"""Holds the shard that a file is written from, and fetches the next one meanwhile."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.open_shard import OpenShard
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.exporters.plan import ExportJob
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry

__all__ = ["ShardsAhead"]


class ShardsAhead:
    """The shards of one job in order: one pinned, and one in flight.

    Args:
        manifest: Snapshot.
        cache: Cache of the snapshot's shards.
        gate: Gate that limits the bytes of the shards of all jobs. A job asks for its shards in order and releases one
            before it waits for the next, so jobs cannot block each other.
        first_samples: (num_shards + 1,) int64: number of each shard's first sample, then the number of samples. A shard
            without samples, because all are deleted, is not fetched.
        job: Job whose shards are read.

    Attributes:
        shard: Pinned shard.
        number: Its number in the manifest.
        first_sample: Number of its first sample.
        end_sample: One past the number of its last sample.
    """

    shard: OpenShard

    def __init__(
        self,
        manifest: Manifest,
        cache: ShardCache,
        gate: InFlightGate,
        first_samples: npt.NDArray[np.int64],
        job: ExportJob,
    ) -> None:
        self._manifest = manifest
        self._cache = cache
        self._gate = gate
        self._first_samples = first_samples
        self._end = job.first_shard + job.num_shards
        self._next = self._with_samples(job.first_shard)
        self._entry: ShardEntry | None = None
        self._fetching: asyncio.Task[tuple[ShardEntry, OpenShard]] | None = None
        self.number = self.first_sample = self.end_sample = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()
            (outcome,) = await asyncio.gather(fetching, return_exceptions=True)
            if not isinstance(outcome, BaseException):
                self._entry = outcome[0]
                self._release()

    async def containing(self, sample: int) -> OpenShard:
        """Returns the shard that contains a sample, not before that of the previous call.

        Raises:
            StorageError: The shard could not be fetched.
        """
        while self._entry is None or sample >= self.end_sample:
            await self._advance()
        return self.shard

    async def replace(self) -> None:
        """Fetches the shard again, because its local file is corrupt.

        Raises:
            StorageError: The shard is corrupt in the store, too, or could not be fetched.
        """
        assert self._entry is not None
        self.shard = await self._cache.replace(self._entry, self.shard)

    def _with_samples(self, number: int) -> int:
        """Returns the first shard from ``number`` on that has samples, or the end."""
        while number < self._end and self._first_samples[number] == self._first_samples[number + 1]:
            number += 1
        return number

    async def _advance(self) -> None:
        number = self._next
        fetching = self._fetching or asyncio.create_task(self._fetch(number))
        self._fetching = fetching
        self._release()
        self._entry, self.shard = await fetching
        self._fetching = None
        self._next = self._with_samples(number + 1)
        self.number = number
        self.first_sample, self.end_sample = self._first_samples[number : number + 2].tolist()
        if self._next < self._end:
            self._fetching = asyncio.create_task(self._fetch(self._next))

    async def _fetch(self, number: int) -> tuple[ShardEntry, OpenShard]:
        entry = self._manifest.shards[number]
        await self._gate.enter(entry.size)
        try:
            return entry, await self._cache.acquire(entry)
        except BaseException:
            self._gate.leave(entry.size)
            raise

    def _release(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache.release(entry)
            self._gate.leave(entry.size)
