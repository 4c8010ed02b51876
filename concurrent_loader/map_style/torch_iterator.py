"""Takes the next batch from torch's iterator, without the cost of its profiler range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

__all__ = ["next_batch_of"]


def next_batch_of(batches: Any) -> Callable[[], Any]:
    """Returns a function that returns the next batch of torch's iterator, with the same exceptions.

    ``__next__`` of torch's iterators opens a `record_function` range around ``_next_data``, which does the work. The
    range takes 7 µs, more than everything else for a batch of one small item, and is of no use unless a profiler runs.
    Skipping it makes up for the loader's own work per batch.

    Args:
        batches: Iterator of torch's DataLoader over a map-style dataset.
    """
    next_batch: Callable[[], Any] = batches.__next__
    next_data: Callable[[], Any] | None = getattr(batches, "_next_data", None)
    if next_data is None:
        return next_batch
    return lambda: next_batch() if profiler._is_profiler_enabled else next_data()
