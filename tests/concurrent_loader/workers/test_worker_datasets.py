"""Worker processes make the batches of every kind of data set, the same as threads do."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ConcurrentDataLoader, Mixture, ObjectDataset, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, DatasetChanged
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores import Store, open_store

pytestmark = pytest.mark.processes

MakeJpeg = Callable[..., bytes]


def on_store(url: str, call: Callable[[Store], Any]) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await call(store)

    with LoopThread() as loop:
        loop.run(run())


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    """Starts what multiprocessing starts once a process, and keeps: the server that forks, and the tracker."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concurrent_loader.workers.worker_main"])
    child = context.Process(target=len, args=("",))
    child.start()
    child.join()
    child.close()


@pytest.fixture
def shards(tmp_path: Path, make_jpeg: MakeJpeg) -> Iterator[ShardDataset]:
    url = str(tmp_path / "shards")
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(60):
            writer.write({"image": make_jpeg(number), "label": number})
    with ShardDataset(url) as dataset:
        yield dataset


@pytest.fixture
def objects(tmp_path: Path, make_jpeg: MakeJpeg) -> Iterator[ObjectDataset]:
    url = str(tmp_path / "objects")

    async def put(store: Store) -> None:
        await asyncio.gather(*(store.put(f"c{n % 3}/{n:02d}.jpg", make_jpeg(100 + n)) for n in range(40)))

    on_store(url, put)
    with ObjectDataset(url, labels="folder") as dataset:
        yield dataset


def batches(dataset: Any, **options: Any) -> list[tuple[Any, ...]]:
    loader = ConcurrentDataLoader(dataset, 8, shuffle=True, seed=2, decode={"image": "rgb"}, **options)
    return [
        (
            batch["image"].tolist(),
            batch["label"].tolist(),
            batch.sample_ids.tolist(),
            batch.sources.tolist(),
            batch.num_padded,
        )
        for _ in range(2)
        for batch in loader
    ]


@pytest.mark.parametrize("kind", ["objects", "per batch", "per sample"])
def test_workers_give_what_threads_give(
    shards: ShardDataset, objects: ObjectDataset, kind: str, no_leaks: None
) -> None:
    view = shards.filter(lambda sample: sample["label"] % 3 != 0, columns=["label"])
    dataset: Any = {
        "objects": objects,
        "per batch": Mixture([view, objects.subset(range(5, 35))], [1, 1]),
        "per sample": Mixture([view, objects, shards.subset(range(30))], [2, 1, 1], per="sample"),
    }[kind]
    expected = batches(dataset)
    assert batches(dataset, num_workers=2, persistent_workers=True) == expected


def test_an_object_that_changed_is_the_same_error_from_a_worker(objects: ObjectDataset, no_leaks: None) -> None:
    on_store(objects.url, lambda store: store.put("c0/30.jpg", b"another"))
    with pytest.raises(DatasetChanged) as caught:
        list(ConcurrentDataLoader(objects, 8, num_workers=2))
    assert caught.value.key == "c0/30.jpg"
    assert str(caught.value.url).endswith("/objects")
    assert caught.value.sample == objects.column("key").index("c0/30.jpg")  # type: ignore[union-attr]


def test_what_lies_in_memory_is_refused(shards: ShardDataset) -> None:
    url = "memory://worker-datasets"
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, overwrite=True) as writer:
        writer.write(shards[0])
    with ShardDataset(url) as other, pytest.raises(ConfigurationError, match="memory"):
        ConcurrentDataLoader(Mixture([shards, other], [1, 1]), 8, num_workers=2)
