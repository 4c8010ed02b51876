"""Observers of a running loader."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from concurrent_loader import ConcurrentDataLoader, ConfigurationError, observe


class Keep:
    def __init__(self):
        self.snapshots, self.arrived = [], threading.Event()

    def observe(self, snapshot):
        self.snapshots.append(snapshot)
        self.arrived.set()


class Broken:
    def observe(self, snapshot):
        raise RuntimeError("no network")


def test_every_iteration_ends_with_a_snapshot(dataset) -> None:
    loader, keep = ConcurrentDataLoader(dataset, 50), Keep()
    with observe(loader, keep, every_s=1000, name="train"):
        for _ in range(2):
            keep.arrived.clear()
            list(loader)
            assert keep.arrived.wait(30)
    assert [(each.stats.num_batches, each.place.epoch, each.place.step) for each in keep.snapshots] == [
        (5, 0, 5),
        (10, 1, 5),
    ]
    last = keep.snapshots[-1]
    assert last.stats.num_samples - last.before.num_samples == 203
    assert sum(last.stats.batch_waits) == 10
    assert (last.name, last.rank, last.place.num_steps) == ("train", 0, 5)


def test_snapshots_at_intervals_show_the_buffer(dataset) -> None:
    loader, keep = ConcurrentDataLoader(dataset, 50, prefetch_batches=3), Keep()
    batches = iter(loader)
    next(batches)
    with observe(loader, keep, every_s=0.001):
        assert keep.arrived.wait(30)
    batches.close()
    assert keep.snapshots[0].pipeline.max_batches == 3
    assert keep.snapshots[0].place.step == 1


def test_a_broken_observer_is_dropped_and_the_others_stay(dataset, caplog) -> None:
    loader, keep = ConcurrentDataLoader(dataset, 50), Keep()
    with caplog.at_level(logging.WARNING), observe(loader, Broken(), keep, every_s=1000):
        assert len(list(loader)) == 5
    assert len(keep.snapshots) == 1
    assert [record.getMessage() for record in caplog.records].count(
        "an observer of loader 'loader' failed and gets no more snapshots"
    ) == 1


def test_an_observation_keeps_no_loader_and_ends_with_it(dataset) -> None:
    loader = ConcurrentDataLoader(dataset, 50)
    observation = observe(loader, Keep(), every_s=1000)
    known = weakref.ref(loader)
    del loader
    gc.collect()
    assert known() is None
    observation._thread.join(30)
    assert not observation._thread.is_alive()


def test_the_drop_in_is_observed_too() -> None:
    loader, keep = ConcurrentDataLoader(list(range(10)), 4), Keep()
    with observe(loader, keep, every_s=1000):
        list(loader)
    (snapshot,) = keep.snapshots
    assert (snapshot.stats.num_batches, sum(snapshot.stats.batch_waits)) == (3, 3)
    assert 0 < snapshot.wait_share <= 1


@pytest.mark.parametrize(
    ("observers", "options"), [([Keep()], {"every_s": 0}), ([Keep()], {"name": ""}), ([print], {})]
)
def test_wrong_arguments(dataset, observers, options) -> None:
    with pytest.raises(ConfigurationError):
        observe(ConcurrentDataLoader(dataset), *observers, **options)
