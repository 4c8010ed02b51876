"""One measurement of the forerunners' benchmark, in a process of its own: a layer, a cell of a heat map, or a reader.

*Layers*: Svogor et al. (arXiv 2211.04908) time what loads an item's bytes, what loads an item, what loads batches, and
training on them, from a local drive and from S3. Here the same layers stand in the same order, with the same images for
all sides:

- *store*: files as they are, one after another by ``open`` or botocore; or by one of our stores, 64 requests at once;
- *dataset*: items, decoded and augmented, in one process: ``dataset[i]`` one after another, or as many at once as the
  drop-in loader asks for;
- *loader*: batches of them, by torch's DataLoader with two workers, by the drop-in with the same arguments, or by our
  own datasets, whose loader has threads instead of workers;
- *training*: a step of a small network on each batch.

*Cells*: how many objects per second come with so many workers and requests in flight. The drop-in loader asks an
`ObjectDataset` for items, in its own process or in forked workers. A first epoch opens connections and, for "auto",
learns; the second is measured.

*Readers*: datadings' comparison, images from the local drive as bytes, from a folder and from a format of few files.
All of it comes from the page cache: what is compared is what a sample costs beyond its bytes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.machine import cpu_of_tree_s, peak_rss_bytes, start_peak_rss, workers_rss
from benchmarks.photos import CLASSES
from benchmarks.single_objects import AsyncObstoreObjects, BotocoreObjects
from benchmarks.timed_photos import (
    Delivery,
    Samples,
    TimedBatch,
    TimedPhoto,
    TimedPhotos,
    TimedPhotosAsync,
    Where,
    collate_timed,
    decode_and_augment,
    order_of,
)
from benchmarks.training import INPUT_SIZE, Trainer, augmentation
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, ShardDataset
from concurrent_loader.storage.fetch import InFlight
from concurrent_loader.storage.stores import open_store

STORE_IN_FLIGHT = 64
_CONNECTIONS = 64  # that a blocking client may have open
_CELL_BATCH = 16
_ASKED_FOR = 256  # items at once where "auto" decides how many of them become requests
_LEARNING = 192  # items per process for "auto" to learn from
_READING_BATCH = 64
_DROP_IN: Any = ConcurrentDataLoader  # with torch's arguments, which are not the native loader's


class Epoch(NamedTuple):
    """What one measurement found."""

    num_samples: int  # delivered, like the next two; compared with the files
    class_counts: list[int]
    digest: str  # of numbers, and of files where they were delivered as they are
    timed_samples: int  # delivered in ``epoch_s``
    epoch_s: float  # from making the loader to the last batch, or to the end of its step
    cpu_s: float  # of the process and its workers
    first_s: float = 0.0  # until as many images were there as a batch has; of a reader, until the first batch
    load_s: tuple[float, ...] = ()  # of each batch; empty where items have no beginning
    peak_rss_mb: float = 0.0  # of the process, and its workers' proportional share at the end


class Case(NamedTuple):
    """A row of the table of layers."""

    place: str  # local or s3
    layer: str  # store, dataset, loader or training
    side: str  # vanilla; our store; the drop-in in threads, or over coroutines; objects; shards

    @property
    def is_slow(self) -> bool:
        """Whether it waits for one object after another, and so reads a part of the images."""
        return self.place == "s3" and self.side == "vanilla"

    @property
    def is_raw(self) -> bool:
        """Whether images are delivered as their files."""
        return self.layer == "store"


_SIDES = {"local": ("vanilla", "threads", "shards"), "s3": ("vanilla", "threads", "coroutines", "objects", "shards")}
_TRAINED = ("vanilla", "threads", "shards")  # a step takes so long that the others add nothing new
CASES = tuple(
    Case(place, layer, side)
    for place, sides in _SIDES.items()
    for layer, layer_sides in {
        "store": ("vanilla", "our store"),
        "dataset": sides,
        "loader": sides,
        "training": _TRAINED,
    }.items()
    for side in layer_sides
)


class Cell(NamedTuple):
    """A place in the heat map."""

    workers: int  # processes of the loader; 0 is the consumer's own
    in_flight: InFlight  # requests of each process


@dataclass(frozen=True, slots=True)
class Settings:
    """What all layers have in common."""

    batch_size: int  # at the layers below the loader, so many items are counted as one
    num_workers: int  # of torch's loader and of the drop-in
    in_flight: int  # items at once, of the drop-in in each process


def _epoch(delivery: Delivery, began: float, cpu_before_s: float) -> Epoch:
    epoch_s, cpu_s = perf_counter() - began, cpu_of_tree_s() - cpu_before_s
    return Epoch(
        delivery.num_samples,
        delivery.class_counts.tolist(),
        delivery.digest,
        delivery.num_samples,
        epoch_s,
        cpu_s,
        delivery.first_batch_at - began,
        tuple(delivery.load_s()),
        (peak_rss_bytes() + workers_rss()) / 1e6,
    )


# -- layers ------------------------------------------------------------------------------------------------------------


def measure_layer(case: Case, where: Where, limit: int | None, settings: Settings) -> Epoch:
    """Measures one epoch; a limit takes so many images."""
    multiprocessing.set_start_method("fork", force=True)  # torch's workers, as anywhere on Linux
    torch.manual_seed(0)
    order = order_of(len(where.names), limit)
    trainer = None
    if case.layer == "training":
        nothing = torch.zeros(settings.batch_size, 3, INPUT_SIZE, INPUT_SIZE, dtype=torch.uint8)
        labels = torch.zeros(settings.batch_size, dtype=torch.int64)
        Trainer(len(CLASSES)).step(nothing, labels)  # the first step takes longer
        trainer = Trainer(len(CLASSES))
    delivery = Delivery(settings.batch_size, raw=case.is_raw)
    start_peak_rss()
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    if case.side == "our store":
        asyncio.run(_get_all(case, where, order, delivery.take))
        return _epoch(delivery, began, cpu_before_s)
    epoch = None
    for got in _deliver(case, where, order, settings):
        delivery.take(got)
        if trainer is not None and isinstance(got, TimedBatch):
            assert isinstance(got.images, Tensor)
            trainer.step(got.images, got.labels)
        if delivery.num_samples == len(order) and epoch is None:
            epoch = _epoch(delivery, began, cpu_before_s)  # before the workers end
    if epoch is None or delivery.num_samples != len(order):
        raise AssertionError(f"{case} delivered {delivery.num_samples} images of {len(order)}")
    return epoch


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


def _deliver(case: Case, where: Where, order: list[int], settings: Settings) -> Iterator[TimedBatch | TimedPhoto]:
    """Yields what the layer delivers: items or batches."""
    in_batches = case.layer in ("loader", "training")
    if in_batches and case.side in ("objects", "shards"):
        yield from _native(case, where, settings.batch_size)
        return
    photos = _photos(case, where)
    if in_batches:
        common: dict[str, Any] = {
            "batch_size": settings.batch_size,
            "sampler": order,
            "num_workers": settings.num_workers,
            "prefetch_factor": 4 if settings.num_workers else None,
            "collate_fn": collate_timed,
        }
        if case.side == "vanilla":
            yield from DataLoader(photos, **common)
        else:
            yield from _DROP_IN(photos, in_flight=settings.in_flight, **common)
    elif case.side == "vanilla":
        for number in order:
            yield photos[number]
    else:
        yield from _DROP_IN(
            photos, batch_size=None, sampler=order, in_flight=settings.in_flight, collate_fn=lambda item: item
        )


def _photos(case: Case, where: Where) -> TimedPhotos:
    """Returns the dataset whose items the layer asks for."""
    treat = None if case.is_raw else decode_and_augment()
    local = case.place == "local"
    keys = [f"objects/{name}" for name in where.names]
    if case.side in ("vanilla", "threads"):
        if local:
            return TimedPhotos(partial(_read_file, where), where.labels, treat)
        blocking = BotocoreObjects(where.bucket, where.options, 0, _CONNECTIONS)
        return TimedPhotos(lambda number: blocking.read(keys[number]), where.labels, treat)
    if case.side == "coroutines":
        return TimedPhotosAsync(_ByKey(where, keys), where.labels, treat)
    if case.side == "objects":
        return TimedPhotosAsync(Samples(ObjectDataset, where.objects_url, where.options), where.labels, treat)
    url, options = (where.local_shards, {}) if local else (where.shards_url, where.options)
    return TimedPhotosAsync(Samples(ShardDataset, url, options), where.labels, treat)


def _read_file(where: Where, number: int) -> bytes:
    path = f"{where.root}/{where.names[number]}"
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more
        return file.read()


class _ByKey:
    """Objects by obstore, by number."""

    def __init__(self, where: Where, keys: Sequence[str]) -> None:
        self._objects = AsyncObstoreObjects(where.bucket, where.options, 0, _CONNECTIONS)
        self._keys = keys

    def read(self, number: int) -> Any:
        return self._objects.read(self._keys[number])

    async def read_async(self, number: int) -> Any:
        return await self._objects.read_async(self._keys[number])


def _native(case: Case, where: Where, batch_size: int) -> Iterator[TimedBatch]:
    """Yields batches of our own datasets; an item of them has no beginning, because a request brings many."""
    augment = augmentation()
    numbers = {name: number for number, name in enumerate(where.names)}
    options = dict(where.options)
    dataset: ShardDataset | ObjectDataset
    if case.side == "objects":
        dataset = ObjectDataset(where.objects_url, column_type="jpeg", labels="folder", storage_options=options)
    elif case.place == "local":
        dataset = ShardDataset(where.local_shards)
    else:
        dataset = ShardDataset(where.shards_url, storage_options=options)
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
            yield TimedBatch(found, batch["image"], batch["label"])


# -- cells of the heat map ---------------------------------------------------------------------------------------------


class _Numbers:
    """A sampler whose numbers may be changed between epochs."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def measure_cell(cell: Cell, where: Where, limit: int) -> Epoch:
    """Measures one epoch of so many objects."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    is_auto = cell.in_flight == "auto"
    sampler = _Numbers(order_of(len(where.names), (_LEARNING if is_auto else _CELL_BATCH) * max(1, cell.workers)))
    order = order_of(len(where.names), limit)
    samples = Samples(ObjectDataset, where.objects_url, where.options, in_flight=cell.in_flight)
    loader = _DROP_IN(
        TimedPhotosAsync(samples, where.labels, None),
        batch_size=_CELL_BATCH,
        sampler=sampler,
        num_workers=cell.workers,
        persistent_workers=cell.workers > 0,
        collate_fn=collate_timed,
        in_flight=_ASKED_FOR if is_auto else cell.in_flight,
    )
    for _ in loader:
        continue
    sampler.numbers = order
    delivery = Delivery(_CELL_BATCH, raw=True)
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    for batch in loader:
        delivery.take(batch)
    return _epoch(delivery, began, cpu_before_s)


# -- readers from the local drive --------------------------------------------------------------------------------------


def _by_open(where: Where) -> Iterator[TimedBatch]:
    total = len(where.names)
    for start in range(0, total, _READING_BATCH):
        numbers = list(range(start, min(start + _READING_BATCH, total)))
        images = [_read_file(where, number) for number in numbers]
        yield TimedBatch(numbers, images, torch.tensor([where.labels[number] for number in numbers]))


def _by_torch(where: Where, *, num_workers: int) -> Iterator[TimedBatch]:
    photos = TimedPhotos(partial(_read_file, where), where.labels, None)
    yield from DataLoader(photos, _READING_BATCH, num_workers=num_workers, collate_fn=collate_timed)


def _by_shards(where: Where, *, shuffle: bool) -> Iterator[TimedBatch]:
    with ShardDataset(where.local_shards) as dataset:
        for batch in ConcurrentDataLoader(dataset, _READING_BATCH, shuffle=shuffle):
            yield TimedBatch(batch["number"].tolist(), batch["image"], batch["label"])


READERS: dict[str, Callable[[Where], Iterator[TimedBatch]]] = {
    "files, open() in a loop": _by_open,
    "files, torch DataLoader, no workers": partial(_by_torch, num_workers=0),
    "files, torch DataLoader, 2 workers": partial(_by_torch, num_workers=2),
    "shards, in order": partial(_by_shards, shuffle=False),
    "shards, shuffled": partial(_by_shards, shuffle=True),
}


def measure_reading(name: str, where: Where, at_least_s: float) -> Epoch:
    """Measures one of `READERS`: a first pass is compared with the files, then as many are timed as take so long."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    read = READERS[name]
    delivery = Delivery(_READING_BATCH, raw=True)
    for batch in read(where):
        delivery.take(batch)
    start_peak_rss()
    timed_samples, workers_bytes, first_s = 0, 0, 0.0
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    while perf_counter() - began < at_least_s:
        for batch in read(where):
            first_s = first_s or perf_counter() - began
            timed_samples += len(batch.numbers)
    seconds, cpu_s = perf_counter() - began, cpu_of_tree_s() - cpu_before_s
    peak_bytes = peak_rss_bytes()
    for place, _ in enumerate(read(where)):
        if place == 0:
            workers_bytes = workers_rss()  # which takes long, and so is no part of what is timed
    counts = delivery.class_counts.tolist()
    peak_rss_mb = (peak_bytes + workers_bytes) / 1e6
    return Epoch(delivery.num_samples, counts, delivery.digest, timed_samples, seconds, cpu_s, first_s, (), peak_rss_mb)
