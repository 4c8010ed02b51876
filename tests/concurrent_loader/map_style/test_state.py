"""The drop-in loader's position: saved after any batch, loaded into a new loader, it goes on as if nothing had been."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from concurrent_loader import ConcurrentDataLoader, LoaderStateError


def forked(num_workers):
    """The number of workers, which are forked: before Python 3.14 that is usual, and their locks cannot be pickled."""
    return {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}


class Numbers(Dataset):
    def __init__(self, length):
        self.length, self.asked, self.lock = length, Counter(), threading.Lock()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with self.lock:
            self.asked[index] += 1
        return index


class EagerSampler:
    def __init__(self, length, generator=None):
        self.length, self.generator = length, generator

    def __iter__(self):
        return iter(torch.randperm(self.length, generator=self.generator).tolist())

    def __len__(self):
        return self.length


class Counting:
    """A sampler that knows where it is."""

    def __init__(self, length):
        self.length, self.position, self.started = length, 0, 0

    def __iter__(self):
        self.position, self.started = self.started, 0
        while self.position < self.length:
            self.position += 1
            yield self.position - 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.started = state["position"]


LENGTH = 23
MAKERS = {
    "in turn": lambda generator: {},
    "shuffled": lambda generator: {"shuffle": True, "generator": generator},
    "random": lambda generator: {"sampler": RandomSampler(range(LENGTH), generator=generator)},
    "replacement": lambda generator: {"sampler": RandomSampler(range(LENGTH), True, 70, generator)},
    "subset": lambda generator: {"sampler": SubsetRandomSampler(range(4, LENGTH), generator)},
    "weighted": lambda generator: {"sampler": WeightedRandomSampler(range(1, 40), 30, generator=generator)},
    "eager": lambda generator: {"sampler": EagerSampler(LENGTH, generator)},
    "stateful": lambda generator: {"sampler": Counting(LENGTH)},
}


def saved(state):
    """What a checkpoint makes of it."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def lists(batches):
    return [batch.tolist() for batch in batches]


@settings(max_examples=15)
@given(data=st.data(), in_flight=st.sampled_from([1, 3, 64]), size=st.integers(1, 6), drop_last=st.booleans())
@pytest.mark.parametrize("kind", MAKERS)
def test_saved_after_any_batch_the_rest_is_the_same(kind, data, in_flight, size, drop_last):
    seed = data.draw(st.none() | st.integers(0, 3), "seed")
    torch.manual_seed(data.draw(st.integers(0, 3), "default seed"))
    generators = []

    def make():
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        generators.append(generator)
        arguments = MAKERS[kind](generator)
        return ConcurrentDataLoader(Numbers(50), size, drop_last=drop_last, in_flight=in_flight, **arguments)

    loader = make()
    skip_epochs = data.draw(st.integers(0, 1), "epochs before")
    for _ in range(skip_epochs):
        list(loader)
    expected, states = [], []
    for batch in loader:
        states.append(loader.state_dict())
        expected.append(batch.tolist())
    states.append(loader.state_dict())
    cut = data.draw(st.integers(0, len(expected)), "batches before")
    torch.manual_seed(99)  # another program
    again = make()
    if cut == len(expected):  # after the end: the next epoch
        again.load_state_dict(saved(states[-1]))
        if seed is not None or kind in ("in turn", "stateful"):  # else the other program goes on differently
            assert lists(again) == lists(loader)
        return
    if cut:
        again.load_state_dict(saved(states[cut - 1]))
        before = torch.get_rng_state()
        assert lists(again) == expected[cut:]
        if seed is not None and kind == "shuffled":
            assert torch.equal(torch.get_rng_state(), before)
        if seed is not None and kind not in ("in turn", "stateful"):
            assert torch.equal(generators[0].get_state(), generators[-1].get_state())


def test_what_was_delivered_is_not_fetched_again():
    loader = ConcurrentDataLoader(Numbers(LENGTH), 4)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    del batches
    dataset = Numbers(LENGTH)
    again = ConcurrentDataLoader(dataset, 4)
    again.load_state_dict(state)
    assert lists(again) == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22]]
    assert min(dataset.asked) == 8
    assert lists(again)[0] == [0, 1, 2, 3]  # and the next epoch is whole


@pytest.mark.parametrize("kind", ["shuffled", "stateful"])
def test_saved_again_before_the_first_batch(kind):
    def make():
        return ConcurrentDataLoader(Numbers(50), 4, **MAKERS[kind](torch.Generator().manual_seed(2)))

    loader = make()
    whole = iter(loader)
    next(whole), next(whole)
    state = loader.state_dict()
    for began in (False, True):
        again = make()
        again.load_state_dict(state)
        if began:
            iter(again)
        state = saved(again.state_dict())
    again = make()
    again.load_state_dict(state)
    assert lists(again) == lists(whole)


def test_saved_before_a_later_epochs_first_batch():
    loader = ConcurrentDataLoader(Numbers(50), 4, sampler=Counting(LENGTH))
    expected = lists(loader)
    batches = iter(loader)
    state = loader.state_dict()
    del batches
    again = ConcurrentDataLoader(Numbers(50), 4, sampler=Counting(LENGTH))
    again.load_state_dict(state)
    assert lists(again) == expected


def test_saved_at_the_last_batch_nothing_is_left_of_the_epoch():
    loader = ConcurrentDataLoader(Numbers(6), 3)
    for _ in loader:
        state = loader.state_dict()
    loader.load_state_dict(state)
    assert lists(loader) == []
    assert lists(loader) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["shuffled", "eager", "stateful"])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_with_workers_and_saved_again(kind, seed):
    def make(num_workers):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return ConcurrentDataLoader(Numbers(50), 4, **forked(num_workers), **MAKERS[kind](generator))

    torch.manual_seed(3)
    expected = lists(make(0))
    torch.manual_seed(3)
    loader, seen = make(1), []
    for num_workers in (1, 0, 2):  # each goes on where the last was left
        batches = iter(loader)
        seen += [next(batches).tolist() for _ in range(1 + num_workers // 2)]
        state = saved(loader.state_dict())
        del batches
        loader = make(num_workers)
        loader.load_state_dict(state)
    assert saved(loader.state_dict())["num_batches"] == 3 + 1 or kind == "stateful"
    assert seen + lists(loader) == expected


class Batches:
    """A batch sampler with a state that the next iterator continues from, and no later one."""

    def __init__(self) -> None:
        self.done = self.at = 0

    def __iter__(self):
        self.done, self.at = self.at, 0
        return self

    def __next__(self):
        if self.done == len(self):
            raise StopIteration
        self.done += 1
        return [self.done - 1]

    def __len__(self):
        return 6

    def state_dict(self):
        return {"at": self.done}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_batch_sampler_that_is_asked_for_iterators_twice(num_workers):
    """torch's iterator with workers makes two, and uses the second one."""

    def make():
        return ConcurrentDataLoader(Numbers(50), batch_sampler=Batches(), **forked(num_workers))

    loader = make()
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(3)] == [[0], [1], [2]]
    state = saved(loader.state_dict())
    del batches
    again = make()
    again.load_state_dict(state)
    assert lists(again) == [[3], [4], [5]]


def test_the_epoch_of_a_distributed_sampler():
    def make():
        sampler = DistributedSampler(range(40), num_replicas=2, rank=1, seed=3)
        return ConcurrentDataLoader(Numbers(40), 4, sampler=sampler)

    loader = make()
    loader.set_epoch(7)
    assert loader.epoch == loader.sampler.epoch == 7
    batches = iter(loader)
    first = next(batches).tolist()
    again = make()
    again.load_state_dict(loader.state_dict())
    assert again.sampler.epoch == 7
    assert [first, *lists(again)] == lists(loader)


def test_an_error_is_passed_when_the_next_batch_comes():
    class Bad(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise ValueError
            return index

    loader = ConcurrentDataLoader(Bad(12), 2)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(ValueError):
        next(batches)
    at_error = loader.state_dict()
    assert next(batches).tolist() == [6, 7]
    after = loader.state_dict()
    assert (at_error["num_batches"], after["num_batches"]) == (2, 4)
    loader.load_state_dict(after)
    assert lists(loader) == [[8, 9], [10, 11]]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_out_of_order_each_item_comes_once():
    class Slow(Numbers):
        def __init__(self, length, gate):
            super().__init__(length)
            self.gate = gate

        def __getitem__(self, index):
            if index == 0:
                assert self.gate.wait(30)
            return index

    gate = torch.multiprocessing.get_context("fork").Event()
    loader = ConcurrentDataLoader(Slow(10, gate), **forked(2), in_order=False)
    batches = iter(loader)
    seen = [next(batches).item() for _ in range(4)]
    state = saved(loader.state_dict())
    gate.set()
    assert 0 not in seen
    assert (state["num_batches"], state["apart"]) == (0, sorted(seen))
    again = ConcurrentDataLoader(Slow(10, gate), **forked(2), in_order=False)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert sorted(seen + [batch.item() for batch in again]) == list(range(10))


def test_states_are_json():
    loader = ConcurrentDataLoader(Numbers(9), 2, shuffle=True)
    batches = iter(loader)
    next(batches)
    again = ConcurrentDataLoader(Numbers(9), 2, shuffle=True)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert lists(again) == lists(batches)


@pytest.mark.processes
@pytest.mark.parametrize("num_epochs", [0, 1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_between_epochs_the_order_is_fixed_without_a_generator(num_epochs, num_workers):
    def make():
        return ConcurrentDataLoader(Numbers(30), 4, shuffle=True, **forked(num_workers))

    torch.manual_seed(3)
    loader = make()
    before = [lists(loader) for _ in range(num_epochs)]
    state = loader.state_dict()
    after = [lists(loader) for _ in range(3)]
    torch.manual_seed(77)
    again = make()
    again.load_state_dict(state)
    assert [lists(again) for _ in range(3)] == after
    assert len({str(epoch) for epoch in before + after}) == num_epochs + 3
    again.load_state_dict(state)
    assert lists(again) == after[0]
    torch.manual_seed(78)  # somebody else sets the generator: the next order is its
    assert lists(again) != after[1]


def test_data_pipes_have_no_positions():
    pipe = torch.utils.data.datapipes.iter.IterableWrapper(range(5))
    state = saved(ConcurrentDataLoader(pipe, 2).state_dict())
    with pytest.warns(UserWarning, match="the epoch starts from its beginning"):
        ConcurrentDataLoader(pipe, 2).load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "plan"},
        {"version": 1},
        {"num_batches": -1},
        {"num_batches": True},
        {"num_batches": None},
        {"epoch": "first"},
        {"at_iter": {"default": None, "named": None}},
        {"at_first": {"default": 3, "named": []}},
        {"at_first": 5},
        {"at_iter": {"default": None, "named": ["AAAA"]}},
        {"at_begin": {"default": "no base64", "named": []}},
        {"apart": None},
        {"apart": [-1]},
        {"seed": "one"},
        {"places": {"workers": 3}},
        {"places": {"workers": [{"dataset": None}]}},
        {"places": {"workers": [], "turn": 0, "epoch_ended": 3}},
        {"sampler": {"position": 3}},
    ],
)
def test_damaged_states_and_those_of_other_loaders(damage):
    loader = ConcurrentDataLoader(Numbers(9), 2)
    next(iter(loader))
    with pytest.raises(LoaderStateError):
        loader.load_state_dict({**loader.state_dict(), **damage})


def test_states_of_the_native_loader(dataset):
    with pytest.raises(LoaderStateError, match="does not belong to a drop-in loader"):
        ConcurrentDataLoader(Numbers(9)).load_state_dict(ConcurrentDataLoader(dataset).state_dict())


def test_a_state_is_for_the_same_kind_of_order():
    state = ConcurrentDataLoader(Numbers(9), generator=torch.Generator()).state_dict()
    with pytest.raises(LoaderStateError, match="another number of random generators"):
        ConcurrentDataLoader(Numbers(9)).load_state_dict(state)
    loader = ConcurrentDataLoader(Numbers(9))
    next(iter(loader))
    with pytest.raises(LoaderStateError, match="another kind of sampler"):
        ConcurrentDataLoader(Numbers(9), sampler=Counting(9)).load_state_dict(loader.state_dict())


def test_the_oracle_has_no_states():
    assert not hasattr(DataLoader(Numbers(3)), "state_dict")
