"""Which thread the drop-in loader gets items in: the caller's while they compute, others while they wait."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from concurrent_loader import ConcurrentDataLoader
from concurrent_loader.map_style import inline_heuristic
from concurrent_loader.map_style.inline_heuristic import COMPUTES, WAITS, Reading


class Clocks:
    """Clocks that items move; those of all threads are the same."""

    def __init__(self):
        self.wall_s = self.cpu_s = 0.0

    def read(self, *, with_queue):
        return Reading(self.wall_s, self.cpu_s, 0.0)


@pytest.fixture
def clocks(monkeypatch, no_leaks):
    clocks = Clocks()
    monkeypatch.setattr(inline_heuristic, "_read_thread", clocks.read)
    monkeypatch.setattr(inline_heuristic, "perf_counter", lambda: clocks.wall_s)
    return clocks


class Items(Dataset):
    """Each item is (index, name of the thread that asked); those in ``waiting`` wait, by the clock."""

    def __init__(self, length, clocks, waiting=()):
        self.length, self.clocks, self.waiting = length, clocks, waiting
        self.together = None  # a barrier for those that are asked for by other threads

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        thread = threading.current_thread()
        if index in self.waiting:
            if thread is threading.main_thread():
                self.clocks.wall_s += 0.03
            elif self.together is not None:
                self.together.wait(60)
        return index, thread.name


class WholeBatches(Items):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def as_list(items):
    return items


def read(loader):
    """The threads that got the items, which have to come in order."""
    items = [item for batch in loader for item in (batch if isinstance(batch, list) else [batch])]
    assert [index for index, _ in items] == list(range(len(items)))
    return [thread for _, thread in items]


@pytest.mark.parametrize("batch_size", [None, 1, 8, 100])
@pytest.mark.parametrize("make", [Items, WholeBatches, lambda *args: Subset(Items(*args), range(400))])
def test_items_that_compute_are_got_by_torch_in_the_callers_thread(clocks, make, batch_size):
    before = threading.active_count()
    loader = ConcurrentDataLoader(make(400, clocks), batch_size, collate_fn=as_list)
    batches = iter(loader)
    seen = read(batches)
    assert seen == ["MainThread"] * 400
    assert threading.active_count() == before
    assert loader._findings.bytes[0] == COMPUTES


@pytest.mark.parametrize("batch_size", [None, 1, 8, 100])
def test_items_that_wait_are_under_way_at_once_after_two_of_them(clocks, batch_size):
    dataset = Items(402, clocks, range(402))
    dataset.together = threading.Barrier(16)
    loader = ConcurrentDataLoader(dataset, batch_size, in_flight=16, collate_fn=as_list)
    assert read(loader) == ["MainThread"] * 2 + ["dataset-item"] * 400
    assert loader._findings.bytes[0] == WAITS  # which the next epoch begins with
    dataset.together = None
    assert read(loader) == ["dataset-item"] * 402


def test_batches_that_wait_are_under_way_at_once(clocks):
    loader = ConcurrentDataLoader(WholeBatches(64, clocks, range(64)), 8, in_flight=16, collate_fn=as_list)
    assert read(loader) == ["MainThread"] * 16 + ["dataset-item"] * 48


@pytest.mark.parametrize("batch_size", [None, 1, 8, 100])
def test_one_slow_item_does_not_change_the_way_of_the_others(clocks, batch_size):
    loader = ConcurrentDataLoader(Items(2000, clocks, {0, 999}), batch_size, collate_fn=as_list)
    assert read(loader) == ["MainThread"] * 2000
    assert loader._findings.bytes[0] == COMPUTES


@pytest.mark.parametrize("batch_size", [None, 8, 100])
def test_items_that_begin_to_wait_get_threads(clocks, batch_size):
    loader = ConcurrentDataLoader(Items(800, clocks, range(301, 800)), batch_size, collate_fn=as_list)
    seen = read(loader)
    assert set(seen[:301]) == {"MainThread"}
    num_in_turn = seen.count("MainThread") - 301
    assert 2 <= num_in_turn <= inline_heuristic.SLICE_ITEMS + 2
    assert set(seen[301 + num_in_turn :]) == {"dataset-item"}


@pytest.mark.parametrize("batch_size", [None, 8, 100])
def test_items_that_wait_no_longer_come_back_and_the_sampler_is_not_read_ahead(clocks, batch_size):
    dataset = Items(1000, clocks, range(100))
    num_read = []
    sampler = (num_read.append(index) or index for index in range(1000))
    loader = ConcurrentDataLoader(dataset, batch_size, sampler=sampler, collate_fn=as_list, in_flight=8)
    seen, furthest = [], []
    for batch in loader:
        items = batch if isinstance(batch, list) else [batch]
        seen += [thread for _, thread in items]
        furthest.append(len(num_read) - len(seen))
        clocks.wall_s += 10  # a trial is due
    assert set(seen[-600:]) == {"MainThread"}
    assert "dataset-item" in seen[:200]
    assert furthest[0] >= 16
    assert furthest[-1] == 0


def test_a_trial_takes_one_item_that_waits(clocks):
    dataset = Items(1000, clocks, range(1000))
    loader = ConcurrentDataLoader(dataset, 10, collate_fn=as_list, in_flight=10)
    seen = []
    for number, batch in enumerate(loader):
        seen += [thread for _, thread in batch]
        if number == 50:
            clocks.wall_s += 10
    in_turn = [number for number, thread in enumerate(seen) if thread == "MainThread"]
    assert in_turn[:2] == [0, 1]
    assert len(in_turn) == 3
    assert 510 < in_turn[2] < 540  # when what had been started was delivered


def test_each_index_is_asked_for_once_whatever_is_found_out(clocks):
    class Moody(Items):
        asked: ClassVar = Counter()

        def __getitem__(self, index):
            self.asked[index] += 1
            self.clocks.wall_s += 0.05 if index % 97 < 48 else 0.0
            return super().__getitem__(index)

    dataset = Moody(3000, clocks)
    assert len(read(ConcurrentDataLoader(dataset, 7, collate_fn=as_list, in_flight=4))) == 3000
    assert set(dataset.asked.values()) == {1}


class InWorker(Items):
    def __getitem__(self, index):
        assert get_worker_info().dataset is self
        return super().__getitem__(index)


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("waiting", "found"), [(range(0), COMPUTES), (range(200), WAITS)])
def test_workers_say_what_they_have_found_out(clocks, waiting, found, persistent):
    loader = ConcurrentDataLoader(
        InWorker(200, clocks, waiting), 10, num_workers=2, collate_fn=as_list, persistent_workers=persistent,
        multiprocessing_context="fork",  # so that workers have these clocks
    )  # fmt: skip
    for in_turn in {COMPUTES: (200, 200), WAITS: (4, 0)}[found]:  # two items in each worker
        assert read(loader).count("MainThread") == in_turn
        assert list(loader._findings.bytes) == [found, found]
    del loader


def test_loaders_that_travel_find_out_for_themselves(clocks):
    loader = ConcurrentDataLoader(torch.arange(20), 2)
    assert len(list(loader)) == 10
    assert pickle.loads(pickle.dumps(loader))._findings is None
