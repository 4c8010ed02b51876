"""Photographs item by item, as one's own torch dataset loads them: each with when it was begun and when it was there.

The times are of one clock for all processes of a machine, so that a batch's time to load is known whoever loads it:
from the moment when its first item is begun to that when it is collated.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.photos import CLASSES
from benchmarks.training import augmentation, decode_rgb
from concurrent_loader import ObjectDataset, ShardDataset
from concurrent_loader.storage.fetch import InFlight

Treat = Callable[[bytes], Tensor] | None  # what becomes of a file; None leaves it as it is


@dataclass(frozen=True, slots=True)
class Where:
    """Where the same photographs are: files, objects and shards, on the local drive and in a bucket."""

    root: str  # the image folder
    names: tuple[str, ...]  # of the images below it, sorted; an image's place is its number
    labels: tuple[int, ...]
    local_shards: str
    bucket: str
    options: Mapping[str, str] = field(repr=False)  # of a store, through the latency; has the secret key

    @property
    def objects_url(self) -> str:
        """URL of the images in the bucket."""
        return f"s3://{self.bucket}/objects"

    @property
    def shards_url(self) -> str:
        """URL of the shards in the bucket."""
        return f"s3://{self.bucket}/shards"


def order_of(num_samples: int, limit: int | None) -> list[int]:
    """Returns the numbers in the order in which all sides read items; a limit takes the first ones."""
    order: list[int] = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0)).tolist()
    return order[:limit]


class TimedPhoto(NamedTuple):
    """An item."""

    number: int  # place in the sorted names
    image: Tensor | bytes
    label: int
    began_s: float
    ended_s: float


class TimedBatch(NamedTuple):
    """Several items."""

    numbers: list[int]
    images: Tensor | list[Any]
    labels: Tensor
    began_s: float = 0.0  # of the first item; 0 where items have no beginning
    ended_s: float = 0.0  # after collating


class Samples:
    """Reads our datasets by index; opens one in whichever process first needs it, so that no runtime crosses a fork."""

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
        self._options: Any = {"storage_options": dict(options), "in_flight": in_flight, "columns": ("image",)}
        self._opening = threading.Lock()
        self._opened: ShardDataset | ObjectDataset | None = None
        self._pid = 0

    def read(self, number: int) -> Any:
        """Reads a sample's file, blocking."""
        return self._dataset()[number]["image"]

    async def read_async(self, number: int) -> Any:
        """Reads a sample's file."""
        return (await self._dataset().getitem_async(number))["image"]

    def _dataset(self) -> ShardDataset | ObjectDataset:
        with self._opening:
            if self._opened is None or self._pid != os.getpid():
                self._opened, self._pid = self._kind(self._url, **self._options), os.getpid()
            return self._opened


class TimedPhotos(Dataset[TimedPhoto]):
    """Items one after another, or several at once from threads."""

    def __init__(self, read: Callable[[int], Any], labels: Sequence[int], treat: Treat) -> None:
        self._read = read
        self._labels = labels
        self._treat = treat

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> TimedPhoto:
        began_s = perf_counter()
        data = self._read(index)
        image = data if self._treat is None else self._treat(data)
        return TimedPhoto(index, image, self._labels[index], began_s, perf_counter())


class TimedPhotosAsync(TimedPhotos):
    """Items by a coroutine each; decoding takes too long for the loop's thread and has one of its own."""

    def __init__(self, samples: Any, labels: Sequence[int], treat: Treat) -> None:
        super().__init__(samples.read, labels, treat)
        self._read_async = samples.read_async

    async def getitem_async(self, index: int) -> TimedPhoto:
        """Loads an item."""
        began_s = perf_counter()
        data = await self._read_async(index)
        image = data if self._treat is None else await asyncio.to_thread(self._treat, data)
        return TimedPhoto(index, image, self._labels[index], began_s, perf_counter())


def decode_and_augment() -> Callable[[bytes], Tensor]:
    """Returns what every side makes of a file: uint8 (3, 128, 128); see `benchmarks.training`."""
    augment = augmentation()
    return lambda data: augment(decode_rgb(data))


def collate_timed(photos: Sequence[TimedPhoto]) -> TimedBatch:
    """Makes a batch of items, with the time that it took to load."""
    numbers, images, labels, began_s, _ = zip(*photos, strict=True)
    joined = torch.stack(images) if isinstance(images[0], Tensor) else list(images)
    return TimedBatch(list(numbers), joined, torch.tensor(labels), min(began_s), perf_counter())


def digest_of(number: int, data: bytes = b"") -> int:
    """Returns an image's digest; those of several are added up, whatever their order."""
    return xxhash.xxh3_128_intdigest(number.to_bytes(8, "little") + data)


class Delivery:
    """Counts images, delivered one by one or in batches; with ``raw`` the digest is of the files as well."""

    def __init__(self, batch_size: int, *, raw: bool) -> None:
        self._batch_size = batch_size
        self._raw = raw
        self._sum = 0
        self._spans: list[tuple[float, float]] = []
        self._loads: list[float] = []
        self.num_samples = 0
        self.first_batch_at = 0.0
        self.class_counts = torch.zeros(len(CLASSES), dtype=torch.int64)

    def take(self, got: TimedBatch | TimedPhoto) -> None:
        """Counts a batch or an item."""
        if isinstance(got, TimedPhoto):
            self._spans.append((got.began_s, got.ended_s))
            numbers, images, labels = [got.number], [got.image], torch.tensor([got.label])
        else:
            numbers, labels = got.numbers, got.labels
            images = [b""] * len(numbers) if isinstance(got.images, Tensor) else got.images
            if got.ended_s:
                self._loads.append(got.ended_s - got.began_s)
        for number, image in zip(numbers, images, strict=True):
            self._sum += digest_of(number, bytes(image) if self._raw and not isinstance(image, Tensor) else b"")
        self.class_counts += torch.bincount(labels, minlength=len(self.class_counts))
        self.num_samples += len(numbers)
        if not self.first_batch_at and self.num_samples >= self._batch_size:
            self.first_batch_at = perf_counter()

    @property
    def digest(self) -> str:
        """Digest of everything so far, whatever the order."""
        return f"{self._sum % 2**128:032x}"

    def load_s(self) -> list[float]:
        """Returns the seconds of each batch, from its first item's beginning to its last item's end."""
        spans = sorted(self._spans)
        size = self._batch_size
        groups = [spans[start : start + size] for start in range(0, len(spans) - size + 1, size)]
        return self._loads + [max(ended for _, ended in group) - group[0][0] for group in groups]
