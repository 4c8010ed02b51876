"""Holds the shard that a file is written from, and fetches the next one meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.joined_shard import JoinedShard, JoinedShards
from concurrent_loader.storage.exporters.plan import ExportJob
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate

__all__ = ["ShardsAhead"]


class ShardsAhead:
    """The shards of one job in order: one pinned, and one in flight.

    Args:
        shards: Shards of the snapshot.
        sizes: Size of each shard in bytes, added columns included.
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

    shard: JoinedShard

    def __init__(
        self,
        shards: JoinedShards,
        sizes: Sequence[int],
        gate: InFlightGate,
        first_samples: npt.NDArray[np.int64],
        job: ExportJob,
    ) -> None:
        self._shards = shards
        self._sizes = sizes
        self._gate = gate
        self._first_samples = first_samples
        self._end = job.first_shard + job.num_shards
        self._next = self._with_samples(job.first_shard)
        self._number: int | None = None  # of the pinned shard
        self._fetching: asyncio.Task[tuple[int, JoinedShard]] | None = None
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
                self._number = outcome[0]
                self._release()

    async def containing(self, sample: int) -> JoinedShard:
        """Returns the shard that contains a sample, not before that of the previous call.

        Raises:
            StorageError: The shard could not be fetched.
        """
        while self._number is None or sample >= self.end_sample:
            await self._advance()
        return self.shard

    def rows_per(self, num_bytes: int) -> int:
        """Returns the number of samples, at least 1, of the pinned shard that have about ``num_bytes`` bytes."""
        assert self._number is not None
        return max(1, (self.end_sample - self.first_sample) * num_bytes // self._sizes[self._number])

    async def replace(self) -> None:
        """Fetches the shard again, because its local file is corrupt.

        Raises:
            StorageError: The shard is corrupt in the store, too, or could not be fetched.
        """
        assert self._number is not None
        self.shard = await self._shards.replace(self._number, self.shard)

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
        self._number, self.shard = await fetching
        self._fetching = None
        self._next = self._with_samples(number + 1)
        self.number = number
        self.first_sample, self.end_sample = self._first_samples[number : number + 2].tolist()
        if self._next < self._end:
            self._fetching = asyncio.create_task(self._fetch(self._next))

    async def _fetch(self, number: int) -> tuple[int, JoinedShard]:
        await self._gate.enter(self._sizes[number])
        try:
            return number, await self._shards.acquire(number)
        except BaseException:
            self._gate.leave(self._sizes[number])
            raise

    def _release(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._shards.release(number)
            self._gate.leave(self._sizes[number])
