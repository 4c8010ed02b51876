"""Fetches the first batch's samples by themselves, where that takes less than fetching their whole shards.

The first batch of an iteration needs a few samples of each of many shards. Its samples are requested first, and the
whole shards as soon as samples arrive. All later batches are made of whole shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.protocol import OpenUnit, Source
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.errors import StorageError

__all__ = ["FirstRows"]

_HEAD_START_S = 1.0  # maximum delay of the whole shards


class FirstRows:
    """The first batch's samples, by shard.

    All methods must be called on the dataset's event loop.

    Args:
        source: Source of the dataset's units, called shards here.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tasks: dict[int, asyncio.Task[OpenUnit | None]] = {}
        self._step = -1

    async def fetch(self, index: BatchIndex, start: Callable[[Any], asyncio.Task[Any]]) -> None:
        """Starts to fetch a batch's samples, and waits for the first ones, if any come sooner than their whole shard.

        Args:
            index: First batch.
            start: Function that starts a task.
        """
        self._step = index.step
        count = len(index) - index.num_padded
        shards, rows = index.shard[:count], self._source.resolve(index).row[:count]
        for shard in dict.fromkeys(shards.tolist()):
            self._tasks[shard] = start(self._fetch(shard, np.unique(rows[shards == shard])))
        waiting = set(self._tasks.values())
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _HEAD_START_S
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done or any(task.result() is not None for task in done):
                return

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

    async def _fetch(self, shard: int, rows: npt.NDArray[np.int64]) -> OpenUnit | None:
        try:
            return await self._source.acquire_rows(shard, rows)
        except StorageError:
            return None  # the whole shard is fetched, and its error is the one that is reported
