"""Errors in workers of the drop-in loader: each arrives, whatever its class, and none ends the epoch in silence."""

from __future__ import annotations

import threading

import pytest
from torch.utils.data import Dataset, IterableDataset

from concurrent_loader import ConcurrentDataLoader

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.timeout(60),
]


def runtime_class():
    """A class that cannot be found by its name, as botocore makes them."""

    class NoSuchKey(Exception):
        pass

    return NoSuchKey


class Message(Exception):
    message = "none yet"

    def __init__(self, code):
        super().__init__(code)


def fail(kind):
    if kind == "runtime class":
        raise runtime_class()("The specified key does not exist")
    if kind == "message":
        raise Message(404)
    if kind == "exit":
        raise SystemExit(3)
    if kind == "stop":
        raise StopIteration


WORDS = {
    "runtime class": (RuntimeError, "NoSuchKey: The specified key does not exist"),
    "message": (RuntimeError, "Message: 404"),
    "exit": (RuntimeError, r"sys\.exit\(3\) in a worker process"),
    "stop": (RuntimeError, "raised StopIteration"),
}


class Items(Dataset):
    def __init__(self, kind, where="item"):
        self.kind, self.where = kind, where

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3 and self.where == "item":
            fail(self.kind)
        return index


class Stream(IterableDataset):
    """Goes on after an error, as an iterator may."""

    def __init__(self, kind):
        self.kind, self.position = kind, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.position += 1
        if self.position == 4:
            fail(self.kind)
        if self.position > 6:
            raise StopIteration
        return self.position - 1


class Collate:
    def __init__(self, kind):
        self.kind = kind

    def __call__(self, items):
        if 3 in items:
            fail(self.kind)
        return items


class Init:
    def __init__(self, kind):
        self.kind = kind

    def __call__(self, worker):
        fail(self.kind)


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("in_flight", [1, 8])
def test_of_an_item_in_a_worker(kind, in_flight):
    kind_of_error, words = WORDS[kind]
    batches = iter(ConcurrentDataLoader(Items(kind), 2, num_workers=1, in_flight=in_flight))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(kind_of_error, match=words) as caught:
        next(batches)
    assert "worker process 0" in str(caught.value)
    if kind == "stop":
        assert "dataset[3] raised StopIteration" in str(caught.value)
    assert next(batches).tolist() == [4, 5]
    assert list(batches) == []


@pytest.mark.parametrize("kind", [kind for kind in WORDS if kind != "stop"])
def test_of_a_stream_in_a_worker(kind):
    batches = iter(ConcurrentDataLoader(Stream(kind), 2, num_workers=1))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(WORDS[kind][0], match=WORDS[kind][1]):
        next(batches)
    assert next(batches).tolist() == [4, 5]


@pytest.mark.parametrize("make", [lambda: Items(""), lambda: Stream("")], ids=["items", "stream"])
@pytest.mark.parametrize("kind", WORDS)
def test_of_collate_fn_in_a_worker(make, kind):
    batches = iter(ConcurrentDataLoader(make(), 2, num_workers=1, collate_fn=Collate(kind)))
    assert next(batches) == [0, 1]
    with pytest.raises(WORDS[kind][0], match=WORDS[kind][1]):
        next(batches)
    assert next(batches) == [4, 5]


@pytest.mark.parametrize("kind", WORDS)
def test_of_worker_init_fn(kind):
    with pytest.raises(WORDS[kind][0], match=WORDS[kind][1]):
        next(iter(ConcurrentDataLoader(Items(""), 2, num_workers=1, worker_init_fn=Init(kind))))


@pytest.mark.parametrize("in_flight", [1, 8])
def test_stop_iteration_does_not_end_an_epoch_without_workers(in_flight):
    with pytest.raises(RuntimeError, match=r"dataset\[3\] raised StopIteration"):
        list(ConcurrentDataLoader(Items("stop"), 2, in_flight=in_flight))
    with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
        list(ConcurrentDataLoader(Items(""), 2, collate_fn=Collate("stop"), in_flight=in_flight))


class Unpicklable(Items):
    def __getitem__(self, index):
        return threading.Lock() if index == 3 else index


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_wait(stream):
    class Locks(Stream):
        def __next__(self):
            number = super().__next__()
            return threading.Lock() if number == 3 else number

    dataset = Locks("") if stream else Unpicklable("")
    forked = {"num_workers": 1, "multiprocessing_context": "fork"}  # a class of this function cannot be pickled
    batches = iter(ConcurrentDataLoader(dataset, 2, collate_fn=Collate(""), **forked))
    assert next(batches) == [0, 1]
    with pytest.raises(RuntimeError, match=r"cannot be sent from a worker process \(TypeError: cannot pickle"):
        next(batches)
    assert next(batches) == [4, 5]


def test_interrupting_does_not_become_another_error():
    class Interrupted(Items):
        def __getitem__(self, index):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(iter(ConcurrentDataLoader(Interrupted(""), 2, in_flight=1)))
