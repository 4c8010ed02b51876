"""Which batches a worker is told of early: every one once, in time, and no further than promised."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.map_style.inline_heuristic import COMPUTES, UNKNOWN, WAITS
from concurrent_loader.map_style.lookahead_sampler import LookaheadSampler, Task
from concurrent_loader.map_style.sampler_state import OrderSource


class Batches:
    """A batch sampler that knows how far it was read."""

    def __init__(self, sizes):
        self.sizes, self.num_read = sizes, 0

    def __iter__(self):
        self.num_read = 0
        for number, size in enumerate(self.sizes):
            self.num_read += 1
            yield [number] * size


def tasks_of(batches, *, num_workers=0, num_items_ahead=0, batched=True, found=bytes(4)):
    source = OrderSource(batches, None)
    return LookaheadSampler(
        source, num_workers=num_workers, num_items_ahead=num_items_ahead, batched=batched, found=found
    )


@given(
    sizes=st.lists(st.integers(0, 9), max_size=60), num_workers=st.integers(0, 4), num_items_ahead=st.integers(1, 30)
)
def test_every_worker_is_told_of_what_it_gets_next(sizes, num_workers, num_items_ahead):
    batches = Batches(sizes)
    apart = max(1, num_workers)
    told = [{} for _ in range(apart)]
    furthest = 0
    given_numbers = []
    for task in tasks_of(batches, num_workers=num_workers, num_items_ahead=num_items_ahead):
        worker = task.number % apart
        assert task.indices == [task.number] * sizes[task.number]
        assert told[worker].pop(task.number, task.indices) == task.indices
        for number, indices in task.ahead:
            assert number % apart == worker
            assert number > task.number
            assert number not in told[worker]  # never twice
            assert indices == [number] * sizes[number]
            told[worker][number] = indices
            furthest = max(furthest, number)
        known = list(told[worker].values())
        rest = range(task.number + apart, len(sizes), apart)
        enough = sum(max(1, len(indices)) for indices in known) >= num_items_ahead
        assert enough or len(known) == len(rest)
        assert sorted(told[worker]) == list(rest[: len(known)])  # the very next ones
        assert sum(max(1, len(indices)) for indices in known[:-1]) < max(1, num_items_ahead)  # and not one more
        # To learn that a worker gets no more batches, those of the others in between are read.
        assert batches.num_read <= max(furthest, task.number) + 1 + apart
        given_numbers.append(task.number)
    assert given_numbers == list(range(len(sizes)))


def test_single_indices_weigh_one():
    first = next(iter(tasks_of(["a", "bcd", "e", "f"], num_items_ahead=2, batched=False)))
    assert (first.indices, first.ahead) == ("a", ((1, "bcd"), (2, "e")))


def test_nothing_ahead_reads_as_torch_does():
    batches = Batches([3] * 9)
    tasks = iter(tasks_of(batches))
    assert batches.num_read == 0
    for number in range(9):
        assert next(tasks).ahead == ()
        assert batches.num_read == number + 1


@given(
    num_batches=st.integers(0, 40),
    num_workers=st.integers(1, 4),
    changes=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([UNKNOWN, COMPUTES, WAITS])), max_size=40),
)
def test_a_worker_whose_items_compute_is_told_of_nothing_ahead(num_batches, num_workers, changes):
    batches, found = Batches([2] * num_batches), bytearray(4)
    tasks = iter(tasks_of(batches, num_workers=num_workers, num_items_ahead=5, found=found))
    told = [{} for _ in range(num_workers)]
    for number in range(num_batches):
        if number < len(changes):
            found[changes[number][0]] = changes[number][1]
        worker = number % num_workers
        task = next(tasks)
        if not isinstance(task, Task):  # then the worker has been given all that it was told of
            assert found[worker] == COMPUTES
            assert not told[worker]
            assert task == [number] * 2
            assert batches.num_read == number + 1
            continue
        assert (task.number, task.indices) == (number, [number] * 2)
        told[worker].pop(number, None)
        assert found[worker] != COMPUTES or not task.ahead
        for ahead, indices in task.ahead:
            assert ahead not in told[worker]
            assert ahead % num_workers == worker
            told[worker][ahead] = indices
            assert indices == [ahead] * 2
        rest = range(number + num_workers, num_batches, num_workers)
        assert sorted(told[worker]) == list(rest[: len(told[worker])])
        assert found[worker] == COMPUTES or len(told[worker]) in (3, len(rest))
    with pytest.raises(StopIteration):
        next(tasks)
    assert not any(told)


def test_an_infinite_sampler():
    def forever():
        while True:
            yield [1, 2, 3]

    tasks = iter(tasks_of(forever(), num_workers=2, num_items_ahead=4))
    assert [len(next(tasks).ahead) for _ in range(6)] == [2, 2, 1, 1, 1, 1]


def test_errors_are_raised_at_once_where_nothing_is_read_ahead():
    def failing():
        yield [1]
        raise OSError("hiccup")

    tasks = iter(tasks_of(failing(), num_items_ahead=10, found=bytes([COMPUTES])))
    assert next(tasks) == [1]
    with pytest.raises(OSError, match="hiccup"):
        next(tasks)


def test_errors_wait_for_their_turn_and_the_sampler_may_go_on():
    class Hiccup:
        def __init__(self):
            self.number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number == 3:
                raise OSError("hiccup")
            if self.number == 6:
                raise StopIteration
            return [self.number]

    tasks = iter(tasks_of(Hiccup(), num_items_ahead=10))
    assert [next(tasks).indices for _ in range(2)] == [[1], [2]]
    with pytest.raises(OSError, match="hiccup"):
        next(tasks)
    assert [task.indices for task in tasks] == [[4], [5]]


def test_iterations_are_told_apart():
    sampler = tasks_of([[1], [2]], num_items_ahead=1)
    assert [task.iteration for _ in range(2) for task in sampler] == [1, 1, 2, 2]


def test_a_task_travels():
    task = next(iter(tasks_of([[1], [2]], num_items_ahead=5)))
    assert pickle.loads(pickle.dumps(task)) == task


def test_counts_what_was_delivered():
    for found in (UNKNOWN, COMPUTES):
        tasks = iter(tasks_of([[1], [2, 2], [3]], num_items_ahead=1, found=bytes([found])))
        list(tasks)
        assert tasks.delivered() == 1
        tasks.failed()
        assert tasks.delivered() == 1
        assert tasks.order.position().num_batches == 3


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_a_buffer_that_is_filled_again_is_copied(make):
    class Refilled:
        def __iter__(self):
            buffer = make(2)
            for number in range(3):
                buffer[:] = number
                yield buffer

    tasks = tasks_of(Refilled(), num_items_ahead=100)
    assert [task.indices.tolist() for task in tasks] == [[0, 0], [1, 1], [2, 2]]
