"""torch's iterator without its profiler range, unless somebody looks."""

from __future__ import annotations

import pytest
import torch

from concurrent_loader import ConcurrentDataLoader
from concurrent_loader.map_style.torch_iterator import next_batch_of


class Batches:
    """An iterator as torch makes it: `__next__` does something around `_next_data`."""

    def __init__(self):
        self.num_ranges = 0
        self.left = [3, 2, 1]

    def _next_data(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def __next__(self):
        self.num_ranges += 1
        return self._next_data()


def test_the_range_is_left_out_unless_a_profiler_runs(monkeypatch):
    batches = Batches()
    next_batch = next_batch_of(batches)
    assert (next_batch(), batches.num_ranges) == (1, 0)
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    assert (next_batch(), batches.num_ranges) == (2, 1)
    monkeypatch.undo()
    assert (next_batch(), batches.num_ranges) == (3, 1)
    with pytest.raises(StopIteration):
        next_batch()


def test_another_torch_may_have_no_such_method():
    batches = iter([5, 6])
    next_batch = next_batch_of(batches)
    assert [next_batch(), next_batch()] == [5, 6]


def test_a_profiler_sees_each_batch():
    batches = iter(ConcurrentDataLoader(torch.arange(6), 2))
    next(batches)
    with torch.autograd.profiler.profile() as profile:
        next(batches)
    names = [event.name for event in profile.function_events]
    assert [name for name in names if name.startswith("enumerate(DataLoader)#")] == [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    ]
