"""A snapshot with deleted samples is read like a dataset that never had them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader import ConcurrentDataLoader, Mixture, ShardDataset
from concurrent_loader.errors import LoaderStateError
from concurrent_loader.storage import ShardWriter, delete

COLUMNS = {"data": "bytes", "label": "int64", "name": "str", "ragged": "int16[...]"}
NUM_SAMPLES = 400


def sample(number: int) -> dict[str, Any]:
    return {
        "data": number.to_bytes(2, "big") * 100,
        "label": number,
        "name": f"sample {number}",
        "ragged": np.full(2, number, np.int16),
    }


def write(url: str | Path, numbers: list[int], **options: Any) -> None:
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", **options) as writer:
        for number in numbers:
            writer.write(sample(number))


DELETED = [*range(90), 101, 102, 200, *range(350, 400, 2)]
LIVE = [number for number in range(NUM_SAMPLES) if number not in set(DELETED)]


@pytest.fixture(scope="module")
def url() -> str:
    url = f"memory://deleted-{uuid4().hex}"
    write(url, list(range(NUM_SAMPLES)))
    assert delete(url, ids=DELETED).num_deleted == len(DELETED)
    return url


@pytest.fixture
def dataset(url: str) -> Iterator[ShardDataset]:
    with ShardDataset(url) as dataset:
        yield dataset


def labels(samples: list[dict[str, Any]]) -> list[int]:
    return [each["label"] for each in samples]


def test_samples_are_numbered_from_zero_without_gaps(dataset: ShardDataset) -> None:
    assert len(dataset) == len(LIVE) == dataset.manifest.num_samples
    assert labels(dataset[:]) == LIVE
    assert labels(dataset[5:50:7]) == LIVE[5:50:7]
    for index in (0, 17, -1):
        got, expected = dataset[index], sample(LIVE[index])
        assert got.pop("ragged").tolist() == expected.pop("ragged").tolist()
        assert got == expected
    with pytest.raises(IndexError):
        dataset[len(LIVE)]


def test_columns(dataset: ShardDataset) -> None:
    assert dataset.column("label").tolist() == LIVE
    assert dataset.column("name") == [f"sample {number}" for number in LIVE]
    assert dataset.subset([3, 100, 200]).column("label").tolist() == [LIVE[3], LIVE[100], LIVE[200]]
    assert dataset.subset([3, 100, 200]).column("name") == [f"sample {LIVE[at]}" for at in (3, 100, 200)]


def test_views(dataset: ShardDataset) -> None:
    even = dataset.filter(lambda each: each["label"] % 2 == 0, columns=["label"])
    assert labels(even[:]) == [number for number in LIVE if number % 2 == 0]
    assert labels(even.subset(range(5, 9))[:]) == [number for number in LIVE if number % 2 == 0][5:9]
    parts = dataset.split([0.5, 0.5], seed=3)
    assert sorted(labels(parts[0][:]) + labels(parts[1][:])) == LIVE


def test_earlier_snapshots_have_all_samples(url: str) -> None:
    with ShardDataset(url, snapshot=1) as before:
        assert labels(before[:]) == list(range(NUM_SAMPLES))


def epoch(dataset: Any, **options: Any) -> list[tuple[int, int, bytes, str]]:
    """The samples of an epoch with their numbers, in order."""
    seen = []
    for batch in ConcurrentDataLoader(dataset, batch_size=16, last_batch="short", seed=5, **options):
        rows = zip(batch.sample_ids, batch["label"].tolist(), batch["data"], batch["name"], strict=True)
        seen += [(int(number), label, bytes(data), name) for number, label, data, name in rows]
    return seen


@pytest.mark.parametrize("options", [{"shuffle": False}, {"shuffle": True}, {"shuffle": True, "shuffle_window": 60}])
def test_an_epoch_has_each_live_sample_once(dataset: ShardDataset, options: dict[str, Any]) -> None:
    seen = epoch(dataset, **options)
    assert sorted(label for _, label, _, _ in seen) == LIVE
    for number, label, data, name in seen:
        assert LIVE[number] == label
        assert (data, name) == (sample(label)["data"], sample(label)["name"])


@pytest.mark.slow
def test_an_epoch_in_order_is_that_of_a_dataset_that_never_had_the_samples(dataset: ShardDataset) -> None:
    native = f"memory://native-{uuid4().hex}"
    write(native, LIVE)
    with ShardDataset(native) as other:
        assert epoch(dataset, shuffle=False) == epoch(other, shuffle=False)
        assert sorted(epoch(dataset, shuffle=True)) == sorted(epoch(other, shuffle=True))


def test_views_and_mixtures_load_live_samples(dataset: ShardDataset) -> None:
    view = dataset.subset(range(10, 150, 3))
    seen = epoch(view, shuffle=True)
    assert sorted(label for _, label, _, _ in seen) == LIVE[10:150:3]
    assert all(LIVE[number] == label for number, label, _, _ in seen)
    mixture = Mixture([dataset.subset(range(40)), dataset.subset(range(40, 80))], [1, 1], per="sample")
    assert {label for _, label, _, _ in epoch(mixture)} <= set(LIVE[:80])


def test_shards_without_live_samples_are_never_fetched(url: str) -> None:
    with ShardDataset(url) as dataset:
        counts = np.diff(dataset.unit_bounds)
        assert (counts == 0).sum() > 2
        used = np.flatnonzero(counts)
        gets = dataset.fetch_stats.num_gets
        epoch(dataset, shuffle=True)
        assert dataset.fetch_stats.num_gets - gets == len(used)
        gets = dataset.fetch_stats.num_gets
        dataset.column("name")
        assert dataset.fetch_stats.num_gets - gets == len(used)


def test_a_state_of_the_snapshot_before_is_refused(url: str) -> None:
    with ShardDataset(url, snapshot=1) as before, ShardDataset(url) as after:
        loader = ConcurrentDataLoader(before, batch_size=16, shuffle=True)
        state = loader.state_dict()
        with pytest.raises(LoaderStateError):
            ConcurrentDataLoader(after, batch_size=16, shuffle=True).load_state_dict(state)


def test_a_run_resumes_with_the_right_samples(dataset: ShardDataset) -> None:
    whole = epoch(dataset, shuffle=True)
    loader = ConcurrentDataLoader(dataset, batch_size=16, last_batch="short", seed=5, shuffle=True)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    state = loader.state_dict()
    again = ConcurrentDataLoader(dataset, batch_size=16, last_batch="short", seed=5, shuffle=True)
    again.load_state_dict(state)
    rest = [label for batch in again for label in batch["label"].tolist()]
    assert rest == [label for _, label, _, _ in whole][7 * 16 :]


def test_a_cached_epoch(url: str, tmp_path: Path) -> None:
    with ShardDataset(url, cache_dir=tmp_path / "cache") as dataset:
        first = epoch(dataset, shuffle=True)
        gets = dataset.fetch_stats.num_gets
        assert epoch(dataset, shuffle=True) == first
        assert dataset.fetch_stats.num_gets == gets


@pytest.mark.processes
def test_worker_processes(tmp_path: Path) -> None:
    write(tmp_path / "data", list(range(NUM_SAMPLES)))
    delete(tmp_path / "data", ids=DELETED)
    with ShardDataset(tmp_path / "data") as dataset:
        assert epoch(dataset, shuffle=True, num_workers=2) == epoch(dataset, shuffle=True)


def test_appending_keeps_the_deletion(url: str) -> None:
    whole = f"memory://appended-{uuid4().hex}"
    write(whole, list(range(50)))
    delete(whole, where="label < 20 and label != 3")
    write(whole, list(range(50, 70)), append=True)
    delete(whole, where="name == 'sample 60'")
    expected = [3, *range(20, 60), *range(61, 70)]
    with ShardDataset(whole) as dataset:
        assert labels(dataset[:]) == dataset.column("label").tolist() == expected
        assert len(dataset.manifest.bundles) == 2
    write(whole, [1, 2], overwrite=True)
    with ShardDataset(whole) as dataset:
        assert labels(dataset[:]) == [1, 2]
        assert dataset.manifest.deleted is None


def test_a_dataset_of_deleted_samples_alone_is_empty(url: str) -> None:
    whole = f"memory://emptied-{uuid4().hex}"
    write(whole, list(range(50)))
    assert delete(whole, where="label >= 0").num_samples == 0
    with ShardDataset(whole) as dataset:
        assert len(dataset) == 0
        assert dataset[:] == []
        assert dataset.column("label").tolist() == []
        assert dataset.column("name") == []
    write(whole, [7], append=True)
    with ShardDataset(whole) as dataset:
        assert labels(dataset[:]) == [7]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_against_a_plain_list(data: st.DataObject) -> None:
    """Any sequence of deletions and appended samples, against the same operations on a list."""
    whole = f"memory://model-{uuid4().hex}"
    model = list(range(data.draw(st.integers(1, 60))))
    write(whole, model)
    following = len(model)
    for _ in range(data.draw(st.integers(1, 4))):
        if model and data.draw(st.booleans()):
            ids = data.draw(st.sets(st.integers(0, len(model) - 1), max_size=30))
            report = delete(whole, ids=sorted(ids))
            model = [number for at, number in enumerate(model) if at not in ids]
            assert (report.num_deleted, report.num_samples) == (len(ids), len(model))
        else:
            more = list(range(following, following + data.draw(st.integers(0, 40))))
            following += len(more)
            write(whole, more, append=True, allow_empty=True)
            model += more
    with ShardDataset(whole) as dataset:
        assert labels(dataset[:]) == dataset.column("label").tolist() == model
        if model:
            chosen = data.draw(st.sets(st.integers(0, len(model) - 1)))
            view = dataset.subset(sorted(chosen))
            assert view.column("name") == [f"sample {model[at]}" for at in sorted(chosen)]


def test_of_a_shard_with_few_live_samples_only_these_are_fetched() -> None:
    whole = f"memory://sparse-{uuid4().hex}"
    with ShardWriter(whole, columns={"data": "bytes", "label": "int64"}, shard_size="16MiB") as writer:
        for number in range(20):
            writer.write({"data": bytes([number]) * 500_000, "label": number})
    delete(whole, where="label not in [3, 17]")
    with ShardDataset(whole) as dataset:
        before = dataset.fetch_stats.num_bytes
        (batch,) = ConcurrentDataLoader(dataset, batch_size=4)
        assert dataset.fetch_stats.num_bytes - before < 1_100_000
        assert [bytes(data[:1]) for data in batch["data"]] == [b"\3", b"\21"]
        assert (batch["label"].tolist(), [int(each) for each in batch.sample_ids]) == ([3, 17], [0, 1])
