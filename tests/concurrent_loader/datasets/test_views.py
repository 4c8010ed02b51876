from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.datasets import selection
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.datasets.views import DatasetView
from concurrent_loader.errors import LoaderStateError, TransformError
from concurrent_loader.order.shuffle import derive_key, permutation
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, NotFound, SchemaError, StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores import open_store

MakePayload = Callable[[int], bytes]

N = 203


@pytest.fixture(scope="module")
def shared() -> Iterator[ShardDataset]:
    """The dataset of `conftest.url`, open for the whole module: examples are many."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"data": "bytes", "label": "int64", "name": "str"}, shard_size="6KiB") as writer:
        for number in range(N):
            writer.write({"data": bytes([number]) * (400 + number), "label": number, "name": f"sample {number}"})
    with ShardDataset(url) as dataset:
        yield dataset


def labels(view: Any, **options: Any) -> list[int]:
    return [label for batch in ConcurrentDataLoader(view, 16, **options) for label in batch["label"].tolist()]


# -- against lists -----------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("mod"), st.integers(1, 9), st.integers(0, 9)),
        st.tuples(st.just("subset"), st.integers(0, 2**32 - 1), st.integers(0, 100)),
        st.tuples(st.just("split"), st.integers(0, 2**32 - 1), st.integers(0, 2)),
    ),
    max_size=4,
)


@given(steps=steps, vectorized=st.booleans())
def test_views_of_views_are_as_lists_are(shared: ShardDataset, steps: list[tuple[Any, ...]], vectorized: bool) -> None:
    view: Any = shared
    expected = list(range(N))
    for kind, first, second in steps:
        if kind == "mod":

            def holds(sample: dict[str, Any], first: int = first, second: int = second) -> Any:
                return sample["label"] % first == second

            view = view.filter(holds, columns=["label"], vectorized=vectorized)
            expected = [label for label in expected if label % first == second]
        elif kind == "subset":
            chosen = np.random.default_rng(first).permutation(len(expected))[:second]
            view = view.subset(chosen)
            expected = [expected[at] for at in sorted(chosen.tolist())]
        else:
            parts = view.split([0.5, 0.3, 0.2], seed=first)
            together = [label for part in parts for label in part.column("label").tolist()]
            assert sorted(together) == expected
            view = parts[second]
            kept = set(view.column("label").tolist())
            expected = [label for label in expected if label in kept]
    assert len(view) == len(expected)
    assert view.column("label").tolist() == expected
    assert view.column("name") == [f"sample {label}" for label in expected]
    assert np.diff(view.unit_bounds).sum() == len(expected)
    for at in range(0, len(expected), 50):
        assert view[at]["data"] == shared[expected[at]]["data"]
    assert [sample["label"] for sample in view[-3:]] == expected[-3:]


@given(
    numbers=st.integers(0, 2000).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(0, n - 1)), max_size=n))
    )
)
def test_a_selection_pickles_small(numbers: tuple[int, set[int]]) -> None:
    num_samples, chosen = numbers
    selection = Selection.from_indices(chosen, num_samples)
    data = pickle.dumps(selection)
    copy = pickle.loads(data)
    assert copy.numbers.tolist() == sorted(chosen)
    assert (copy.num_samples, copy.fingerprint) == (selection.num_samples, selection.fingerprint)
    assert len(data) < num_samples / 8 + 600


def test_a_selection_with_repeats_pickles_with_them() -> None:
    selection = Selection.from_indices([5, 5, 0], 6)
    copy = pickle.loads(pickle.dumps(selection))
    assert (copy.numbers.tolist(), copy.repeats, copy.fingerprint) == ([0, 5, 5], True, selection.fingerprint)


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_filter_looks_at_small_columns_alone(url: str, vectorized: bool) -> None:
    with ShardDataset(url) as dataset:
        num_bytes = dataset.fetch_stats.num_bytes
        few = dataset.filter(lambda sample: sample["label"] < 5, columns=["label"], vectorized=vectorized)
        assert dataset.fetch_stats.num_bytes - num_bytes < 6000  # of 120,000: the labels' bundle
        assert [sample["label"] for sample in few[:]] == [0, 1, 2, 3, 4]


def test_a_predicate_sees_python_values(dataset: ShardDataset) -> None:
    seen: list[dict[str, Any]] = []
    view = dataset.filter(lambda sample: seen.append(sample), columns=["label", "name", "box"])
    assert len(view) == 0
    assert type(seen[7]["label"]) is int
    assert seen[7]["name"] == "sample 7"
    assert seen[7]["box"].tolist() == [7, 8, 9, 10]


# -- in the loader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_view_is_loaded_exactly_once(dataset: ShardDataset, make_payload: MakePayload, world_size: int) -> None:
    view = dataset.filter(lambda sample: sample["label"] % 3 == 1, columns=["label"])
    seen = []
    for rank in range(world_size):
        for batch in ConcurrentDataLoader(view, 4, shuffle=True, rank=rank, world_size=world_size):
            assert batch.sample_ids.tolist() == batch["label"].tolist()  # of the dataset, not of the view
            assert [bytes(data) for data in batch["data"]] == [make_payload(n) for n in batch["label"].tolist()]
            seen += batch["label"].tolist()
    assert sorted(seen) == list(range(1, N, 3))
    assert seen != sorted(seen)


def test_ranks_of_a_view_make_the_same_global_batches(dataset: ShardDataset) -> None:
    view = dataset.split([0.7, 0.3])[0]
    whole = [batch["label"].tolist() for batch in ConcurrentDataLoader(view, 16, shuffle=True, drop_last=True)]
    ranks = [
        [
            batch["label"].tolist()
            for batch in ConcurrentDataLoader(view, 4, shuffle=True, drop_last=True, rank=rank, world_size=4)
        ]
        for rank in range(4)
    ]
    assert [[label for part in step for label in part] for step in zip(*ranks, strict=True)] == whole


def test_a_view_of_everything_has_the_order_of_the_data_set(dataset: ShardDataset) -> None:
    whole = dataset.subset(range(N))
    assert labels(whole, shuffle=True) == labels(dataset, shuffle=True)
    assert whole.fingerprint == dataset.fingerprint


def test_resumes_at_every_step_and_refuses_the_state_of_another_view(dataset: ShardDataset) -> None:
    view, other = dataset.split({"train": 0.6, "val": 0.4}).values()
    loader = ConcurrentDataLoader(view, 16, shuffle=True)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(batch["label"].tolist())
        states.append(loader.state_dict())
    for step, state in enumerate(states[:-1]):
        again = ConcurrentDataLoader(view, 16, shuffle=True)
        again.load_state_dict(state)
        assert [batch["label"].tolist() for batch in again] == whole[step:]
    for strange in (other, dataset):
        with pytest.raises(LoaderStateError, match="dataset"):
            ConcurrentDataLoader(strange, 16, shuffle=True).load_state_dict(states[1])


def test_an_empty_view_has_no_batches(dataset: ShardDataset) -> None:
    view = dataset.filter(lambda sample: False, columns=["label"])
    loader = ConcurrentDataLoader(view, 4, shuffle=True)
    assert (len(view), len(loader), list(loader), view[:]) == (0, 0, [], [])
    assert view.column("label").shape == (0,)
    with pytest.raises(IndexError):
        view[0]


def test_a_projection_is_a_view(dataset: ShardDataset) -> None:
    view = dataset.select_columns(["name", "label"]).subset(range(50, 60))
    assert view.columns == ("name", "label")
    assert view[0] == {"name": "sample 50", "label": 50}
    (batch,) = ConcurrentDataLoader(view, 10)
    assert list(batch) == ["name", "label"]
    with pytest.raises(SchemaError, match="no such column"):
        dataset.select_columns(["lable"])


def test_errors_name_the_sample_in_the_data_set(dataset: ShardDataset) -> None:
    def fail(sample: dict[str, Any]) -> None:
        raise ValueError(sample["name"])

    view = dataset.subset([150])
    with pytest.raises(TransformError) as caught:
        list(ConcurrentDataLoader(view, 1, transform=fail))
    assert caught.value.sample == 150


# -- what is fetched ---------------------------------------------------------------------------------------------------


def big(url: str, *, samples: int = 48, sample_bytes: int = 200_000) -> str:
    """Three shards of sixteen samples, where a sample is worth a request of its own."""
    with ShardWriter(url, columns={"data": "bytes", "label": "int64"}, shard_size="3200KB") as writer:
        for number in range(samples):
            writer.write({"data": np.random.default_rng(number).bytes(sample_bytes), "label": number})
    return url


@pytest.mark.parametrize("cached", [False, True])
def test_of_shards_with_few_samples_only_these_are_fetched(tmp_path: Path, cached: bool, no_leaks: None) -> None:
    url = big(str(tmp_path / "data"))
    with ShardDataset(url, cache_dir=tmp_path / "cache" if cached else None) as dataset:
        assert len(dataset.manifest.shards) >= 3
        before = dataset.fetch_stats.num_bytes
        view = dataset.subset([3, 20, 21, 40])
        for _ in range(2):
            seen = {}
            for batch in ConcurrentDataLoader(view, 2, shuffle=True):
                seen.update(zip(batch["label"].tolist(), map(bytes, batch["data"]), strict=True))
            assert seen == {n: np.random.default_rng(n).bytes(200_000) for n in (3, 20, 21, 40)}
        assert dataset.fetch_stats.num_bytes - before < (1.1 if cached else 2.1) * 4 * 200_000


def test_without_payload_only_tails_are_fetched(tmp_path: Path) -> None:
    url = big(str(tmp_path / "data"))
    with ShardDataset(url, columns=["label"]) as dataset:
        assert sorted(labels(dataset, shuffle=True)) == list(range(48))
        assert dataset.fetch_stats.num_bytes < 100_000


def test_a_shard_that_is_gone_is_one_error_with_the_sample(tmp_path: Path, no_leaks: None) -> None:
    url = big(str(tmp_path / "data"))
    with ShardDataset(url) as dataset:
        entry = dataset.manifest.shards[1]

        async def delete() -> None:
            async with open_store(url) as store:
                await store.delete(entry.key)

        with LoopThread() as loop:
            loop.run(delete())
        first = int(dataset.unit_bounds[1])
        for chosen in ([first], range(48)):  # read by sample, and as a whole
            with pytest.raises(NotFound) as caught:
                list(ConcurrentDataLoader(dataset.subset(chosen), 4))
            assert caught.value.key == entry.key
            assert caught.value.sample == first
            assert caught.value.url is not None


def test_decayed_samples_are_fetched_again(tmp_path: Path) -> None:
    url = big(str(tmp_path / "data"))
    with ShardDataset(url, cache_dir=tmp_path / "cache") as dataset:
        view = dataset.subset([3, 20])
        first = [bytes(data) for batch in ConcurrentDataLoader(view, 2) for data in batch["data"]]
        for file in (tmp_path / "cache").glob("*.sparse"):
            with file.open("r+b") as stream:
                stream.write(bytes(3_000_000))
        again = [bytes(data) for batch in ConcurrentDataLoader(view, 2) for data in batch["data"]]
        assert again == first


# -- processes and ends ------------------------------------------------------------------------------------------------


def test_pickles_with_its_selection(tmp_path: Path) -> None:
    with ShardDataset(big(str(tmp_path / "data"))) as dataset:
        view = dataset.subset([1, 30]).select_columns(["label"])
        parts = pickle.dumps([view, view.subset([1])])
    copy, part = pickle.loads(parts)
    try:
        assert copy[:] == [{"label": 1}, {"label": 30}]
        assert part[:] == [{"label": 30}]
        assert copy.base is part.base
        assert labels(copy) == [1, 30]
    finally:
        copy.base.close()


def test_ends_with_its_data_set(url: str, no_leaks: None) -> None:
    dataset = ShardDataset(url)
    view = dataset.subset([1])
    dataset.close()
    with pytest.raises(StoreClosed):
        view[0]


def test_says_what_it_is(dataset: ShardDataset) -> None:
    view = dataset.subset([5, 3])
    assert isinstance(view, DatasetView)
    assert "samples=2" in repr(view)
    assert view.sample_numbers.tolist() == [3, 5]
    assert (view.url, view.metadata, view.schema) == (dataset.url, dataset.metadata, dataset.schema)


# -- what cannot work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        ([0.9, 0.1], [183, 20]),
        ([0.5, 0.25], [101, 51]),
        ([1.0], [203]),
        ([3, 200], [3, 200]),
        ([10, 0], [10, 0]),
        ([0.1] * 10, [21, 21, 21, 20, 20, 20, 20, 20, 20, 20]),
    ],
)
def test_splits_have_these_sizes(dataset: ShardDataset, parts: list[float], sizes: list[int]) -> None:
    views = dataset.split(parts)
    assert [len(view) for view in views] == sizes
    numbers = np.concatenate([view.sample_numbers for view in views])
    assert len(set(numbers.tolist())) == sum(sizes)
    assert [view.sample_numbers.tolist() for view in dataset.split(parts)] == [
        view.sample_numbers.tolist() for view in views
    ]


def test_a_split_costs_nothing_until_it_is_used(dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    members = selection.permutation_members

    def noted(key: int, num_items: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        asked.append(start)
        return members(key, num_items, start, stop)

    monkeypatch.setattr(selection, "permutation_members", noted)
    train, rest = dataset.split([0.8, 0.2])
    half, _ = rest.split([0.5, 0.5])
    assert (len(train), len(rest), len(half)) == (162, 41, 21)
    assert asked == []
    numbers = half.sample_numbers.tolist()
    assert half.sample_numbers.tolist() == numbers
    assert asked == [162, 0]
    assert set(numbers) < set(rest.sample_numbers.tolist())
    assert asked == [162, 0]


def test_splits_stay_what_they_were(dataset: ShardDataset) -> None:
    parts = dataset.split([0.5, 0.3], seed=7)
    order = permutation(derive_key("split", 7), N)
    assert parts[0].sample_numbers.tolist() == sorted(order[:101].tolist())
    assert parts[1].sample_numbers.tolist() == sorted(order[101:162].tolist())


@pytest.mark.parametrize("parts", [[], [0.7, 0.7], [-0.1, 0.5], [0.0], [100, 104], [float("nan")], ["all"], [True]])
def test_a_split_that_cannot_be_is_refused(dataset: ShardDataset, parts: list[Any]) -> None:
    with pytest.raises(ConfigurationError):
        dataset.split(parts)


def test_selections_that_cannot_be_are_refused(dataset: ShardDataset) -> None:
    with pytest.raises(IndexError, match="sample 203"):
        dataset.subset([203])
    with pytest.raises(IndexError, match="sample -1"):
        dataset.subset([-1])
    with pytest.raises(ConfigurationError, match="numbers"):
        dataset.subset([0.5])
    with pytest.raises(ConfigurationError, match="one bool per sample"):
        dataset.filter(lambda columns: columns["label"], columns=["label"], vectorized=True)
    with pytest.raises(ConfigurationError, match="one bool per sample"):
        dataset.filter(lambda columns: np.ones(3, bool), columns=["label"], vectorized=True)
    with pytest.raises(ConfigurationError, match="columns of its predicate"):
        dataset.filter(lambda sample: True, columns=[])
    with pytest.raises(SchemaError, match="payload"):
        dataset.filter(lambda sample: True, columns=["data"])
    with pytest.raises(SchemaError, match="no such column"):
        dataset.filter(lambda sample: True, columns=["lable"])


def test_who_needs_a_shard_that_is_gone_first_is_named_although_another_batch_learns_of_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch begins in a shard that arrives after the failure of the next shard."""
    url = big(str(tmp_path / "data"))
    with ShardDataset(url) as dataset:
        source = type(dataset.source)
        acquire = source.acquire
        has_failed = asyncio.Event()

        async def in_another_order(self: Any, unit: int) -> Any:
            if unit == 1:
                try:
                    raise NotFound("gone", key="its key")
                finally:
                    has_failed.set()
            await has_failed.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            return await acquire(self, unit)

        monkeypatch.setattr(source, "acquire", in_another_order)
        first = int(dataset.unit_bounds[1])
        loader = ConcurrentDataLoader(dataset.subset(range(first - 2, first + 14)), 4)
        batches = iter(loader)
        with pytest.raises(NotFound) as caught:
            next(batches)
    assert (caught.value.key, caught.value.sample) == ("its key", first)


def test_a_filter_by_a_condition(url: str) -> None:
    with ShardDataset(url) as dataset:
        view = dataset.filter("5 <= label < 9 and name != 'sample 7'")
        assert [sample["label"] for sample in view[:]] == [5, 6, 8]
        assert view.filter("label > 5").column("label").tolist() == [6, 8]
        with pytest.raises(ConfigurationError, match="names its own columns"):
            dataset.filter("label == 1", columns=["label"])
        with pytest.raises(ConfigurationError, match="needs the columns"):
            dataset.filter(lambda sample: True)
        with pytest.raises(ConfigurationError, match="not allowed"):
            dataset.filter("label")
        with pytest.raises(SchemaError):
            dataset.filter("data == 'x'")
