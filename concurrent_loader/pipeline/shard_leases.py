"""Leases the shards of one epoch: acquires each shard before its first use and releases it after its last one."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection
from typing import Any

from concurrent_loader.datasets.protocol import OpenUnit, Source
from concurrent_loader.order.protocol import BatchIndex, Plan
from concurrent_loader.pipeline.lookahead import Lookahead
from concurrent_loader.pipeline.prefetcher import Prefetcher
from concurrent_loader.pipeline.slices import count_units
from concurrent_loader.stats.pipeline_status import MAX_SLOW, SlowRequest

__all__ = ["ShardLeases"]

_MAX_AHEAD = 1024  # shards or objects prefetched, however small

_HEAD_START_S = 1.0  # maximum delay of prefetching behind the first batch's shards


class ShardLeases:
    """Prefetches shards within a byte budget, and releases them when no later batch needs them.

    All methods must be called on the dataset's event loop, if they do not say otherwise.

    Args:
        source: Source of the dataset's units, called shards here.
        plan: Order of the epoch.
        start_step: First step.
        rank: Rank of this process.
        world_size: Number of ranks.
        worker: Number of this worker; see `Plan.upcoming`.
        num_workers: Number of workers that share the rank's steps.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        *,
        start_step: int,
        rank: int,
        world_size: int,
        worker: int,
        num_workers: int,
    ) -> None:
        self._source = source
        self._plan = plan
        self._rank = rank
        self._world_size = world_size
        self._prefetcher = Prefetcher(source)
        self._lookahead = Lookahead(
            plan.upcoming(start_step, rank, world_size, worker=worker, num_workers=num_workers),
            global_batch_size=plan.global_batch_size,
        )
        self._ahead: list[tuple[int, int]] = []  # (step of first use, bytes) of prefetched shards; a heap
        self._ahead_bytes = 0
        self._last_uses: list[tuple[int, int]] = []  # (step of last use, shard); a heap
        self._left: dict[int, tuple[int, int]] = {}  # shard → (samples still to be used, all samples used), at most

    @property
    def ahead_bytes(self) -> int:
        """Bytes of shards requested ahead of their first use. For any thread."""
        return self._ahead_bytes

    def slowest(self, now_s: float) -> tuple[SlowRequest, ...]:
        """Returns the fetches under way that began first, five at most. For any thread."""
        first = heapq.nsmallest(MAX_SLOW, self._prefetcher.under_way())
        return tuple(SlowRequest(self._source.key(unit), max(0.0, now_s - since_s)) for since_s, unit in first)

    def __getitem__(self, shard: int) -> asyncio.Future[OpenUnit | Exception]:
        """Returns the future of a prefetched shard; see `Prefetcher.__getitem__`."""
        return self._prefetcher[shard]

    async def prefetch(
        self,
        step: int,
        start: Callable[[Any], asyncio.Task[Any]],
        *,
        ahead_bytes: int,
        deferred: Collection[int] = frozenset(),
    ) -> None:
        """Starts fetching shards: those that the last call deferred, those of a step, and within a budget later ones.

        A shard that the step needs is fetched even if it is larger than the budget.

        Args:
            step: Step about to be made.
            start: Function that starts a task.
            ahead_bytes: Budget for shards of later steps; 0 fetches this step's shards only.
            deferred: Shards of the step that only the next call starts fetching, none by default.
        """
        self._prefetcher.prefetch_deferred(start)
        while self._ahead and self._ahead[0][0] <= step:
            self._ahead_bytes -= heapq.heappop(self._ahead)[1]
        last_step = step + self._lookahead.max_steps if ahead_bytes else step
        while (upcoming := await self._lookahead.peek(last_step)) is not None:
            first_use, shard = upcoming
            size = self._source.num_bytes(shard)
            if first_use > step and (self._ahead_bytes + size > ahead_bytes or len(self._ahead) >= _MAX_AHEAD):
                return
            self._lookahead.take()
            if first_use > step:
                heapq.heappush(self._ahead, (first_use, size))
                self._ahead_bytes += size
            if shard in deferred:
                self._prefetcher.defer(shard)
            else:
                self._prefetcher.prefetch(shard, start)
            last_use = self._plan.last_use_step(shard, self._rank, self._world_size)
            heapq.heappush(self._last_uses, (last_use, shard))

    async def wait_for_first(self) -> None:
        """Waits until the first shard has arrived, for one second at most.

        Until then the first batch's shards do not share the bandwidth with prefetched ones. If processors or the
        network are the limit, the first batch comes earlier; otherwise prefetching starts one shard transfer later.
        Deferred shards do not arrive: there must be others, or the wait takes the whole second.
        """
        if futures := self._prefetcher.all():
            await asyncio.wait(futures, timeout=_HEAD_START_S, return_when=asyncio.FIRST_COMPLETED)

    def release_after(self, index: BatchIndex) -> None:
        """Releases the shards that no batch after this one needs, and tells the cache about the progress."""
        used = index.shard[: len(index) - index.num_padded]
        for shard, count in zip(*count_units(used), strict=True):
            left, num_used = (
                self._left.get(shard) or (self._plan.max_samples_used(shard, self._rank, self._world_size),) * 2
            )
            self._left[shard] = left - count, num_used
            if left == count:
                self._release(shard, done_for_epoch=num_used == self._source.num_samples(shard))
        self._source.set_step(index.step + 1)
        while self._last_uses and self._last_uses[0][0] <= index.step:
            self._release(heapq.heappop(self._last_uses)[1])

    def release_all(self) -> None:
        """Releases every shard."""
        self._prefetcher.release_all()

    def _release(self, shard: int, *, done_for_epoch: bool = False) -> None:
        self._left.pop(shard, None)
        self._prefetcher.release(shard, done_for_epoch=done_for_epoch)
