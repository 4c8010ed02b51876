"""Only the first batch is made of samples that were fetched by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.pipeline.first_rows import FirstRows
from concurrent_loader.storage.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.fast


class Rows:
    """A source that has the rows of a shard at once."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        return index

    async def row_fetcher(self, shard: int, rows: Any) -> Any:
        async def fetch() -> Any:
            return shard, rows.tolist()

        return fetch


class Leases:
    """The leases of the whole shards, which are not asked for."""

    async def prefetch(self, step: int, start: Any, *, ahead_bytes: int, deferred: Any) -> None:
        assert (step, ahead_bytes, deferred) == (5, 0, {7, 9})


def test_a_later_batch_that_asks_first_waits_for_the_whole_shard() -> None:
    async def run() -> None:
        source: Any = Rows()
        leases: Any = Leases()
        first_rows = FirstRows(source, leases)
        numbers = np.array([7, 7, 9])
        index = BatchIndex(5, numbers, np.array([3, 1, 2]), numbers)
        await first_rows.fetch(index, asyncio.ensure_future)
        whole: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        assert await first_rows.wait(6, 7, whole) is None
        assert await first_rows.wait(5, 7, whole) == (7, [1, 3])
        assert await first_rows.wait(5, 9, whole) == (9, [2])
        assert await first_rows.wait(5, 8, whole) is None

    run_in_virtual_time(run())
