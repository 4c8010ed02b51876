"""The drop-in loader against its oracle, torch's DataLoader; worker processes are in test_drop_in_workers.py."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from concurrent_loader import ConcurrentDataLoader, DropInDataLoader, ShardDataset
from concurrent_loader.map_style.inline_heuristic import COMPUTES, UNKNOWN, WAITS
from concurrent_loader.map_style.item_access import item_access_of
from concurrent_loader.storage.errors import ConfigurationError

KNOWN = st.sampled_from([UNKNOWN, COMPUTES, WAITS])


class Squares(Dataset):
    """Item → (index, a tensor that depends on it), or an error; counts who was asked for what."""

    def __init__(self, length, failing=(), error=ValueError):
        self.length, self.failing, self.error = length, frozenset(failing), error
        self.asked = Counter()
        self.lock = threading.Lock()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if isinstance(index, list):
            return [self[one] for one in index]
        with self.lock:
            self.asked[int(index)] += 1
        if index in self.failing:
            raise self.error(f"item {index} is bad")
        return int(index), torch.full((3,), int(index) ** 2)


class EagerSampler:
    """Draws when it is asked for an iterator, unlike torch's own."""

    def __init__(self, length, generator=None):
        self.length, self.generator = length, generator

    def __iter__(self):
        return iter(torch.randperm(self.length, generator=self.generator).tolist())

    def __len__(self):
        return self.length


def as_list(items):
    return items


def plain(batch):
    """Something with ==, types included."""
    if isinstance(batch, torch.Tensor):
        return ("tensor", batch.dtype, batch.tolist())
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return (type(batch), [plain(one) for one in batch])
    return batch


def outcomes(loader, *, stop_after=None):
    """Everything a consumer sees who goes on after errors."""
    seen = []
    batches = iter(loader)
    while stop_after is None or len(seen) < stop_after:
        try:
            seen.append(plain(next(batches)))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001
            seen.append((type(error), str(error)))
    return seen


def both(make, *, seed=0, epochs=2):
    """The outcomes of some epochs and the randomness left, of torch's loader and of ours."""
    found = []
    for cls in (DataLoader, ConcurrentDataLoader):
        torch.manual_seed(seed)
        loader, generators = make(cls)
        seen = [outcomes(loader) for _ in range(epochs)]
        states = [torch.get_rng_state().tolist(), *(each.get_state().tolist() for each in generators)]
        found.append((seen, states))
        del loader
    return found


@st.composite
def orders(draw, length):
    """Arguments of a loader that say which items come in which batch, as functions of nothing: fresh ones each time."""
    seed = draw(st.none() | st.integers(0, 5))

    def generator():
        return None if seed is None else torch.Generator().manual_seed(seed)

    def sampler():
        return {
            "random": lambda: RandomSampler(range(length), generator=generator()),
            "replacement": lambda: RandomSampler(range(length), True, num_samples, generator=generator()),
            "subset": lambda: SubsetRandomSampler(range(0, length, 2), generator=generator()),
            "weighted": lambda: WeightedRandomSampler(range(1, length + 1), num_samples, generator=generator()),
            "sequential": lambda: SequentialSampler(range(length)),
            "eager": lambda: EagerSampler(length, generator()),
            "list": lambda: chosen,
        }[kind]()

    num_samples = draw(st.integers(1, 40))
    chosen = draw(st.lists(st.integers(0, length - 1), max_size=30))
    kind = draw(st.sampled_from(["random", "replacement", "subset", "weighted", "sequential", "eager", "list"]))
    size, drop_last = draw(st.integers(1, 9)), draw(st.booleans())
    lists = draw(st.lists(st.lists(st.integers(0, length - 1), min_size=1, max_size=7), max_size=12))
    return draw(
        st.sampled_from(
            [
                lambda: {"batch_size": size, "drop_last": drop_last, "generator": generator()},
                lambda: {"batch_size": size, "drop_last": drop_last, "shuffle": True, "generator": generator()},
                lambda: {"batch_size": size, "drop_last": drop_last, "sampler": sampler()},
                lambda: {"batch_sampler": BatchSampler(sampler(), size, drop_last), "generator": generator()},
                lambda: {"batch_sampler": lists},
                lambda: {"batch_size": None, "sampler": sampler(), "generator": generator()},
                lambda: {"batch_size": None, "sampler": BatchSampler(sampler(), size, drop_last)},
                lambda: {"batch_size": None, "shuffle": True},
            ]
        )
    )


class TestSameAsTorch:
    @pytest.mark.usefixtures("no_leaks")
    @given(data=st.data(), length=st.integers(1, 60), in_flight=st.integers(1, 9), seed=st.integers(0, 3), known=KNOWN)
    def test_same_batches_errors_and_randomness(self, known_items, data, length, in_flight, seed, known):
        order = data.draw(orders(length))
        failing = data.draw(st.lists(st.integers(0, length - 1), max_size=2))
        error = data.draw(st.sampled_from([ValueError, KeyError, IndexError, OSError]))
        collate = data.draw(st.sampled_from([None, as_list]))

        def make(cls):
            arguments = order()
            if cls is ConcurrentDataLoader:
                arguments["in_flight"] = in_flight
            loader = cls(Squares(length, failing, error), collate_fn=collate, **arguments)
            named = [arguments.get("generator"), getattr(arguments.get("sampler"), "generator", None)]
            return loader, [each for each in named if each is not None]

        with known_items(known):
            theirs, ours = both(make, seed=seed)
        assert ours == theirs

    @given(
        data=st.data(),
        length=st.integers(1, 30),
        stop_after=st.integers(0, 9),
        in_flight=st.integers(1, 9),
        known=KNOWN,
    )
    def test_left_early_the_generators_are_where_torch_leaves_them(
        self, known_items, data, length, stop_after, in_flight, known
    ):
        order = data.draw(orders(length))

        def left(cls, **more):
            torch.manual_seed(1)
            arguments = order()
            named = [arguments.get("generator"), getattr(arguments.get("sampler"), "generator", None)]
            loader = cls(Squares(length), **arguments, **more)
            seen = [outcomes(loader, stop_after=stop_after) for _ in range(2)]
            return seen, [each.get_state().tolist() for each in named if each is not None]

        with known_items(known):
            assert left(ConcurrentDataLoader, in_flight=in_flight) == left(DataLoader)

    def test_left_early_a_generator_that_others_draw_from_is_left_alone(self):
        generator = torch.Generator().manual_seed(0)
        batches = iter(ConcurrentDataLoader(Squares(50), 2, shuffle=True, generator=generator))
        next(batches)
        torch.randperm(5, generator=generator)
        state = generator.get_state()
        del batches
        assert torch.equal(generator.get_state(), state)

    @pytest.mark.parametrize("in_flight", [1, 2, 64])
    def test_an_empty_data_set(self, in_flight):
        loader = ConcurrentDataLoader(Squares(0), in_flight=in_flight)
        assert list(loader) == []
        assert len(loader) == 0

    def test_a_plain_list_is_a_data_set(self):
        assert [batch.tolist() for batch in ConcurrentDataLoader([5, 6, 7], 2)] == [[5, 6], [7]]

    def test_arguments_by_position_as_torch_has_them(self):
        generator = torch.Generator()
        given = (Squares(9), 2, False, [3, 1, 2], None, 0, as_list, False, True, 0, None, None, generator)
        theirs, ours = DataLoader(*given), ConcurrentDataLoader(*given)
        assert plain(list(theirs)) == plain(list(ours))
        for name in ("batch_size", "sampler", "num_workers", "collate_fn", "drop_last", "timeout", "generator"):
            assert getattr(theirs, name) == getattr(ours, name)

    def test_it_is_a_loader_of_both_kinds(self):
        loader = ConcurrentDataLoader(Squares(5), batch_size=2)
        assert type(loader) is DropInDataLoader
        assert isinstance(loader, DataLoader)
        assert isinstance(loader, ConcurrentDataLoader)
        assert (len(loader), len(iter(loader))) == (3, 3)
        assert repr(loader) == "DropInDataLoader(Squares, batch_size=2, num_workers=0, in_flight=64)"

    def test_print_shows_it_in_five_lines(self):
        loader = ConcurrentDataLoader(Squares(50), batch_size=2, shuffle=True)
        assert "items: not measured yet" in str(loader)
        list(loader)
        assert str(loader).splitlines()[:4] == [
            "DropInDataLoader of Squares",
            "  batches of 2 items in the order of RandomSampler",
            "  read in this process, epoch 0",
            "  up to 64 items in flight in each process; items: compute",
        ]
        assert str(loader).splitlines()[4].startswith("  delivered 25 batches, 50 samples; waited ")
        by_batch = ConcurrentDataLoader(Squares(5), batch_sampler=BatchSampler([1, 2], 2, False), num_workers=2)
        assert "  batches of BatchSampler\n  read in 2 workers," in str(by_batch)
        assert "batches of 3 items of a stream" in str(ConcurrentDataLoader(Stream(7), batch_size=3))
        assert "single items in the order of SequentialSampler" in str(
            ConcurrentDataLoader(Squares(5), batch_size=None)
        )

    @pytest.mark.parametrize(
        "wrong",
        [
            {"num_workers": -1},
            {"timeout": -1},
            {"prefetch_factor": 2},
            {"persistent_workers": True},
            {"sampler": [1], "shuffle": True},
            {"batch_sampler": [[1]], "batch_size": 3},
            {"batch_size": None, "drop_last": True},
            {"multiprocessing_context": "fork"},
            {"batch_size": 0},
        ],
    )
    def test_what_torch_refuses_is_refused_the_same(self, wrong):
        said = []
        for cls in (DataLoader, ConcurrentDataLoader):
            with pytest.raises(ValueError) as error:
                cls(Squares(3), **wrong)
            said.append(str(error.value))
        assert said[0] == said[1]

    def test_attributes_are_guarded_as_torch_guards_them(self):
        loader = ConcurrentDataLoader(Squares(3))
        with pytest.raises(ValueError, match="should not be set after DropInDataLoader is initialized"):
            loader.batch_size = 7

    def test_pinned_memory_gives_what_torch_gives(self):
        if torch.accelerator.is_available():
            assert next(iter(ConcurrentDataLoader(TensorDataset(torch.arange(3)), pin_memory=True)))[0].is_pinned()
            return
        said = []
        for cls in (DataLoader, ConcurrentDataLoader):
            with pytest.warns(UserWarning, match="pin_memory") as warned:
                list(cls(Squares(3), pin_memory=True))
            said.append([str(one.message) for one in warned])
        assert said[0] == said[1]


@pytest.mark.usefixtures("no_leaks", "items_wait")
class TestInFlight:
    def test_items_of_a_batch_are_under_way_at_once(self):
        together = threading.Barrier(6)

        class Meeting(Squares):
            def __getitem__(self, index):
                together.wait(timeout=30)
                return super().__getitem__(index)

        assert len(list(ConcurrentDataLoader(Meeting(12), batch_size=6, in_flight=6))) == 2

    def test_items_of_the_next_batches_are_under_way_too(self):
        together = threading.Barrier(6)

        class Meeting(Squares):
            def __getitem__(self, index):
                together.wait(timeout=30)
                return super().__getitem__(index)

        assert len(list(ConcurrentDataLoader(Meeting(12), batch_size=2, in_flight=6))) == 6
        together.reset()
        assert len(list(ConcurrentDataLoader(Meeting(12), batch_size=None, in_flight=6))) == 12

    def test_no_more_than_asked_for(self):
        class Counting(Squares):
            now = most = 0

            def __getitem__(self, index):
                with self.lock:
                    self.now += 1
                    self.most = max(self.most, self.now)
                try:
                    return super().__getitem__(index)
                finally:
                    with self.lock:
                        self.now -= 1

        dataset = Counting(200)
        list(ConcurrentDataLoader(dataset, batch_size=10, in_flight=3))
        assert 1 <= dataset.most <= 3

    def test_one_in_flight_is_torch_in_the_callers_thread(self):
        class Where(Squares):
            def __getitem__(self, index):
                return threading.current_thread()

        seen = list(ConcurrentDataLoader(Where(4), collate_fn=as_list, batch_size=2, in_flight=1))
        assert seen == [[threading.current_thread()] * 2] * 2

    def test_one_in_flight_reads_the_sampler_no_further_than_torch(self):
        for in_flight, read in ((1, 4), (2, 8)):
            drawn = []
            sampler = (drawn.append(number) or number for number in range(100))
            batches = iter(ConcurrentDataLoader(Squares(100), 2, sampler=sampler, in_flight=in_flight))
            next(batches), next(batches)
            assert len(drawn) == read  # with 2 in flight, 4 items ahead
            del batches

    def test_memory_is_bounded_when_the_consumer_is_slow(self):
        dataset = Squares(1000)
        batches = iter(ConcurrentDataLoader(dataset, batch_size=10, in_flight=5))
        next(batches)
        batches._parts.items.release_idle()
        while batches._parts.items._ahead.fetcher._threads._threads:
            threading.Event().wait(0.001)
        assert sum(dataset.asked.values()) == 20
        del batches

    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "auto", None])
    def test_impossible_numbers(self, wrong):
        with pytest.raises(ConfigurationError, match="in_flight must be a positive integer"):
            ConcurrentDataLoader(Squares(3), in_flight=wrong)


@pytest.mark.usefixtures("no_leaks", "items_wait")
class TestBugsOfTheForerunner:
    """What the first concurrent loader got wrong."""

    def test_exceptions_arrive(self):
        batches = iter(ConcurrentDataLoader(Squares(30, failing=[17]), batch_size=5))
        assert [next(batches)[0].tolist() for _ in range(3)] == [list(range(s, s + 5)) for s in (0, 5, 10)]
        with pytest.raises(ValueError, match="item 17 is bad") as caught:
            next(batches)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "__getitem__"
        assert next(batches)[0].tolist() == list(range(20, 25))

    def test_duplicates_of_a_sampler_are_fetched_as_often_as_they_are_drawn(self):
        dataset = Squares(4)
        drawn = [1, 1, 1, 3, 1, 3, 0, 1, 1, 3, 3]
        batches = list(ConcurrentDataLoader(dataset, batch_size=3, sampler=drawn))
        assert torch.cat([numbers for numbers, _ in batches]).tolist() == drawn
        assert dataset.asked == Counter(drawn)

    def test_the_order_is_the_samplers_though_items_take_their_time(self):
        done = [threading.Event() for _ in range(12)]

        class Backwards(Squares):
            def __getitem__(self, index):
                if index % 4 != 3:
                    assert done[index + 1].wait(30)
                done[index].set()
                return super().__getitem__(index)

        drawn = [7, 6, 5, 4, 0, 1, 2, 3, 11, 8, 9, 10]
        batches = list(ConcurrentDataLoader(Backwards(12), batch_size=5, sampler=drawn, in_flight=12))
        assert torch.cat([numbers for numbers, _ in batches]).tolist() == drawn

    def test_the_last_batch_is_short_once_and_nothing_is_missing(self):
        sizes = [len(numbers) for numbers, _ in ConcurrentDataLoader(Squares(23), batch_size=5)]
        assert sizes == [5, 5, 5, 5, 3]


@pytest.mark.usefixtures("no_leaks", "items_wait")
class TestErrors:
    def test_the_first_in_the_batch_is_raised_and_later_ones_are_not_begun(self):
        dataset = Squares(100, failing=[3, 5])
        with pytest.raises(ValueError, match="item 3 is bad"):
            next(iter(ConcurrentDataLoader(dataset, batch_size=10, in_flight=2)))

    @pytest.mark.parametrize("in_flight", [1, 4])
    def test_stop_iteration_does_not_end_the_loop_in_silence(self, in_flight):
        def make(cls, **more):
            return cls(Squares(9, failing=[4], error=StopIteration), batch_size=2, **more)

        assert len(list(make(DataLoader))) == 2
        with pytest.raises(RuntimeError, match=r"dataset\[4\] raised StopIteration"):
            list(make(ConcurrentDataLoader, in_flight=in_flight))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_what_is_no_exception_gets_through(self, error):
        batches = iter(ConcurrentDataLoader(Squares(9, failing=[4], error=error), batch_size=2))
        next(batches), next(batches)
        with pytest.raises(error):
            next(batches)

    def test_an_error_of_the_sampler_comes_in_its_place(self):
        def sampler():
            yield from range(7)
            raise LookupError("no more")

        def make(cls):
            return outcomes(cls(Squares(9), batch_size=2, sampler=sampler()))

        assert make(ConcurrentDataLoader) == make(DataLoader)
        assert make(ConcurrentDataLoader)[-1] == (LookupError, "no more")

    def test_a_batch_that_is_none_raises_in_its_place(self):
        def make(cls):
            return outcomes(cls(Squares(9), batch_sampler=[[1, 2], [3], 4, [5]]))

        assert make(ConcurrentDataLoader) == make(DataLoader)
        assert make(ConcurrentDataLoader)[2] == (TypeError, "'int' object is not iterable")

    def test_an_error_of_the_collation_comes_in_its_place(self):
        def collate(items):
            if items[0][0] == 4:
                raise TypeError("does not fit")
            return items

        def make(cls):
            return outcomes(cls(Squares(9), batch_size=2, collate_fn=collate))

        assert make(ConcurrentDataLoader) == make(DataLoader)

    def test_no_thread_stays_while_the_error_is_looked_at(self):
        before = set(threading.enumerate())
        with pytest.raises(ValueError) as caught:
            list(ConcurrentDataLoader(Squares(50, failing=[9]), batch_size=4, in_flight=8))
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
        assert set(threading.enumerate()) <= before
        assert caught.value.__traceback__ is not None

    def test_threads_end_with_a_break_and_nothing_is_begun_any_more(self):
        before = set(threading.enumerate())
        dataset = Squares(10_000)
        for _ in ConcurrentDataLoader(dataset, batch_size=4, in_flight=8):
            break
        assert set(threading.enumerate()) <= before
        asked = sum(dataset.asked.values())
        assert asked <= 4 + 16
        assert sum(dataset.asked.values()) == asked

    def test_an_iterator_dropped_before_its_first_batch(self):
        dataset = Squares(10)
        iter(ConcurrentDataLoader(dataset))
        assert not dataset.asked

    def test_two_iterators_at_once_do_not_disturb_each_other(self):
        loader = ConcurrentDataLoader(Squares(20), batch_size=3)
        for one, other in zip(loader, loader, strict=True):
            assert plain(one) == plain(other)


class Batched(Squares):
    """Offers whole batches, and knows who asked."""

    def __init__(self, *args):
        super().__init__(*args)
        self.batches = []

    def __getitems__(self, indices):
        self.batches.append(list(indices))
        return [super(Batched, self).__getitem__(index) for index in indices]


class Async(Squares):
    """Offers a coroutine for an item, and nothing else."""

    def __getitem__(self, index):
        raise AssertionError("the coroutine was to be used")

    async def getitem_async(self, index):
        return super().__getitem__(index)


class AsyncBatched(Async):
    async def getitem_async(self, index):
        raise AssertionError("whole batches were to be used")

    async def getitems_async(self, indices):
        return [Squares.__getitem__(self, index) for index in indices]


class TestWays:
    @pytest.mark.parametrize("known", [UNKNOWN, COMPUTES, WAITS])
    @pytest.mark.parametrize("in_flight", [1, 3, 64])
    @pytest.mark.parametrize("make", [Batched, Async, AsyncBatched])
    def test_all_give_the_same(self, known_items, make, in_flight, known):
        for arguments in (
            {"batch_size": 4},
            {"batch_sampler": [[3], [1, 1], [2, 9]]},
            {"batch_size": 4, "shuffle": True},
        ):
            torch.manual_seed(7)
            theirs = outcomes(DataLoader(Squares(30, [11]), **arguments))
            torch.manual_seed(7)
            with known_items(known):
                assert outcomes(ConcurrentDataLoader(make(30, [11]), in_flight=in_flight, **arguments)) == theirs

    @pytest.mark.parametrize("make", [Batched, Async])
    def test_single_items(self, make):
        theirs = outcomes(DataLoader(Squares(9, [4]), batch_size=None))
        assert outcomes(ConcurrentDataLoader(make(9, [4]), batch_size=None)) == theirs

    def test_whole_batches_are_asked_for_whole(self):
        dataset = Batched(10)
        list(ConcurrentDataLoader(dataset, batch_size=4))
        assert sorted(dataset.batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_coroutines_are_under_way_at_once_up_to_the_bound(self):
        class Counting(Async):
            now = most = 0

            async def getitem_async(self, index):
                self.now += 1
                self.most = max(self.most, self.now)
                deadline = time.monotonic() + 5
                while self.most < 6 and time.monotonic() < deadline:  # the next batch's items come from another thread
                    await asyncio.sleep(0.001)
                self.now -= 1
                return await super().getitem_async(index)

        dataset = Counting(100)
        list(ConcurrentDataLoader(dataset, batch_size=4, in_flight=6))
        assert dataset.most == 6

    @pytest.mark.parametrize("make", [Async, AsyncBatched])
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_errors_of_coroutines(self, make, error):
        batches = iter(ConcurrentDataLoader(make(9, [4], error), batch_size=2))
        assert [next(batches)[0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(error):
            next(batches)

    @pytest.mark.usefixtures("no_leaks")
    def test_coroutines_that_wait_are_cancelled_by_a_break(self):
        waiting, cancelled = threading.Event(), []

        class Stuck(Async):
            async def getitem_async(self, index):
                if index < 2:
                    return await super().getitem_async(index)
                try:
                    waiting.set()
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(index)
                    raise

        for _ in ConcurrentDataLoader(Stuck(9), batch_size=2, in_flight=4):
            assert waiting.wait(30)
            break
        assert cancelled
        assert set(cancelled) <= set(range(2, 9))

    def test_a_subset_is_as_good_as_its_data_set(self):
        numbers = [5, 3, 8, 8, 1]
        for make in (Squares, Batched, Async, AsyncBatched):
            theirs = outcomes(DataLoader(Subset(Squares(9, [8]), numbers), batch_size=2))
            assert outcomes(ConcurrentDataLoader(Subset(make(9, [8]), numbers), batch_size=2)) == theirs
        assert item_access_of(Subset(Squares(9), numbers)).batch is None  # torch's loop would get one after the other
        assert item_access_of(Subset(Batched(9), numbers)).batch is not None

    def test_a_class_that_changes_what_an_item_is_does_not_inherit_coroutines_of_the_old_one(self):
        class Doubled(Async):
            def __getitem__(self, index):
                return 2 * index

        class DoubledBatches(AsyncBatched):
            def __getitems__(self, indices):
                return [2 * index for index in indices]

        class Around:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def __len__(self):
                return len(self.inner)

            def __getitem__(self, index):
                return 2 * index

        class AsyncAgain(AsyncBatched):
            async def getitem_async(self, index):
                return 2 * index

        for dataset in (Doubled(4), DoubledBatches(4), Around(Async(4)), AsyncAgain(4)):
            assert [batch.tolist() for batch in ConcurrentDataLoader(dataset, batch_size=2)] == [[0, 2], [4, 6]]

    def test_stacked_and_concatenated_data_sets(self):
        for wrap in (
            lambda: ConcatDataset([Squares(5), Batched(4)]),
            lambda: StackDataset(Squares(5), Squares(5)),
            lambda: StackDataset(Batched(5), Squares(5)),
            lambda: StackDataset(one=Squares(5), other=Squares(5)),
            lambda: Subset(ConcatDataset([Squares(5), Squares(4)]), [8, 0, 4]),
        ):
            assert plain(list(ConcurrentDataLoader(wrap(), 2, collate_fn=as_list))) == plain(
                list(DataLoader(wrap(), 2, collate_fn=as_list))
            )
        assert item_access_of(StackDataset(Squares(5), Squares(5))).batch is None
        assert item_access_of(StackDataset(Squares(5), Batched(5))).batch is not None

    def test_batches_that_a_sampler_uses_again_or_gives_once(self):
        def reused():
            batch = []
            for start in range(0, 9, 3):
                batch[:] = range(start, start + 3)
                yield batch

        def once():
            for start in range(0, 9, 3):
                yield iter(range(start, start + 3))

        def tensors():
            yield from torch.arange(9).reshape(3, 3)

        for sampler in (reused, once, tensors):
            theirs = plain(list(DataLoader(Squares(9), batch_sampler=sampler())))
            assert plain(list(ConcurrentDataLoader(Squares(9), batch_sampler=sampler()))) == theirs


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class TestIterable:
    @pytest.mark.parametrize(
        "arguments", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}]
    )
    def test_it_is_read_as_torch_reads_it(self, arguments):
        assert outcomes(ConcurrentDataLoader(Stream(8), **arguments)) == outcomes(DataLoader(Stream(8), **arguments))

    def test_it_has_no_length_of_its_own(self):
        with pytest.raises(TypeError):
            len(ConcurrentDataLoader(Stream(8)))

    def test_what_torch_refuses_is_refused_the_same(self):
        for wrong in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
            with pytest.raises(ValueError, match="DataLoader with IterableDataset"):
                ConcurrentDataLoader(Stream(8), **wrong)


class TestOfThisPackage:
    def test_a_sampler_makes_a_shard_data_set_one_like_any_other(self, dataset):
        numbers = [5, 200, 7, 7, 0]
        loader = ConcurrentDataLoader(dataset, batch_size=2, sampler=numbers, collate_fn=as_list)
        assert type(loader) is DropInDataLoader
        assert [[sample["label"] for sample in batch] for batch in loader] == [[5, 200], [7, 7], [0]]

    def test_single_samples(self, dataset):
        loader = ConcurrentDataLoader(dataset, batch_size=None, collate_fn=as_list)
        assert [sample["label"] for sample in loader] == list(range(203))

    def test_errors_of_the_data_set(self, dataset):
        with pytest.raises(IndexError, match="sample 203"):
            list(ConcurrentDataLoader(dataset, batch_sampler=[[1, 203]]))

    async def test_its_coroutines(self, url):
        with ShardDataset(url) as dataset:
            assert (await dataset.getitem_async(-1))["label"] == 202
            assert [sample["label"] for sample in await dataset.getitems_async([4, 4, 1])] == [4, 4, 1]
            with pytest.raises(IndexError):
                await dataset.getitem_async(203)


class TestRebuilding:
    """What trainers do to a loader that they are given."""

    def test_again_from_its_attributes_as_lightning_does(self):
        loader = ConcurrentDataLoader(Squares(20), batch_size=3, drop_last=True, in_flight=7, collate_fn=as_list)
        names = [name for name in inspect.signature(DropInDataLoader.__init__).parameters if name in vars(loader)]
        given = {name: getattr(loader, name) for name in names}
        given |= {"sampler": [4, 2, 9, 1], "batch_sampler": None}
        again = type(loader)(**given)
        assert again.in_flight == 7
        assert plain(list(again)) == plain(
            list(DataLoader(Squares(20), 3, sampler=[4, 2, 9, 1], drop_last=True, collate_fn=as_list))
        )

    def test_a_class_of_the_users(self):
        class Mine(DropInDataLoader):
            def __iter__(self):
                return (batch[0].tolist() for batch in super().__iter__())

        assert list(Mine(Squares(5), batch_size=2)) == [[0, 1], [2, 3], [4]]

    def test_pickled_and_copied_also_while_it_is_used(self):
        loader = ConcurrentDataLoader(TensorDataset(torch.arange(7)), batch_size=2, in_flight=3)
        batches = iter(loader)
        next(batches)
        again = pickle.loads(pickle.dumps(loader))
        assert type(again) is DropInDataLoader
        assert plain(list(again)) == plain(list(loader))
        assert again.in_flight == 3
        del batches

    def test_written_in_annotations(self):
        assert type(ConcurrentDataLoader[int]([1, 2])) is DropInDataLoader
        assert type(DropInDataLoader[int]([1, 2])) is DropInDataLoader

    def test_counts(self):
        loader = ConcurrentDataLoader(Squares(7, [2]), batch_size=2)
        outcomes(loader)
        stats = loader.stats
        assert (stats.num_batches, stats.num_samples) == (3, 5)
        assert stats.total_s >= stats.wait_s > 0
        assert stats.first_batch_s > 0
        assert default_collate is loader.collate_fn


_EXIT = """
import sys
from concurrent_loader import ConcurrentDataLoader
from concurrent_loader.map_style.inline_heuristic import WAITS, Findings

class Items(list):
    def __getitem__(self, index):
        return index

class Async(list):
    async def getitem_async(self, index):
        return index

loaders = [ConcurrentDataLoader(kind(range(1000)), 4, in_flight=8) for kind in (Items, Async)]
loaders[0]._findings = Findings(1, is_shared=False, known=WAITS)
iterators = [iter(loader) for loader in loaders]
print([next(batches).tolist() for batches in iterators])
"""


@pytest.mark.processes
def test_a_program_that_ends_in_the_middle_of_an_epoch():
    done = subprocess.run([sys.executable, "-c", _EXIT], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[[0, 1, 2, 3], [0, 1, 2, 3]]\n", "", 0)
