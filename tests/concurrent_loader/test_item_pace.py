"""When items are worth a thread."""

from __future__ import annotations

import threading

import pytest
from torch.utils.data import Dataset

from concurrent_loader import ConcurrentDataLoader, item_pace
from concurrent_loader.item_pace import ItemPace


def told(times):
    pace = ItemPace()
    for took_s in times:
        pace.took(took_s)
    return pace


@pytest.mark.parametrize(
    ("times", "quick"),
    [
        ([], False),
        ([1e-6] * 63, False),  # not enough to say
        ([1e-6] * 64, True),
        ([1e-6] * 20 + [0.005] * 44, True),  # threads that waited for each other
        ([1e-6] * 15 + [0.03] * 49, False),
        ([0.03] * 100 + [1e-6] * 64, True),  # the first ones opened connections
        ([1e-3] * 64, False),
    ],
)
def test_quick_is_what_a_thread_costs_more_than(times, quick):
    assert told(times).is_quick == quick


def test_slow_once_is_slow_for_good():
    pace = told([1e-6] * 64)
    pace.took_in_turn(0.0005)
    assert pace.is_quick
    pace.took_in_turn(0.03)
    assert not pace.is_quick
    for _ in range(64):
        pace.took(1e-6)
    assert not pace.is_quick


class Where(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return threading.current_thread().name


@pytest.mark.parametrize(("quick_s", "where"), [(60.0, "MainThread"), (0.0, "dataset-item")])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_quick_items_are_got_in_the_callers_thread(monkeypatch, quick_s, where, batch_size):
    monkeypatch.setattr(item_pace, "_QUICK_S", quick_s)
    seen = list(ConcurrentDataLoader(Where(), batch_size=batch_size, in_flight=4))
    assert seen[0] in ("dataset-item", ["dataset-item"] * 8)
    assert seen[-1] in (where, [where] * 8)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_items_that_become_slow_get_threads_in_the_middle_of_a_batch(monkeypatch, batch_size):
    monkeypatch.setattr(item_pace, "_QUICK_S", 60.0)
    monkeypatch.setattr(item_pace, "_SLOW_S", 60.0)
    together = threading.Barrier(3)

    class Turning(Where):
        def __getitem__(self, index):
            if index == 301:
                monkeypatch.setattr(item_pace, "_SLOW_S", 0.0)
            if 302 <= index < 305:
                together.wait(30)
            return index, super().__getitem__(index)

    loader = ConcurrentDataLoader(Turning(), batch_size=batch_size, in_flight=4, collate_fn=as_it_is)
    items = list(loader) if batch_size is None else [item for batch in loader for item in batch]
    assert [index for index, _ in items] == list(range(400))
    assert items[301][1] == "MainThread"
    assert {where for _, where in items[302:]} == {"dataset-item"}


def as_it_is(items):
    return items
