"""Photographs item by item, as a torch dataset of one's own brings them: each with when it was begun and was there.

The times are of one clock for all processes of a machine, so that a batch's time to load is known whoever loads it:
from the moment when its first item is begun to that when it is collated.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.single_objects import AsyncObstoreObjects, BotocoreObjects
from benchmarks.training import augmentation, decode_rgb
from concurrent_loader import ObjectDataset, ShardDataset
from concurrent_loader.storage.fetch import InFlight

_CONNECTIONS = 64  # that a blocking client may have open


class TimedPhoto(NamedTuple):
    """An item: its place in the sorted names, the image or its file, its class, when it was begun and was there."""

    number: int
    image: Tensor | bytes
    label: int
    began_s: float
    ended_s: float


class TimedBatch(NamedTuple):
    """Several of them; ``began_s`` is the first one's, ``ended_s`` when they had been collated."""

    numbers: list[int]
    images: Tensor | list[Any]
    labels: Tensor
    began_s: float
    ended_s: float


class Files(Protocol):
    """Where an item's bytes come from; the numbers are of the sorted names."""

    def read(self, number: int) -> Any:
        """Brings a file, blocking."""


class AsyncFiles(Files, Protocol):
    """The same, with a coroutine."""

    async def read_async(self, number: int) -> Any:
        """Brings a file."""


class FolderFiles:
    """From the local drive by ``open`` and ``read``."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self._paths = [f"{root}/{name}" for name in names]

    def read(self, number: int) -> bytes:
        """Brings a file."""
        with open(self._paths[number], "rb", buffering=0) as file:  # noqa: PTH123 - as benchmarks.baselines does
            return file.read()


class BotocoreFiles:
    """From a bucket by a blocking client, one object an item."""

    def __init__(self, bucket: str, options: Mapping[str, str], keys: Sequence[str]) -> None:
        self._objects = BotocoreObjects(bucket, options, 0, _CONNECTIONS)
        self._keys = keys

    def read(self, number: int) -> bytes:
        """Gets an object."""
        return self._objects.read(self._keys[number])


class ObstoreFiles:
    """From a bucket by obstore; the arguments are those of `BotocoreFiles`."""

    def __init__(self, bucket: str, options: Mapping[str, str], keys: Sequence[str]) -> None:
        self._objects = AsyncObstoreObjects(bucket, options, 0, _CONNECTIONS)
        self._keys = keys

    def read(self, number: int) -> Any:
        """Gets an object, blocking."""
        return self._objects.read(self._keys[number])

    async def read_async(self, number: int) -> Any:
        """Gets an object."""
        return await self._objects.read_async(self._keys[number])


class Samples:
    """From one of our datasets by index, opened in whichever process first needs it: so no runtime crosses a fork."""

    def __init__(
        self,
        kind: type[ShardDataset | ObjectDataset],
        url: str,
        options: Mapping[str, str],
        *,
        in_flight: InFlight = "auto",
    ) -> None:
        self._kind = kind
        self._url = url
        self._options: dict[str, Any] = {
            "storage_options": dict(options),
            "in_flight": in_flight,
            "columns": ("image",),
        }
        self._opening = threading.Lock()
        self._opened: ShardDataset | ObjectDataset | None = None
        self._pid = 0

    def read(self, number: int) -> Any:
        """Brings a sample's file, blocking."""
        return self._dataset()[number]["image"]

    async def read_async(self, number: int) -> Any:
        """Brings a sample's file."""
        return (await self._dataset().getitem_async(number))["image"]

    def _dataset(self) -> ShardDataset | ObjectDataset:
        with self._opening:
            if self._opened is None or self._pid != os.getpid():
                self._opened, self._pid = self._kind(self._url, **self._options), os.getpid()
            return self._opened


class TimedPhotos(Dataset[TimedPhoto]):
    """One item after another, or several at once from threads."""

    def __init__(self, files: Files, labels: Sequence[int], treat: Callable[[bytes], Tensor] | None) -> None:
        self._files = files
        self._labels = labels
        self._treat = treat

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> TimedPhoto:
        began_s = perf_counter()
        data = self._files.read(index)
        image = data if self._treat is None else self._treat(data)
        return TimedPhoto(index, image, self._labels[index], began_s, perf_counter())


class TimedPhotosAsync(TimedPhotos):
    """The same with a coroutine an item; decoding takes too long for the loop's thread and has one of its own."""

    def __init__(self, files: AsyncFiles, labels: Sequence[int], treat: Callable[[bytes], Tensor] | None) -> None:
        super().__init__(files, labels, treat)
        self._files_async = files

    async def getitem_async(self, index: int) -> TimedPhoto:
        """Brings an item."""
        began_s = perf_counter()
        data = await self._files_async.read_async(index)
        image = data if self._treat is None else await asyncio.to_thread(self._treat, data)
        return TimedPhoto(index, image, self._labels[index], began_s, perf_counter())


def decode_and_augment() -> Callable[[bytes], Tensor]:
    """What every side makes of a file: uint8 (3, 128, 128); see `benchmarks.training`."""
    augment = augmentation()
    return lambda data: augment(decode_rgb(data))


def collate_timed(photos: Sequence[TimedPhoto]) -> TimedBatch:
    """A batch of items, with the time that it took to load."""
    numbers, images, labels, began_s, _ = zip(*photos, strict=True)
    joined = torch.stack(images) if isinstance(images[0], Tensor) else list(images)
    return TimedBatch(list(numbers), joined, torch.tensor(labels), min(began_s), perf_counter())
