"""Looks ahead in a plan for shards to fetch, in bounded steps: below the pipeline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

__all__ = ["Lookahead"]

_MAX_SAMPLES = 1 << 20  # 0.1 s of planning
_MAX_STEPS = 16_384  # a mixture is planned step by step
_NEVER = sys.maxsize


class Lookahead:
    """The shards that are needed next, one of them at hand.

    Args:
        upcoming: From `Plan.upcoming`.
        global_batch_size: Samples per step, all ranks together.

    Attributes:
        max_steps: How far ahead of the current step to look for shards to fetch. A manifest may claim 10^12 samples in
            one shard: looking for the next shard would then never end.

    For one task at a time.
    """

    def __init__(self, upcoming: Iterator[tuple[int, int | None]], *, global_batch_size: int) -> None:
        self.max_steps = max(1, min(_MAX_SAMPLES // global_batch_size, _MAX_STEPS))
        self._upcoming = upcoming
        self._next: tuple[int, int] | None = None
        self._seen_until = -1

    async def peek(self, last_step: int) -> tuple[int, int] | None:
        """Returns (step of first use, shard) of the next shard; None if no other is first used up to a step.

        The shard may be one of a later step. The event loop has its turn after each block of the plan.
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
        """Makes room for the shard after the one at hand."""
        self._next = None
