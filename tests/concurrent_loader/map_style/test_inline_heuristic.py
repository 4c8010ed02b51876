"""Whether items wait or compute: what readings of the clocks mean."""

from __future__ import annotations

import pickle
import threading

import pytest

from concurrent_loader.map_style import inline_heuristic
from concurrent_loader.map_style.inline_heuristic import (
    COMPUTES,
    SLICE_ITEMS,
    UNKNOWN,
    WAITS,
    Findings,
    InlineHeuristic,
    Reading,
)


class Clocks:
    """Clocks of a thread, moved by hand."""

    def __init__(self):
        self.wall_s, self.cpu_s, self.queued_s = 100.0, 5.0, 7.0

    def read(self, *, with_queue):
        return Reading(self.wall_s, self.cpu_s, self.queued_s if with_queue else 0.0)

    def compute(self, seconds):
        self.wall_s += seconds
        self.cpu_s += seconds

    def wait(self, seconds):
        self.wall_s += seconds

    def displaced(self, seconds):
        self.wall_s += seconds
        self.queued_s += seconds


class Subject:
    """A heuristic, and the items that it is shown."""

    def __init__(self, known=UNKNOWN):
        self.clocks = Clocks()
        self.heuristic = InlineHeuristic(known, clock=lambda: self.clocks.wall_s, read=self.clocks.read)

    def show(self, *items):
        """Gets items in the caller's thread, each a function of the clocks; as many as one part has."""
        self.heuristic.begin()
        for item in items:
            item(self.clocks)
        return self.heuristic.end(len(items))

    def show_singles(self, item, count):
        for _ in range(count):
            assert self.heuristic.part_items == 1
            self.show(item)

    def calm(self):
        """Shows items that compute, until parts have many items."""
        self.show_singles(lambda clocks: clocks.compute(0.001), 8)
        assert (self.heuristic.known, self.heuristic.part_items) == (COMPUTES, SLICE_ITEMS)
        return self


def compute(clocks):
    clocks.compute(0.001)


def quick(clocks):
    clocks.compute(2e-6)


def wait(clocks):
    clocks.wait(0.03)


def displaced(clocks):
    clocks.compute(0.001)
    clocks.displaced(0.02)


def short_wait(clocks):
    clocks.wait(0.0002)


def wait_and_compute(clocks):
    clocks.wait(0.001)
    clocks.compute(0.003)


@pytest.mark.parametrize("item", [compute, quick, displaced, short_wait, wait_and_compute])
def test_eight_items_in_a_row_that_do_not_wait_compute(item):
    subject = Subject()
    subject.show_singles(item, 7)
    assert subject.heuristic.known == UNKNOWN
    assert subject.show(item)
    assert subject.heuristic.known == COMPUTES
    assert not subject.heuristic.uses_threads()


def test_two_items_that_wait_are_enough():
    subject = Subject()
    assert not subject.show(wait)
    assert not subject.heuristic.uses_threads()
    assert subject.show(wait)
    assert (subject.heuristic.known, subject.heuristic.uses_threads()) == (WAITS, True)


def test_the_first_item_may_wait_alone():
    subject = Subject()
    subject.show(wait)  # it opened a file
    subject.show_singles(compute, 8)
    assert subject.heuristic.known == COMPUTES


def test_one_slow_item_among_many_changes_nothing():
    subject = Subject().calm()
    subject.show(*[quick] * 32)
    assert subject.heuristic.is_quick
    wait(subject.clocks)
    subject.heuristic.suspect()  # as a caller does that has only looked at the wall clock
    assert not subject.heuristic.is_quick
    subject.show_singles(quick, 8)
    subject.show(*[quick] * 32)
    assert (subject.heuristic.known, subject.heuristic.is_quick) == (COMPUTES, True)


def test_items_that_begin_to_wait_are_noticed_in_parts_as_well():
    subject = Subject().calm()
    subject.show(*[compute] * 32)
    assert (subject.heuristic.is_quick, subject.heuristic.part_items) == (False, SLICE_ITEMS)
    subject.show(*[wait] * 32)
    assert subject.heuristic.known == COMPUTES
    subject.show_singles(wait, 1)
    assert subject.show(wait)
    assert subject.heuristic.uses_threads()


def test_threads_are_left_for_a_trial_whose_cost_is_bounded():
    subject = Subject(WAITS)
    heuristic, clocks = subject.heuristic, subject.clocks
    assert heuristic.uses_threads()
    num_trials, began, inline_s = 0, clocks.wall_s, 0.0
    while clocks.wall_s < began + 300:
        clocks.displaced(0.1)  # what threads do meanwhile
        if not heuristic.uses_threads():
            num_trials += 1
            before = clocks.wall_s
            assert not subject.show(wait)
            inline_s += clocks.wall_s - before
            assert heuristic.uses_threads()
    assert num_trials > 10
    assert inline_s < 0.01 * 300


def test_a_trial_finds_out_that_items_wait_no_longer():
    subject = Subject(WAITS)
    subject.clocks.displaced(0.6)
    assert not subject.heuristic.uses_threads()
    subject.show_singles(quick, 8)
    assert (subject.heuristic.known, subject.heuristic.uses_threads()) == (COMPUTES, False)
    subject.show(*[quick] * 32)
    assert subject.heuristic.is_quick


def test_what_an_earlier_iteration_found_is_believed():
    assert Subject(COMPUTES).heuristic.part_items == SLICE_ITEMS
    assert Subject(WAITS).heuristic.uses_threads()


def test_displaced_threads_do_not_wait_in_parts_either():
    subject = Subject().calm()
    subject.show(*[displaced] * 32)
    subject.show_singles(displaced, 8)
    assert (subject.heuristic.known, subject.heuristic.part_items) == (COMPUTES, SLICE_ITEMS)


def test_a_wait_is_seen_by_the_clocks_of_this_thread():
    start, lock = inline_heuristic._read_thread(with_queue=True), threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=0.02)
    end = inline_heuristic._read_thread(with_queue=True)
    assert end.wall_s - start.wall_s >= 0.02
    assert 0 <= end.cpu_s - start.cpu_s < end.wall_s - start.wall_s
    assert 0 <= end.queued_s - start.queued_s <= end.wall_s - start.wall_s


def test_a_system_without_figures_of_the_scheduler(monkeypatch, tmp_path):
    for content in (None, b"", b"1 x 3"):
        file = tmp_path / "schedstat"
        if content is not None:
            file.write_bytes(content)
        monkeypatch.setattr(inline_heuristic, "_SCHEDULER_FILE", str(file))
        assert inline_heuristic._read_thread(with_queue=True).queued_s == 0


def test_findings_are_shared():
    alone, shared = Findings(1, is_shared=False), Findings(3, is_shared=True)
    alone.bytes[0] = WAITS
    shared.bytes[2] = COMPUTES
    assert (list(alone.bytes), list(shared.bytes)) == ([WAITS], [UNKNOWN, UNKNOWN, COMPUTES])
    assert list(pickle.loads(pickle.dumps(alone)).bytes) == [WAITS]
