"""The layers of ConcurrentDataloader's benchmark, each for itself: store, dataset, loader, training.

Svogor et al. (arXiv 2211.04908) time what brings an item's bytes, what brings an item, what brings batches, and
training on them, from a local drive and from S3. Here the same layers stand in the same order, with the same images
for all sides:

- *store*: files as they are, one after another by ``open`` or botocore; or by one of our stores, 64 requests at once;
- *dataset*: items, decoded and augmented, in one process: ``dataset[i]`` one after another, or as many at once as the
  drop-in loader asks for;
- *loader*: batches of them, by torch's DataLoader with two workers, by the drop-in with the same arguments, or by our
  own datasets, whose loader has threads instead of workers;
- *training*: a step of a small network on each batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.delivery import Delivery
from benchmarks.machine import cpu_of_tree_s
from benchmarks.memory import peak_rss_bytes, start_peak_rss
from benchmarks.photo_places import Where, order_of
from benchmarks.photos import CLASSES
from benchmarks.side import workers_rss
from benchmarks.timed_photos import (
    BotocoreFiles,
    Files,
    FolderFiles,
    ObstoreFiles,
    Samples,
    TimedBatch,
    TimedPhoto,
    TimedPhotos,
    TimedPhotosAsync,
    collate_timed,
    decode_and_augment,
)
from benchmarks.training import INPUT_SIZE, Trainer, augmentation
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, ShardDataset
from concurrent_loader.storage.stores import open_store

Place = Literal["local", "s3"]
Layer = Literal["store", "dataset", "loader", "training"]
Side = Literal["vanilla", "our store", "threads", "coroutines", "objects", "shards"]

STORE_IN_FLIGHT = 64
_DROP_IN: Any = ConcurrentDataLoader  # with torch's arguments, which are not the native loader's


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    place: Place  # where the images are
    layer: Layer  # how far they come
    # ``"vanilla"``, and ours: the store's own rate; the drop-in over the same dataset, in threads; the drop-in over
    # one with coroutines; `ObjectDataset`; `ShardDataset`
    side: Side

    @property
    def is_slow(self) -> bool:
        """Whether it waits for one object after another, and so reads a part of the images."""
        return self.place == "s3" and self.side == "vanilla"

    @property
    def is_raw(self) -> bool:
        """Whether images are delivered as their files."""
        return self.layer == "store"


_SIDES: dict[Place, tuple[Side, ...]] = {
    "local": ("vanilla", "threads", "shards"),
    "s3": ("vanilla", "threads", "coroutines", "objects", "shards"),
}
_TRAINED: tuple[Side, ...] = ("vanilla", "threads", "shards")  # a step takes so long that the others add nothing new
CASES = tuple(
    case
    for place, sides in _SIDES.items()
    for case in (
        Case(place, "store", "vanilla"),
        Case(place, "store", "our store"),
        *(Case(place, "dataset", side) for side in sides),
        *(Case(place, "loader", side) for side in sides),
        *(Case(place, "training", side) for side in _TRAINED),
    )
)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one measurement of a layer found."""

    num_samples: int  # delivered
    class_counts: list[int]  # of each class
    digest: str  # of their numbers, and of their files where they were delivered as they are; whatever the order
    epoch_s: float  # from making the loader to the last batch, or to the end of its step
    first_batch_s: float  # from the same moment until as many images were there as a batch has
    # of each batch, from its first item begun to its being whole; empty where items have no beginning
    load_s: list[float]
    cpu_s: float  # processor time of the process and its workers
    peak_rss_mb: float  # highest resident memory of the process, and its workers' proportional share at the end


def measure_layer(
    case: Case, where: Where, limit: int | None, batch_size: int, num_workers: int, in_flight: int
) -> Epoch:
    """Measures one epoch; for a process of its own."""
    multiprocessing.set_start_method("fork", force=True)  # torch's workers, as anywhere on Linux
    torch.manual_seed(0)
    order = order_of(len(where.names), limit)
    trainer = None
    if case.layer == "training":
        nothing = torch.zeros(batch_size, 3, INPUT_SIZE, INPUT_SIZE, dtype=torch.uint8)
        Trainer(len(CLASSES)).step(nothing, torch.zeros(batch_size, dtype=torch.int64))  # the first step takes longer
        trainer = Trainer(len(CLASSES))
    delivery = Delivery(batch_size, len(CLASSES), raw=case.is_raw)
    start_peak_rss()
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    if case.side == "our store":
        asyncio.run(_get_all(case, where, order, delivery.take_item))
        return _epoch(delivery, began, cpu_before_s)
    epoch = None
    for got in _deliver(case, where, order, batch_size, num_workers, in_flight):
        if isinstance(got, TimedPhoto):
            delivery.take_item(got)
        else:
            delivery.take(got)
            if trainer is not None:
                assert isinstance(got.images, Tensor)
                trainer.step(got.images, got.labels)
        if delivery.num_samples == len(order) and epoch is None:
            epoch = _epoch(delivery, began, cpu_before_s)  # before the workers end
    if epoch is None or delivery.num_samples != len(order):
        raise AssertionError(f"{case} delivered {delivery.num_samples} images of {len(order)}")
    return epoch


def _epoch(delivery: Delivery, began: float, cpu_before_s: float) -> Epoch:
    epoch_s, cpu_s = perf_counter() - began, cpu_of_tree_s() - cpu_before_s
    return Epoch(
        num_samples=delivery.num_samples,
        class_counts=delivery.class_counts.tolist(),
        digest=delivery.digest,
        epoch_s=epoch_s,
        first_batch_s=delivery.first_batch_at - began,
        load_s=delivery.load_s(),
        cpu_s=cpu_s,
        peak_rss_mb=(peak_rss_bytes() + workers_rss()) / 1e6,
    )


async def _get_all(case: Case, where: Where, order: Sequence[int], take: Callable[[TimedPhoto], None]) -> None:
    url, options = (where.root, {}) if case.place == "local" else (where.objects_url, dict(where.options))
    numbers = iter(order)

    async def work() -> None:
        for number in numbers:
            began_s = perf_counter()
            data = (await store.get(where.names[number])).data
            take(TimedPhoto(number, bytes(data), where.labels[number], began_s, perf_counter()))

    async with open_store(url, **options) as store, asyncio.TaskGroup() as group:
        for _ in range(STORE_IN_FLIGHT):
            group.create_task(work())


def _deliver(
    case: Case, where: Where, order: list[int], batch_size: int, num_workers: int, in_flight: int
) -> Iterator[TimedBatch | TimedPhoto]:
    """What the layer delivers: items or batches."""
    if case.layer in ("loader", "training"):
        if case.side in ("objects", "shards"):
            yield from _native(case, where, batch_size)
            return
        common: dict[str, Any] = {
            "batch_size": batch_size,
            "sampler": order,
            "num_workers": num_workers,
            "prefetch_factor": 4 if num_workers else None,
            "collate_fn": collate_timed,
        }
        photos = _photos(case, where)
        if case.side == "vanilla":
            yield from DataLoader(photos, **common)
        else:
            yield from _DROP_IN(photos, in_flight=in_flight, **common)
    elif case.side == "vanilla":
        photos = _photos(case, where)
        for number in order:
            yield photos[number]
    else:
        yield from _DROP_IN(
            _photos(case, where), batch_size=None, sampler=order, in_flight=in_flight, collate_fn=_as_it_is
        )


def _photos(case: Case, where: Where) -> TimedPhotos:
    """The dataset whose items the layer asks for."""
    treat = None if case.is_raw else decode_and_augment()
    if case.side in ("vanilla", "threads"):
        files: Files = (
            FolderFiles(where.root, where.names)
            if case.place == "local"
            else BotocoreFiles(where.bucket, where.options, [f"{where.objects}/{name}" for name in where.names])
        )
        return TimedPhotos(files, where.labels, treat)
    if case.side == "coroutines":
        keys = [f"{where.objects}/{name}" for name in where.names]
        return TimedPhotosAsync(ObstoreFiles(where.bucket, where.options, keys), where.labels, treat)
    if case.side == "objects":
        return TimedPhotosAsync(Samples(ObjectDataset, where.objects_url, where.options), where.labels, treat)
    url, options = (where.local_shards, {}) if case.place == "local" else (where.shards_url, where.options)
    return TimedPhotosAsync(Samples(ShardDataset, url, options), where.labels, treat)


def _native(case: Case, where: Where, batch_size: int) -> Iterator[TimedBatch]:
    """Batches by our own datasets; no one knows when an item of them is begun, for a request brings many."""
    augment = augmentation()
    numbers = {name: number for number, name in enumerate(where.names)}
    dataset: ShardDataset | ObjectDataset
    if case.side == "objects":
        dataset = ObjectDataset(
            where.objects_url, column_type="jpeg", labels="folder", storage_options=dict(where.options)
        )
    elif case.place == "local":
        dataset = ShardDataset(where.local_shards)
    else:
        dataset = ShardDataset(where.shards_url, storage_options=dict(where.options))
    with dataset:
        loader = ConcurrentDataLoader(
            dataset,
            batch_size,
            shuffle=True,
            decode={"image": "rgb"},
            transform=lambda sample: {**sample, "image": augment(sample["image"])},
        )
        for batch in loader:
            found = [numbers[key] for key in batch["key"]] if case.side == "objects" else batch["number"].tolist()
            yield TimedBatch(found, batch["image"], batch["label"], 0.0, 0.0)


def _as_it_is(item: TimedPhoto) -> TimedPhoto:
    return item
