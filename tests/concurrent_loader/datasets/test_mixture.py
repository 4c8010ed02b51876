from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch

from concurrent_loader import Batch, ConcurrentDataLoader, Mixture, ObjectDataset, ShardDataset
from concurrent_loader.errors import LoaderError, LoaderStateError
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, DatasetChanged, NotFound, StorageError, StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores import Store, open_store

MakeJpeg = Callable[..., bytes]

SIZES = (60, 120)


def write(url: str, size: int, *, of: int, options: dict[str, Any] | None = None) -> str:
    """Samples that say which dataset they are of."""
    columns = {"data": "bytes", "label": "int64", "name": "str"}
    with ShardWriter(url, columns=columns, shard_size="4KiB", storage_options=options) as writer:
        for number in range(size):
            writer.write({"data": bytes([of]) * (300 + number), "label": number, "name": f"{of}/{number}"})
    return url


@pytest.fixture
def pair() -> Iterator[list[ShardDataset]]:
    urls = [write(f"memory://{uuid4().hex}", size, of=number) for number, size in enumerate(SIZES)]
    with ShardDataset(urls[0]) as first, ShardDataset(urls[1]) as second:
        yield [first, second]


def names(loader: ConcurrentDataLoader) -> list[list[str]]:
    """The names of each batch's samples; checks that all columns and attributes agree with them."""
    batches = []
    for batch in loader:
        assert isinstance(batch, Batch)
        got = [f"{of}/{number}" for of, number in zip(batch.sources.tolist(), batch.sample_ids.tolist(), strict=True)]
        assert batch["name"] == got
        assert batch["label"].tolist() == batch.sample_ids.tolist()
        for data, of, number in zip(batch["data"], batch.sources.tolist(), batch.sample_ids.tolist(), strict=True):
            assert bytes(data) == bytes([of]) * (300 + number)
        batches.append(got)
    return batches


# -- what is delivered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["shortest", "longest", 7])
def test_batches_of_one_data_set_each(pair: list[ShardDataset], stop: Any, no_leaks: None) -> None:
    loader = ConcurrentDataLoader(Mixture(pair, [1, 1], stop=stop), 10, shuffle=True)
    seen: dict[str, int] = {}
    for _ in range(2):
        batches = names(loader)
        assert len(batches) == len(loader) == {"shortest": 12, "longest": 24, 7: 7}[stop]
        for batch in batches:
            assert len({name[0] for name in batch}) == 1
            for name in batch:
                seen[name] = seen.get(name, 0) + 1
    if stop == "longest":  # two epochs of the longer dataset, four of the shorter one
        assert seen == {f"{of}/{n}": 4 - 2 * of for of, size in enumerate(SIZES) for n in range(size)}
    else:
        assert max(seen.values()) <= 2


def test_samples_of_all_in_every_batch(pair: list[ShardDataset]) -> None:
    loader = ConcurrentDataLoader(Mixture(pair, per="sample"), 12, shuffle=True)  # by their sizes
    batches = names(loader)
    assert len(batches) == 15
    assert all([name[0] for name in batch].count("0") == 4 for batch in batches)
    assert sorted(name for batch in batches for name in batch) == sorted(
        f"{of}/{n}" for of, size in enumerate(SIZES) for n in range(size)
    )


@pytest.mark.slow
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_neither_threads_nor_prefetching_change_anything(pair: list[ShardDataset], per: Any, tmp_path: Path) -> None:
    def run(**options: Any) -> list[list[str]]:
        return names(ConcurrentDataLoader(Mixture(pair, [1, 2], per=per), 12, shuffle=True, seed=5, **options))

    first = run()
    assert first == run(num_threads=1, prefetch_batches=1, prefetch_bytes=0)
    assert first == run(num_threads=5, prefetch_batches=20)
    assert first != names(ConcurrentDataLoader(Mixture(pair, [1, 2], per=per), 12, shuffle=True, seed=6))
    copies = [ShardDataset(dataset.url, cache_dir=tmp_path) for dataset in pair]
    try:
        loader = ConcurrentDataLoader(Mixture(copies, [1, 2], per=per), 12, shuffle=True, seed=5)
        assert names(loader) == first
        second = names(loader)
        loader.set_epoch(1)
        gets = loader.stats.fetch.num_gets
        assert names(loader) == second
        assert loader.stats.fetch.num_gets == gets
    finally:
        for copy in copies:
            copy.close()


@pytest.mark.parametrize("per", ["batch", "sample"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_make_the_same_global_batches(pair: list[ShardDataset], per: Any, world_size: int) -> None:
    mixture = Mixture(pair, [2, 3], per=per)
    whole = names(ConcurrentDataLoader(mixture, 16, shuffle=True, drop_last=True))
    ranks = [
        names(
            ConcurrentDataLoader(
                mixture, 16 // world_size, shuffle=True, drop_last=True, rank=rank, world_size=world_size
            )
        )
        for rank in range(world_size)
    ]
    assert [[name for part in step for name in part] for step in zip(*ranks, strict=True)] == whole


@pytest.mark.slow
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_resumes_at_every_step_of_two_epochs(pair: list[ShardDataset], per: Any) -> None:
    mixture = Mixture(pair, [1, 3], per=per, stop=9)
    loader = ConcurrentDataLoader(mixture, 16, shuffle=True)
    whole, states = [], []
    for _ in range(2):
        states.append(loader.state_dict())
        for batch in loader:
            whole.append(batch["name"])
            states.append(loader.state_dict())
        states.pop()
    assert len(whole) == len(states) == 18
    for step, state in enumerate(states):
        assert all(isinstance(value, int) for value in state.values())
        again = ConcurrentDataLoader(mixture, 16, shuffle=True)
        again.load_state_dict(state)
        rest = [batch["name"] for batch in again]
        assert rest == whole[step : 9 if step < 9 else 18]
    for other in (Mixture(pair, [1, 2], per=per, stop=9), Mixture(pair[::-1], [1, 3], per=per, stop=9), pair[0]):
        with pytest.raises(LoaderStateError, match="dataset"):
            ConcurrentDataLoader(other, 16, shuffle=True).load_state_dict(states[3])


def test_padded_samples_stand_at_the_end(pair: list[ShardDataset]) -> None:
    mixture = Mixture([pair[0].subset(range(50)), pair[1]], [1, 1], per="sample", stop="longest")
    for rank in range(2):
        loader = ConcurrentDataLoader(mixture, 8, shuffle=True, last_batch="pad", rank=rank, world_size=2)
        seen = [batch["name"][: 8 - batch.num_padded] for batch in loader]
        assert sum(map(len, seen)) < 8 * len(loader)


# -- different datasets -----------------------------------------------------------------------------------------------


@pytest.fixture
def images(make_jpeg: MakeJpeg) -> Iterator[tuple[ShardDataset, ObjectDataset]]:
    """Photographs in shards, and others as objects: the columns differ."""
    shards, objects = f"memory://{uuid4().hex}", f"memory://{uuid4().hex}"
    with ShardWriter(shards, columns={"label": "int64", "image": "jpeg", "box": "float32[4]"}) as writer:
        for number in range(24):
            writer.write({"image": make_jpeg(number), "label": number, "box": np.zeros(4, np.float32)})

    async def put() -> None:
        async with open_store(objects) as store:
            for number in range(24):
                await store.put(f"c{number % 4}/{number}.jpg", make_jpeg(100 + number, size=(64, 48)))

    with LoopThread() as loop:
        loop.run(put())
    with ShardDataset(shards) as first, ObjectDataset(objects, labels="folder") as second:
        yield first, second


def test_each_batch_has_the_columns_of_its_data_set(images: tuple[ShardDataset, ObjectDataset]) -> None:
    loader = ConcurrentDataLoader(Mixture(images), 6, shuffle=True, decode={"image": "rgb"})
    shapes = set()
    for batch in loader:
        (source,) = set(batch.sources.tolist())
        assert list(batch) == (["label", "image", "box"], ["image", "key", "label"])[source]
        shapes.add((source, tuple(batch["image"].shape)))
    assert shapes == {(0, (6, 3, 32, 48)), (1, (6, 3, 48, 64))}


def test_shared_batches_have_the_common_columns(images: tuple[ShardDataset, ObjectDataset]) -> None:
    mixture = Mixture(images, per="sample")
    assert mixture.columns == ("label", "image")
    assert mixture.schema["image"].type == "image"

    def crop(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": sample["image"][:, :16, :16], "label": sample["label"]}

    loader = ConcurrentDataLoader(mixture, 8, shuffle=True, decode={"image": "rgb"}, transform=crop)
    for batch in loader:
        assert batch["image"].shape == (8, 3, 16, 16)
        assert torch.bincount(batch.sources).tolist() == [4, 4]
        for source, label, sample in zip(
            batch.sources.tolist(), batch["label"].tolist(), batch.sample_ids.tolist(), strict=True
        ):
            assert label == images[source].column("label")[sample]


def test_views_of_one_data_set_are_mixed(pair: list[ShardDataset]) -> None:
    rare = pair[1].filter(lambda sample: sample["label"] % 10 == 0, columns=["label"])
    common = pair[1].filter(lambda sample: sample["label"] % 10 != 0, columns=["label"])
    loader = ConcurrentDataLoader(Mixture([rare, common], [1, 1], per="sample", stop="longest"), 8, shuffle=True)
    for batch in loader:
        assert [number % 10 == 0 for number in batch.sample_ids.tolist()] == [s == 0 for s in batch.sources.tolist()]
        assert torch.bincount(batch.sources).tolist() == [4, 4]
    assert loader.stats.fetch.num_gets == pair[1].fetch_stats.num_gets


def test_a_batch_keeps_its_sources_when_it_moves(pair: list[ShardDataset]) -> None:
    batch = next(iter(ConcurrentDataLoader(Mixture(pair), 4))).to("cpu")
    assert len(batch.sources) == 4
    assert len(Batch({}).sources) == 0


# -- failures and ends -------------------------------------------------------------------------------------------------


def lose(dataset: ShardDataset, *, flip: bool = False) -> str:
    key = dataset.manifest.shards[len(dataset.manifest.shards) // 2].key

    async def change(store: Store) -> None:
        if flip:
            data = bytearray((await store.get(key)).data)
            data[100] ^= 1
            await store.put(key, bytes(data))
        else:
            await store.delete(key)

    async def run() -> None:
        async with open_store(dataset.url) as store:
            await change(store)

    with LoopThread() as loop:
        loop.run(run())
    return key


@pytest.mark.parametrize("per", ["batch", "sample"])
@pytest.mark.parametrize(("which", "flip"), [(0, False), (1, False), (1, True)])
def test_errors_name_the_data_set_and_the_sample(
    pair: list[ShardDataset], per: Any, which: int, flip: bool, no_leaks: None
) -> None:
    key = lose(pair[which], flip=flip)
    kind: type[StorageError] = DatasetChanged if flip else NotFound
    with pytest.raises(kind) as caught:
        list(ConcurrentDataLoader(Mixture(pair, [1, 2], per=per, stop="longest"), 12, shuffle=True))
    assert (caught.value.url, caught.value.key) == (pair[which].url, key)
    assert caught.value.sample is not None


@pytest.mark.slow
def test_decayed_shards_of_any_data_set_are_fetched_again(tmp_path: Path) -> None:
    caches = [tmp_path / "0", tmp_path / "1"]
    datasets = [
        ShardDataset(write(f"memory://{uuid4().hex}", size, of=of), cache_dir=caches[of])
        for of, size in enumerate(SIZES)
    ]
    try:
        loader = ConcurrentDataLoader(Mixture(datasets, per="sample"), 12, shuffle=True)
        whole = names(loader)
        for cache in caches:
            for file in cache.glob("*.shard"):
                with file.open("r+b") as stream:
                    stream.seek(200)
                    stream.write(b"decay" * 10)
        loader.set_epoch(0)
        assert names(loader) == whole
        assert [dataset.cache_stats.num_quarantined > 0 for dataset in datasets] == [True, True]
    finally:
        for dataset in datasets:
            dataset.close()


@pytest.mark.parametrize("which", [0, 1])
def test_closing_a_data_set_under_way_is_an_error_not_a_hang(which: int, no_leaks: None) -> None:
    datasets = [ShardDataset(write(f"memory://{uuid4().hex}", size, of=of)) for of, size in enumerate(SIZES)]
    batches = iter(ConcurrentDataLoader(Mixture(datasets, per="sample", stop=1000), 12, prefetch_batches=1))
    next(batches)
    datasets[which].close()
    with pytest.raises((LoaderError, StoreClosed)):
        for _ in batches:
            pass
    for dataset in datasets:
        dataset.close()


def test_leaving_early_leaves_nothing(no_leaks: None, tmp_path: Path) -> None:
    datasets = [
        ShardDataset(write(f"memory://{uuid4().hex}", size, of=of), cache_dir=tmp_path) for of, size in enumerate(SIZES)
    ]
    mixture = Mixture(datasets, per="sample")
    for steps in range(4):
        for step, _ in enumerate(ConcurrentDataLoader(mixture, 12, shuffle=True)):
            if step == steps:
                break
        for dataset in datasets:
            assert dataset.reader.cache._pins == {}
            assert dataset.reader.cache._open == {}
    for dataset in datasets:
        dataset.close()


def test_an_error_elsewhere_lets_go_of_all_data_sets(pair: list[ShardDataset], no_leaks: None) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(threading.current_thread().name)

    for _ in range(5):
        with pytest.raises(LoaderError, match="decode"):
            list(ConcurrentDataLoader(Mixture(pair, per="sample"), 12, shuffle=True, transform=fail))
        assert [dataset.reader.cache._pins for dataset in pair] == [{}, {}]


def test_pickles_as_its_data_sets(tmp_path: Path) -> None:
    datasets = [ShardDataset(write(str(tmp_path / str(of)), size, of=of)) for of, size in enumerate(SIZES)]
    mixture = Mixture(datasets, [1, 4], per="sample")
    expected = names(ConcurrentDataLoader(mixture, 10, shuffle=True))
    data = pickle.dumps(mixture)
    for dataset in datasets:
        dataset.close()
    copy = pickle.loads(data)
    try:
        assert names(ConcurrentDataLoader(copy, 10, shuffle=True)) == expected
        assert copy.shares == (0.2, 0.8)
        assert "per='sample'" in repr(copy)
    finally:
        for dataset in copy.datasets:
            dataset.close()


@pytest.mark.slow
def test_the_same_mixture_with_another_cache(tmp_path: Path, no_leaks: None) -> None:
    datasets = [ShardDataset(write(str(tmp_path / str(of)), size, of=of)) for of, size in enumerate(SIZES)]
    halves = datasets[1].split([0.5, 0.5])
    mixture = Mixture([datasets[0], *halves], per="sample")
    assert [each.url for each in mixture.stored] == [dataset.url for dataset in datasets]
    assert mixture.cache_dir is None
    other = mixture.with_cache(tmp_path / "cache", "1MiB")
    assert (other.cache_dir, len(other.stored)) == (str(tmp_path / "cache"), 2)
    loaders = [ConcurrentDataLoader(each, 12, shuffle=True) for each in (mixture, other)]
    assert [batch["label"].tolist() for batch in loaders[0]] == [batch["label"].tolist() for batch in loaders[1]]
    assert loaders[0].state_dict() == loaders[1].state_dict()
    assert list((tmp_path / "cache").glob("*.shard"))
    for dataset in (*mixture.stored, *other.stored):
        dataset.close()


# -- what cannot work --------------------------------------------------------------------------------------------------


def test_weights_change_at_given_steps(pair: list[ShardDataset]) -> None:
    mixture = Mixture(pair, {0: [1, 0], 3: [1, 2]}, stop=6)
    assert mixture.shares == (1.0, 0.0)
    whole = [batch.sources.tolist() for batch in ConcurrentDataLoader(mixture, 4, shuffle=True)]
    assert [sum(map(max, whole[:3])), sum(map(max, whole[3:]))] == [0, 2]
    for wrong, reason in {
        "steps": ({1: [1, 1]}, "ascend from 0"), "late": ({0: [1, 1], 6: [1, 0]}, "lie before stop"),
        "zero": ({0: [0, 0]}, "positive"), "number": ({0: [1]}, "one weight per dataset"),
    }.values():  # fmt: skip
        with pytest.raises(ConfigurationError, match=reason):
            Mixture(pair, wrong, stop=6)
    with pytest.raises(ConfigurationError, match="number of steps as stop"):
        Mixture(pair, {0: [1, 1]})


def test_what_cannot_work_is_refused(pair: list[ShardDataset], images: tuple[ShardDataset, ObjectDataset]) -> None:
    strangers = [pair[0].select_columns(["name"]), images[0].select_columns(["box"])]
    refused: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("at least one dataset", ([],), {}),
        ("ShardDatasets", ([Mixture(pair)],), {}),
        ("one weight", (pair, [1]), {}),
        ("positive", (pair, [1, 0]), {}),
        ("positive", (pair, [1, float("nan")]), {}),
        ("per must be", (pair,), {"per": "epoch"}),
        ("stop must be", (pair,), {"stop": 0}),
        ("stop must be", (pair,), {"stop": "never"}),
        ("no column in common", (strangers,), {"per": "sample"}),
    ]  # fmt: skip
    for message, arguments, options in refused:
        with pytest.raises(ConfigurationError, match=message):
            Mixture(*arguments, **options)
    with pytest.raises(ConfigurationError, match="no common schema"):
        _ = Mixture(pair).columns
    with pytest.raises(ConfigurationError, match="no sample in a batch"):
        ConcurrentDataLoader(Mixture(pair, [1, 100], per="sample"), 8)
    with pytest.raises(ConfigurationError, match="too few samples"):
        ConcurrentDataLoader(Mixture([pair[0].subset(range(3)), pair[1]]), 8, drop_last=True)
    with pytest.raises(ConfigurationError, match="decode names a column"):
        ConcurrentDataLoader(Mixture(images), 8, decode={"picture": "rgb"})


def test_columns_of_different_types_are_not_mixed(pair: list[ShardDataset]) -> None:
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"label": "int32", "name": "str"}) as writer:
        writer.write({"label": 1, "name": "one"})
    with ShardDataset(url) as other:
        with pytest.raises(ConfigurationError, match="type differs") as caught:
            Mixture([pair[0], other], per="sample")
        assert caught.value.column == "label"
        assert Mixture([pair[0], other.select_columns(["name"])], per="sample").columns == ("name",)


# -- over S3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_from_two_stores(s3_bucket: Any, tmp_path: Path, no_leaks: None) -> None:
    remote = write(f"{s3_bucket.url}/data", SIZES[0], of=0, options=s3_bucket.storage_options)
    local = write(str(tmp_path / "data"), SIZES[1], of=1)
    with (
        ShardDataset(remote, storage_options=s3_bucket.storage_options, cache_dir=tmp_path / "cache") as first,
        ShardDataset(local) as second,
    ):
        for per in ("batch", "sample"):
            batches = names(ConcurrentDataLoader(Mixture([first, second], per=per), 12, shuffle=True))  # type: ignore[arg-type]
            assert sorted(name for batch in batches for name in batch) == sorted(
                f"{of}/{n}" for of, size in enumerate(SIZES) for n in range(size)
            )
