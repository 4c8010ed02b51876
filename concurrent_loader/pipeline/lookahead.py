"""Looks ahead in a plan for the next shards to fetch, in bounded steps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

__all__ = ["Lookahead"]

_MAX_SAMPLES = 1 << 20  # 0.1 s of planning
_MAX_STEPS = 16_384  # a mixture is planned step by step
_NEVER = sys.maxsize


class Lookahead:
    """Iterates over the shards that are needed next, with one shard of lookahead.

    Use an instance from one task at a time.

    Args:
        upcoming: Iterator returned by `Plan.upcoming`.
        global_batch_size: Number of samples per step, over all ranks.

    Attributes:
        max_steps: Maximum number of steps to look ahead for shards. A manifest may claim 10^12 samples in one shard,
            and the search for the next shard would then never end.
    """

    def __init__(self, upcoming: Iterator[tuple[int, int | None]], *, global_batch_size: int) -> None:
        self.max_steps = max(1, min(_MAX_SAMPLES // global_batch_size, _MAX_STEPS))
        self._upcoming = upcoming
        self._next: tuple[int, int] | None = None
        self._seen_until = -1

    async def peek(self, last_step: int) -> tuple[int, int] | None:
        """Returns (step of first use, shard) of the next shard.

        The shard may belong to a later step. The event loop runs other tasks after each block of the plan.

        Args:
            last_step: Step up to which to search.

        Returns:
            None if no further shard is first used up to ``last_step``.
        """
        while self._next is None and self._seen_until < last_step:
            step, shard = next(self._upcoming, (_NEVER, None))
            if shard is not None:
                self._next = step, shard
            else:
                self._seen_until = step
                await asyncio.sleep(0)
        return self._next

    def take(self) -> None:
        """Moves on to the next shard."""
        self._next = None
