"""Fetches the first batch's samples by themselves, where that takes less than fetching their whole shards.

The first batch of an iteration may need few samples of one shard, and many of another. The few samples and the other
shards, as a whole, are requested at once. When one of these shards has arrived, the shards that were read in part are
requested, and then those of later batches. If there is no such shard, the first samples take its place. All later
batches are made of whole shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.protocol import OpenUnit, RowFetcher, Source
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.pipeline.shard_leases import ShardLeases
from concurrent_loader.storage.errors import StorageError

__all__ = ["FirstRows"]

Start = Callable[[Any], asyncio.Task[Any]]

_HEAD_START_S = 1.0  # maximum delay of the whole shards


class FirstRows:
    """The first batch's samples, by shard.

    All methods must be called on the dataset's event loop.

    Args:
        source: Source of the dataset's units, called shards here.
        leases: Leases of the whole shards.
    """

    def __init__(self, source: Source, leases: ShardLeases) -> None:
        self._source = source
        self._leases = leases
        self._tasks: dict[int, asyncio.Task[OpenUnit | None]] = {}
        self._step = -1
        self._has_all = False  # whether no shard is fetched as a whole

    async def fetch(self, index: BatchIndex, start: Start) -> None:
        """Starts to fetch what a batch needs: few samples of a shard by themselves, other shards as a whole.

        Args:
            index: First batch.
            start: Function that starts a task.
        """
        self._step = index.step
        count = len(index) - index.num_padded
        # Padding may be other rows of the same shards.
        shards, rows = index.shard, self._source.resolve(index).row
        numbers = list(dict.fromkeys(shards[:count].tolist()))
        fetchers = await asyncio.gather(*(self._fetcher(each, np.unique(rows[shards == each])) for each in numbers))
        for shard, fetch in zip(numbers, fetchers, strict=True):
            if fetch is not None:
                self._tasks[shard] = start(_fetched(fetch))
        self._has_all = len(self._tasks) == len(numbers)
        await self._leases.prefetch(index.step, start, ahead_bytes=0, deferred=frozenset(self._tasks))

    async def follow(self, step: int, start: Start, *, ahead_bytes: int) -> None:
        """Starts to fetch what later batches need, when the first batch has had its head start.

        Args:
            step: Step of the first batch.
            start: Function that starts a task.
            ahead_bytes: Budget for shards of later steps.
        """
        if self._has_all:
            await self._wait_for_first()
            await self._leases.prefetch(step, start, ahead_bytes=0)
        await self._leases.wait_for_first()
        await self._leases.prefetch(step, start, ahead_bytes=ahead_bytes)

    def is_needless(self, step: int, shard: int, whole: asyncio.Future[OpenUnit | Exception]) -> bool:
        """Returns whether the whole shard is there. The first batch's samples of it are given up then."""
        task = self._tasks.pop(shard, None) if step == self._step and whole.done() else None
        if task is not None:
            task.cancel()
        return whole.done()

    async def wait(self, step: int, shard: int, whole: asyncio.Future[OpenUnit | Exception]) -> OpenUnit | None:
        """Returns the first batch's samples of a shard; None if the whole shard must be used, or came first.

        A later batch, which may ask for the shard before the first one does, always uses the whole shard.
        """
        task = self._tasks.pop(shard, None) if step == self._step else None
        if task is None:
            return None
        either: set[asyncio.Future[Any]] = {task, whole}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _wait_for_first(self) -> None:
        waiting = set(self._tasks.values())
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _HEAD_START_S
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done or any(task.result() is not None for task in done):
                return

    async def _fetcher(self, shard: int, rows: npt.NDArray[np.int64]) -> RowFetcher | None:
        try:
            return await self._source.row_fetcher(shard, rows)
        except StorageError:
            return None  # the whole shard is fetched, and its error is the one that is reported


async def _fetched(fetch: RowFetcher) -> OpenUnit | None:
    try:
        return await fetch()
    except StorageError:
        return None  # as above
