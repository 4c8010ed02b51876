"""A torch dataset of one's own: photographs item by item, each with when it was begun and when it was there.

For `benchmarks.forerunners`. Options of a job: ``read`` is a key of `SOURCES`; ``loader`` is what asks for items:
``one`` after another; ``torch``, its DataLoader; ``drop_in``, ours in its place; ``many``, the same without batches;
``store``, 64 at once without items. ``in_flight`` is the drop-in's, ``limit`` takes so many images, ``by_coroutine``
makes items coroutines, ``warm_up`` lets the loader deliver so many images before the clock starts. The times are of one
clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

import obstore
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.bucket import at_once, botocore_client, obstore_client
from benchmarks.peers.job import Job, Loader, Treat, batching, collate, paths
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, ShardDataset
from concurrent_loader.storage.stores import open_store

_CONNECTIONS = 64  # that a blocking client may have open; botocore's default of 10 would discard further ones
_AT_ONCE = 64  # requests of our store
DROP_IN: Any = ConcurrentDataLoader  # with torch's arguments, which are not the native loader's


def order_of(num_samples: int, limit: int | None) -> list[int]:
    """Returns the numbers in the order in which all sides read items; a limit takes the first ones."""
    order: list[int] = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0)).tolist()
    return order[:limit]


def key_of(job: Job, number: int) -> str:
    """Returns an object's key."""
    return f"{job.prefix}/{number:07d}.jpg"


class Source(ABC):
    """Makes its client when a process first needs it: clients do not survive a fork, and threads share them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made: Any = None
        self._pid = 0
        self._making = threading.Lock()

    def client(self) -> Any:
        """Returns this process's client."""
        with self._making:
            if self._pid != os.getpid():
                self._made, self._pid = self._make(), os.getpid()
            return self._made

    @abstractmethod
    def read(self, number: int) -> Any:
        """Reads an image's file, blocking."""

    async def read_async(self, number: int) -> Any:
        """Reads an image's file."""
        raise NotImplementedError

    def _make(self) -> Any: ...


class _Files(Source):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._paths = [str(path) for path in paths(job.photos)]

    def read(self, number: int) -> bytes:
        with open(self._paths[number], "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more
            return file.read()


class _Botocore(Source):
    """``get_object().read()`` of botocore, which is boto3's."""

    def read(self, number: int) -> bytes:
        body = self.client().get_object(Bucket=self._job.bucket, Key=key_of(self._job, number))["Body"]
        data: bytes = body.read()
        return data

    def _make(self) -> Any:
        return botocore_client(self._job.storage_options, max_pool_connections=_CONNECTIONS)


class _Obstore(Source):
    """obstore's blocking ``get``, which works outside the interpreter's lock, and its coroutine."""

    def read(self, number: int) -> Any:
        return obstore.get(self.client(), key_of(self._job, number)).bytes()

    async def read_async(self, number: int) -> Any:
        return await (await obstore.get_async(self.client(), key_of(self._job, number))).bytes_async()

    def _make(self) -> Any:
        return obstore_client(self._job.bucket, self._job.storage_options)


class _Objects(Source):
    """Our datasets, by index."""

    def read(self, number: int) -> Any:
        return self.client()[number]["image"]

    async def read_async(self, number: int) -> Any:
        return (await self.client().getitem_async(number))["image"]

    def _make(self) -> ObjectDataset | ShardDataset:
        in_flight = self._job.options.get("requests", "auto")
        return ObjectDataset(
            self._job.url, columns=("image",), in_flight=in_flight, storage_options=self._job.storage_options
        )


class _Shards(_Objects):
    def _make(self) -> ShardDataset:
        if folder := self._job.options.get("folder"):
            return ShardDataset(folder, columns=("image",))
        return ShardDataset(self._job.url, columns=("image",), storage_options=self._job.storage_options)


SOURCES: dict[str, type[Source]] = {
    "files": _Files, "botocore": _Botocore, "obstore": _Obstore, "objects": _Objects, "shards": _Shards,
}  # fmt: skip


class Photo(NamedTuple):
    """An item."""

    number: int
    image: Tensor | bytes
    began_s: float
    ended_s: float


class Photos(Dataset[Photo]):
    """Items one after another, or several at once from threads."""

    def __init__(self, job: Job) -> None:
        self._source = SOURCES[job.options["read"]](job)
        self._decoded, self._treat = job.decoded, Treat(job)
        self._length = len(paths(job.photos))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Photo:
        began_s = perf_counter()
        return Photo(number, self._treat(self._source.read(number)), began_s, perf_counter())


class PhotosByCoroutine(Photos):
    """Items by a coroutine each; decoding takes too long for the loop's thread and has one of its own."""

    async def getitem_async(self, number: int) -> Photo:
        """Loads an item."""
        began_s = perf_counter()
        data = await self._source.read_async(number)
        image = await asyncio.to_thread(self._treat, data) if self._decoded else data
        return Photo(number, image, began_s, perf_counter())


Batch = tuple[Any, Any, tuple[float, float]]


def collate_timed(photos: Sequence[Photo]) -> Batch:
    """Makes a batch of items, with when its first one was begun and when it is whole."""
    images, numbers = collate([(photo.image, photo.number) for photo in photos])
    return images, numbers, (min(photo.began_s for photo in photos), perf_counter())


class ItemLoader(Loader):
    """Yields batches, or items as batches of one, and keeps the span of each."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.spans: list[tuple[float, float]] = []

    def __iter__(self) -> Iterator[Any]:
        for got in self._loader:
            if isinstance(got, Photo):
                self.spans.append((got.began_s, got.ended_s))
                yield got.image[None] if isinstance(got.image, Tensor) else [got.image], [got.number]
            else:
                images, numbers, span = got
                self.spans.append(span)
                yield images, numbers


def _from_store(job: Job, order: Sequence[int]) -> Iterator[Photo]:
    """Gets files by one of our stores, many at once."""
    got: SimpleQueue[Photo | None] = SimpleQueue()
    names, local = paths(job.photos), not job.bucket

    async def get_all() -> None:
        url, options = (job.photos, {}) if local else (f"s3://{job.bucket}", job.storage_options)
        async with open_store(url, **options) as store:

            async def get(number: int) -> None:
                began_s = perf_counter()
                key = names[number].relative_to(job.photos).as_posix() if local else key_of(job, number)
                data = (await store.get(key)).data
                got.put(Photo(number, bytes(data), began_s, perf_counter()))

            await at_once(get, order, _AT_ONCE)

    with ThreadPoolExecutor(1, thread_name_prefix="our-store") as pool:
        done = pool.submit(asyncio.run, get_all())
        done.add_done_callback(lambda _: got.put(None))
        yield from iter(got.get, None)
        done.result()


_ready: dict[str, tuple[Any, list[int]]] = {}  # a loader that is warm, and its sampler


def prepare(job: Job) -> None:
    """Lets the loader of a job with ``warm_up`` open its connections and learn."""
    if "warm_up" in job.options:
        torch.set_num_threads(1)
        sampler = order_of(len(paths(job.photos)), job.options["warm_up"])
        _ready["loader"] = loader, _ = _make(job, sampler), sampler
        for _ in loader:
            continue


def open_loader(job: Job) -> ItemLoader:
    """Makes dataset and loader, or takes the one that is warm."""
    order = order_of(len(paths(job.photos)), job.options.get("limit"))
    if "warm_up" not in job.options:
        return ItemLoader(_make(job, order))
    loader, sampler = _ready.pop("loader")
    sampler[:] = order
    return ItemLoader(loader)


def _make(job: Job, order: list[int]) -> Any:
    options, kind = job.options, job.options["loader"]
    if kind == "store":
        return _from_store(job, order)
    photos = (PhotosByCoroutine if options.get("by_coroutine") else Photos)(job)
    if kind == "one":
        return (photos[number] for number in order)
    if kind == "many":
        in_flight = options["in_flight"]
        return DROP_IN(photos, batch_size=None, sampler=order, in_flight=in_flight, collate_fn=lambda item: item)
    make: Any = DataLoader if kind == "torch" else partial(DROP_IN, in_flight=options["in_flight"])
    persistent = bool(job.num_workers) and "warm_up" in options
    return make(photos, **batching(job, collate_timed), sampler=order, persistent_workers=persistent)
