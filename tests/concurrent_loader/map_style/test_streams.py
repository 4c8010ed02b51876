"""Iterable datasets, and map-style ones with a state of their own, in the drop-in loader: the order, and resuming."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from concurrent_loader import ConcurrentDataLoader, LoaderStateError
from concurrent_loader.errors import WorkerCountError
from concurrent_loader.storage.errors import ConfigurationError

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's use of torch
]

SIZES = (3, 17, 8)


def part(sizes):
    """The numbers that are this worker's."""
    info = get_worker_info()
    if info is None:
        return range(sum(sizes))
    return range(sum(sizes[: info.id]), sum(sizes[: info.id + 1]))


class Plain(IterableDataset):
    """No state: generators begin anew."""

    def __init__(self, sizes=SIZES):
        self.sizes = sizes

    def __iter__(self):
        yield from part(self.sizes)


class OfDataset(Plain):
    """The dataset has the state, as Hugging Face's IterableDataset does, and counts epochs."""

    position = epoch = 0

    def __iter__(self):
        numbers = part(self.sizes)
        while self.position < len(numbers):
            self.position += 1
            yield numbers[self.position - 1] + 1000 * self.epoch
        self.position, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.position, self.epoch = state["position"], state["epoch"]


class Numbers:
    """An iterator with a state, which draws from the worker's generator."""

    def __init__(self, numbers):
        self.numbers, self.position = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == len(self.numbers):
            raise StopIteration
        self.position += 1
        return 1000 * self.numbers[self.position - 1] + int(torch.randint(1000, ()))

    def state_dict(self):
        return {"position": self.position, "torch": torch.get_rng_state().tolist()}

    def load_state_dict(self, state):
        self.position = state["position"]
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


class OfIterator(Plain):
    def __iter__(self):
        return Numbers(part(self.sizes))


class ItsOwn(IterableDataset):
    """Its own iterator, whose state exists only after iter()."""

    def __init__(self, sizes=SIZES):
        self.sizes = sizes

    def __iter__(self):
        self.numbers, self.position = part(self.sizes), [0]
        return self

    def __next__(self):
        if self.position[0] == len(self.numbers):
            raise StopIteration
        self.position[0] += 1
        return self.numbers[self.position[0] - 1]

    def state_dict(self):
        return self.position  # changes later

    def load_state_dict(self, state):
        self.position = state


class OfItems(Dataset):
    """Map-style, with a state."""

    count = 0

    def __len__(self):
        return 28

    def __getitem__(self, index):
        self.count += 1
        return 1000 * index + self.count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


KINDS = [Plain, OfDataset, OfIterator, ItsOwn, OfItems]


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", [Plain, OfDataset, ItsOwn])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 4, "num_workers": 3},
        {"batch_size": 4, "num_workers": 3, "drop_last": True, "prefetch_factor": 1},
        {"num_workers": 3},
    ],
)
def test_batches_and_their_order_are_torchs(kind, options):
    expected = [str(batch) for batch in DataLoader(kind(), **options)]
    assert [str(batch) for batch in ConcurrentDataLoader(kind(), **options)] == expected


@pytest.mark.parametrize(
    ("num_workers", "every", "kind"),
    # How often a worker is asked for a state, and what the state is of, are each other's business in one kind only.
    [*product((0, 3), (1,), KINDS), (3, 2, OfIterator), (3, 0, Plain)],
)
def test_saved_after_any_batch_the_rest_is_the_same(num_workers, every, kind):
    def make():
        generator = torch.Generator().manual_seed(4)
        return ConcurrentDataLoader(
            kind(), 3, num_workers=num_workers, snapshot_every_n_steps=every, generator=generator
        )

    loader = make()
    states, whole = [], []
    for batch in loader:
        whole.append(batch.tolist())
        states.append(json.dumps(loader.state_dict()))
    assert len(whole) >= 10
    second = lists(loader)
    for number in (4, len(whole)) if num_workers else (1, 4, len(whole) - 1, len(whole)):
        again = make()
        again.load_state_dict(json.loads(states[number - 1]))
        assert json.dumps(again.state_dict()) == states[number - 1]
        batches = iter(again)
        if number < len(whole):
            assert next(batches).tolist() == whole[number]
            assert json.loads(json.dumps(again.state_dict())) == json.loads(states[number])
        assert lists(batches) == whole[number + 1 :]
        if num_workers:  # else an iterator draws from the program's generator
            assert lists(again) == second


@pytest.mark.parametrize("kind", [OfDataset, OfIterator, OfItems])
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_saved_between_epochs(kind, num_workers, persistent):
    def make():
        generator = torch.Generator().manual_seed(4)
        options = {"num_workers": num_workers, "persistent_workers": persistent, "generator": generator}
        return ConcurrentDataLoader(kind(), 4, **options)

    torch.manual_seed(1)
    loader = make()
    lists(loader)
    state = loader.state_dict()
    rng = torch.get_rng_state()
    expected = [lists(loader) for _ in range(2)]
    torch.set_rng_state(rng)  # without workers the iterator draws from the program's generator
    again = make()
    again.load_state_dict(state)
    assert [lists(again) for _ in range(2)] == expected


@pytest.mark.parametrize("kind", [OfDataset, OfIterator, OfItems])
def test_saved_before_the_first_batch(kind):
    loader = ConcurrentDataLoader(kind(), 4, num_workers=2)
    for begun in (False, True):
        batches = iter(loader) if begun else None
        state = loader.state_dict()
        expected = lists(loader if batches is None else batches)
        again = ConcurrentDataLoader(kind(), 4, num_workers=2)
        again.load_state_dict(state)
        assert lists(again) == expected


@pytest.mark.parametrize("kind", [OfIterator, OfItems])
def test_torchdata_gives_the_same_after_resuming(kind):
    """The same program with torchdata's loader, whose arguments it takes.

    Not so where a dataset counts epochs: torchdata 0.11 begins the next one in workers that have ended.
    """
    ends = []
    for cls in (StatefulDataLoader, ConcurrentDataLoader):

        def make(cls=cls):
            generator = torch.Generator().manual_seed(4)
            return cls(kind(), 3, num_workers=2, snapshot_every_n_steps=2, generator=generator)

        loader = make()
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        again = make()
        again.load_state_dict(loader.state_dict())
        ends.append((lists(batches), lists(again)))
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1]


@pytest.mark.parametrize("kind", [OfDataset, OfItems])
def test_another_number_of_workers(kind):
    loader = ConcurrentDataLoader(kind(), num_workers=2)
    next(iter(loader))
    other = ConcurrentDataLoader(kind(), num_workers=3)
    other.load_state_dict(loader.state_dict())
    for _ in range(2):  # and it does not begin anew the second time
        with pytest.raises(WorkerCountError, match=r"same num_workers .*expected=2, got=3") as caught:
            iter(other)
        assert isinstance(caught.value, LoaderStateError)


def test_workers_can_be_watched():
    batches = iter(ConcurrentDataLoader(Plain(), num_workers=2))
    assert all(worker.is_alive() for worker in batches._workers)
    assert not hasattr(iter(ConcurrentDataLoader(Plain())), "_workers")


@pytest.mark.parametrize("every", [-1, True, 1.5])
def test_snapshot_every_n_steps_is_a_number(every):
    with pytest.raises(ConfigurationError, match="snapshot_every_n_steps must be a non-negative integer"):
        ConcurrentDataLoader(Plain(), snapshot_every_n_steps=every)


def examples(shards):
    for shard in shards:
        for number in range(7):
            yield {"id": 100 * shard + number}


@pytest.mark.filterwarnings("ignore")  # its own
@pytest.mark.parametrize("num_workers", [0, 2])
def test_hugging_faces_iterable_dataset(num_workers):
    datasets = pytest.importorskip("datasets")

    def make():
        dataset = datasets.IterableDataset.from_generator(examples, gen_kwargs={"shards": [1, 2, 3, 4]})
        return ConcurrentDataLoader(dataset, 3, num_workers=num_workers)

    loader = make()
    whole, states = [], []
    for batch in loader:
        whole.append(batch["id"].tolist())
        states.append(loader.state_dict())
    assert sorted(number for batch in whole for number in batch) == [
        100 * shard + number for shard in (1, 2, 3, 4) for number in range(7)
    ]
    for number in (1, 4, len(whole)):
        again = make()
        again.load_state_dict(json.loads(json.dumps(states[number - 1])))
        assert [batch["id"].tolist() for batch in again] == whole[number:]
