"""The drop-in loader with worker processes, against its oracle, torch's DataLoader."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import re
import subprocess
import sys
import threading
import traceback

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.map_style.inline_heuristic import COMPUTES, UNKNOWN, WAITS
from concurrent_loader.storage import ShardWriter

# From Python 3.12 on; torch's default way to start workers is fork until 3.14 changes it.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_left(request):
    """Python's resource tracker, which the first spawn starts, stays."""
    if "spawn" not in request.node.name:
        request.getfixturevalue("no_leaks")


class Squares(Dataset):
    def __init__(self, length, failing=(), error=ValueError):
        self.length, self.failing, self.error = length, frozenset(failing), error

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.failing:
            raise self.error(f"item {index} is bad")
        return index, torch.full((3,), index**2), get_worker_info().id


class Async(Squares):
    def __getitem__(self, index):
        raise AssertionError("the coroutine was to be used")

    async def getitem_async(self, index):
        return super().__getitem__(index)


class Batched(Squares):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def as_list(items):
    return items


def plain(batch):
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(one) for one in batch] if isinstance(batch, (list, tuple)) else batch


def outcomes(loader):
    """Everything a consumer sees who goes on after errors; of an error its type and the data set's own words."""
    seen = []
    batches = iter(loader)
    while True:
        try:
            seen.append(plain(next(batches)))
        except StopIteration as end:
            traceback.clear_frames(end.__traceback__)  # otherwise torch's workers stay until they are collected
            return seen
        except Exception as error:  # noqa: BLE001
            text = str(error)
            seen.append((type(error), text.splitlines()[0], text.splitlines()[-1], "in __getitem__" in text))
            traceback.clear_frames(error.__traceback__)


def both(arguments, make=Squares, *dataset, epochs=1, **ours):
    found = []
    for cls in (DataLoader, ConcurrentDataLoader):
        torch.manual_seed(5)
        kind, more = (Squares, {}) if cls is DataLoader else (make, ours)
        loader = cls(kind(*dataset), **arguments(), **more)
        found.append([outcomes(loader) for _ in range(epochs)] + [torch.get_rng_state().tolist()])
        del loader
    return found


class TestSameAsTorch:
    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def test_same_batches_and_errors_by_the_same_workers(self, known_items, data):
        length = data.draw(st.integers(1, 40), "length")
        size, drop_last = data.draw(st.integers(1, 7), "batch_size"), data.draw(st.booleans(), "drop_last")
        num_workers = data.draw(st.integers(1, 2), "num_workers")
        seed = data.draw(st.none() | st.integers(0, 3), "seed")
        drawn = data.draw(st.integers(1, 40), "drawn with replacement")
        kind = data.draw(st.sampled_from(["shuffle", "in turn", "replacement", "batches", "single"]), "order")
        failing = data.draw(st.lists(st.integers(0, length - 1), max_size=1), "failing")
        error = data.draw(st.sampled_from([ValueError, KeyError, OSError]), "error")
        persistent = data.draw(st.booleans(), "persistent_workers")
        prefetch_factor = data.draw(st.none() | st.integers(1, 3), "prefetch_factor")
        collate = data.draw(st.sampled_from([None, as_list]), "collate_fn")
        lists = data.draw(st.lists(st.lists(st.integers(0, length - 1), min_size=1, max_size=5), max_size=9), "batches")

        def arguments():
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            order = {
                "shuffle": {"batch_size": size, "drop_last": drop_last, "shuffle": True},
                "in turn": {"batch_size": size, "drop_last": drop_last},
                "replacement": {"batch_size": size, "sampler": RandomSampler(range(length), True, drawn, generator)},
                "batches": {"batch_sampler": lists},
                "single": {"batch_size": None, "shuffle": True},
            }
            return {
                **order[kind],
                "generator": generator,
                "num_workers": num_workers,
                "persistent_workers": persistent,
                "prefetch_factor": prefetch_factor,
                "collate_fn": collate,
            }

        in_flight = data.draw(st.sampled_from([1, 3, 64]), "in_flight")
        make = data.draw(st.sampled_from([Squares, Batched, Async]), "data set")
        known = data.draw(st.sampled_from([UNKNOWN, COMPUTES, WAITS]), "known of the items")
        with known_items(known):
            theirs, ours = both(arguments, make, length, failing, error, epochs=1 + persistent, in_flight=in_flight)
        assert ours == theirs

    def test_out_of_order_every_item_comes_once(self):
        for num_workers in (1, 2):
            loader = ConcurrentDataLoader(Squares(50), batch_size=4, num_workers=num_workers, in_order=False)
            assert sorted(index for indices, _, _ in loader for index in indices.tolist()) == list(range(50))

    def test_workers_started_by_spawn(self):
        dataset = TensorDataset(torch.arange(20), torch.arange(20) ** 2)
        torch.manual_seed(1)
        theirs = plain(list(DataLoader(dataset, 3, shuffle=True)))
        torch.manual_seed(1)
        loader = ConcurrentDataLoader(
            dataset, 3, shuffle=True, num_workers=1, multiprocessing_context="spawn", in_flight=4
        )
        assert plain(list(loader)) == theirs

    def test_an_iterable_data_set_is_split_by_its_workers_as_with_torch(self):
        class Split(IterableDataset):
            def __iter__(self):
                info = get_worker_info()
                assert info.dataset is self
                return iter(range(info.id, 11, info.num_workers))

        def make(cls):
            return plain(list(cls(Split(), batch_size=2, num_workers=2, multiprocessing_context="fork")))

        assert make(ConcurrentDataLoader) == make(DataLoader)


class Seeds(Dataset):
    """What an item may know of its worker: seeds and data set."""

    note = None

    def __len__(self):
        return 6

    def __getitem__(self, index):
        info = get_worker_info()
        assert info.dataset is self
        return info.id, info.num_workers, info.seed, torch.initial_seed(), torch.get_num_threads(), self.note


def write_note(worker_id):
    info = get_worker_info()
    info.dataset.note = f"worker {worker_id} of {type(info.dataset).__name__}, {random.random()}"


def test_what_a_worker_knows_of_itself():
    def make(cls):
        return list(cls(Seeds(), 2, num_workers=2, collate_fn=as_list, worker_init_fn=write_note, generator=seeded()))

    def seeded():
        return torch.Generator().manual_seed(3)

    ours = make(ConcurrentDataLoader)
    assert ours == make(DataLoader)
    assert ours[0][0][5].startswith("worker 0 of Seeds")


def test_an_error_of_worker_init_fn():
    def wrong(worker_id):
        raise LookupError(f"no place for {worker_id}")

    theirs, ours = (
        outcomes(cls(Squares(4), batch_size=4, num_workers=1, worker_init_fn=wrong, multiprocessing_context="fork"))
        for cls in (DataLoader, ConcurrentDataLoader)
    )
    assert ours == theirs
    assert ours[0][2] == "LookupError: no place for 0"


@pytest.mark.usefixtures("items_wait")
def test_the_errors_tell_where_they_were_raised_and_workers_end():
    def load():
        seen = []
        try:
            for batch in ConcurrentDataLoader(Squares(20, [9], KeyError), 4, num_workers=2):
                seen.append(batch[0].tolist())
        except KeyError as error:
            return seen, str(error)

    seen, said = load()
    assert not multiprocessing.active_children()  # at once, not when they are collected
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert said.startswith("Caught KeyError in DataLoader worker process 0.\nOriginal Traceback")
    assert "in __getitem__\n" in said
    assert said.rstrip().endswith("KeyError: 'item 9 is bad'")


class Meeting(Squares):
    """Items of a worker wait for each other."""

    def __init__(self, length, together):
        super().__init__(length)
        self.together = together
        self.barrier = None

    def __getitem__(self, index):
        self.barrier.wait(60)
        return super().__getitem__(index)


def set_barrier(worker_id):
    dataset = get_worker_info().dataset
    dataset.barrier = threading.Barrier(dataset.together)


@pytest.mark.usefixtures("items_wait")
def test_each_worker_has_items_of_several_of_its_batches_in_flight():
    loader = ConcurrentDataLoader(
        Meeting(24, 6), batch_size=2, num_workers=2, worker_init_fn=set_barrier, in_flight=6, prefetch_factor=1
    )
    assert [indices.tolist() for indices, _, _ in loader] == [[start, start + 1] for start in range(0, 24, 2)]


class CountingFetches(Dataset):
    """Counts in shared memory who was asked for."""

    def __init__(self, length):
        self.counts = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        self.counts[index] += 1
        return index


@pytest.mark.usefixtures("items_wait")
@pytest.mark.parametrize("persistent", [False, True])
def test_every_item_is_fetched_once_an_epoch(persistent):
    dataset = CountingFetches(101)
    loader = ConcurrentDataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=persistent, in_flight=8)
    for epoch in (1, 2):
        assert torch.cat(list(loader)).tolist() == list(range(101))
        assert set(dataset.counts.tolist()) == {epoch}
    del loader


@pytest.mark.usefixtures("items_wait")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_left_early_leaves_nothing_for_the_next(persistent):
    def load(cls):
        generator = torch.Generator().manual_seed(0)
        loader = cls(Squares(40), 3, True, num_workers=2, persistent_workers=persistent, generator=generator)
        seen = []
        for _ in range(2):
            for batch in loader:
                seen.append(plain(batch))
                break
            seen.append(generator.get_state().tolist())  # although the sampler was read further than by torch
        return seen + plain(list(loader))

    assert load(ConcurrentDataLoader) == load(DataLoader)


class Stuck(Squares):
    """From some item on none ever comes."""

    def __init__(self, length, start):
        super().__init__(length)
        self.start = start

    def __getitem__(self, index):
        if index >= self.start:
            threading.Event().wait()
        return super().__getitem__(index)


@pytest.mark.usefixtures("items_wait")
def test_the_time_out_is_torchs():
    batches = iter(ConcurrentDataLoader(Stuck(8, 4), batch_size=4, num_workers=1, timeout=1))
    assert next(batches)[0].tolist() == [0, 1, 2, 3]
    workers = multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(batches)
    for worker in workers:  # as torch does after five seconds
        worker.terminate()
        worker.join(30)


@pytest.mark.usefixtures("items_wait")
def test_a_worker_that_is_told_to_end_does_not_wait_for_what_it_has_begun_ahead():
    for indices, _, _ in ConcurrentDataLoader(Stuck(12, 8), batch_size=4, num_workers=1, prefetch_factor=1):
        assert indices.tolist() == [0, 1, 2, 3]
        (worker,) = multiprocessing.active_children()
        break
    assert worker.exitcode == 0  # torch would have killed it after five seconds


_DEADLY = """
import os, signal, time
from concurrent_loader import ConcurrentDataLoader

class Deadly(list):
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

try:
    list(ConcurrentDataLoader(Deadly(range(8)), batch_size=2, num_workers=1))
except (RuntimeError, ConnectionError, EOFError) as error:
    seen = error
try:
    time.sleep(1)
except RuntimeError as error:
    seen = error
print(type(seen).__name__, seen)
"""


def test_a_worker_that_dies_is_reported_as_with_torch():
    # In a process of its own: torch's handler of SIGCHLD raises wherever the program is by then. A pipe that ends is
    # often seen before the death of the worker that held it: then torch, too, lets the error of the reading through,
    # and its handler raises later, in the sleep.
    done = subprocess.run([sys.executable, "-c", _DEADLY], capture_output=True, text=True, timeout=100, check=False)
    assert re.match(
        r"RuntimeError DataLoader worker \(pid.* (is killed by signal: Killed|exited unex)|Conn|EOFError", done.stdout
    ), done


def test_tensors_come_in_shared_memory():
    batches = list(ConcurrentDataLoader(Squares(8), batch_size=4, num_workers=1))
    assert all(tensors.is_shared() for _, tensors, _ in batches)


def test_a_loader_travels_into_another_process():
    loader = pickle.loads(pickle.dumps(ConcurrentDataLoader(TensorDataset(torch.arange(6)), 2, num_workers=1)))
    assert plain(list(loader)) == [[[0, 1]], [[2, 3]], [[4, 5]]]


def test_a_shard_data_set_in_workers(tmp_path):
    with ShardWriter(str(tmp_path / "set"), columns={"label": "int64"}, shard_size="4KiB") as writer:
        for number in range(50):
            writer.write({"label": number})
    with ShardDataset(str(tmp_path / "set")) as dataset:
        loader = ConcurrentDataLoader(dataset, 7, sampler=range(49, -1, -1), num_workers=2)
        assert torch.cat([batch["label"] for batch in loader]).tolist() == list(range(49, -1, -1))


def test_a_process_forked_within_the_loop_goes_on_by_itself():
    batches = iter(ConcurrentDataLoader(TensorDataset(torch.arange(10)), 2, in_flight=4))
    next(batches)

    def resume(queue):
        queue.put([batch[0].tolist() for batch in batches])

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=resume, args=(queue,))
    child.start()
    assert queue.get() == [[2, 3], [4, 5], [6, 7], [8, 9]]
    child.join(30)
    assert child.exitcode == 0
    assert plain(list(batches)) == [[[2, 3]], [[4, 5]], [[6, 7]], [[8, 9]]]
    queue.close()
    child.close()
