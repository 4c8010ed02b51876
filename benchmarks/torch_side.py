"""What people do today, to compare with: torch's DataLoader over an image folder and over single objects in a bucket.

Both have the settings that serve them best here: two worker processes that stay, four batches ahead for each, the
fastest decoder, pixels sent as uint8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from benchmarks.bucket import botocore_client
from benchmarks.harness import Request
from benchmarks.side import Minibatch
from benchmarks.training import augmentation, decode_rgb

_Sample = tuple[Tensor | bytes, int, int, int]  # image, label, GETs, bytes
_Treat = Callable[[bytes], Tensor | bytes]


class TorchBatches:
    """One epoch of a torch dataset through torch's DataLoader."""

    def __init__(self, request: Request) -> None:
        treat = bytes if request.step == "raw" else _DecodeAndAugment()
        in_bucket = request.side == "objects"
        photos = _BucketPhotos(request, treat) if in_bucket else _FolderPhotos(request.location, treat)
        self.client = "botocore" if in_bucket else None
        self.dataset_bytes = photos.num_bytes
        self._loader: DataLoader[_Sample] = DataLoader(
            photos,
            batch_size=request.batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(request.seed),
            num_workers=request.num_workers,
            persistent_workers=request.num_workers > 0,
            prefetch_factor=4 if request.num_workers else None,
            collate_fn=_collate,
        )

    def __iter__(self) -> Iterator[Minibatch]:
        for images, labels, num_gets, num_bytes in self._loader:
            yield Minibatch(images, labels, num_gets, num_bytes)

    def fetched(self) -> None:
        """Returns None: every batch has its own counts."""

    def close(self) -> None:
        """Ends the worker processes."""
        del self._loader


class _FolderPhotos(Dataset[_Sample]):
    num_bytes = 0  # none of them in a bucket

    def __init__(self, root: str, treat: _Treat) -> None:
        self._folder = ImageFolder(root, loader=_read, transform=treat)

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> _Sample:
        image, label = self._folder[index]
        return image, label, 0, 0


class _BucketPhotos(Dataset[_Sample]):
    """One object per image; lists the bucket once. Each worker makes a client, because none survives a fork."""

    def __init__(self, request: Request, treat: _Treat) -> None:
        self._bucket, _, prefix = request.location.removeprefix("s3://").partition("/")
        self._options = request.storage_options
        self._treat = treat
        self._client: Any = None
        self._client_pid = 0
        pages = self._connect().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=f"{prefix}/")
        sizes = {entry["Key"]: int(entry["Size"]) for page in pages for entry in page.get("Contents", [])}
        keys = sorted(sizes)
        classes = sorted({key.split("/")[-2] for key in keys})
        self._labels = {name: label for label, name in enumerate(classes)}
        if request.limit is not None:  # a random subset
            order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(request.seed)).tolist()
            keys = [keys[index] for index in order[: request.limit]]
        self._keys = keys
        self.num_bytes = sum(sizes[key] for key in keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> _Sample:
        key = self._keys[index]
        answer = self._connect().get_object(Bucket=self._bucket, Key=key)
        data: bytes = answer["Body"].read()
        num_gets = 1 + answer["ResponseMetadata"].get("RetryAttempts", 0)
        return self._treat(data), self._labels[key.split("/")[-2]], num_gets, len(data)

    def _connect(self) -> Any:
        if self._client_pid != os.getpid():
            self._client = botocore_client(self._options, retries={"mode": "standard"})
            self._client_pid = os.getpid()
        return self._client


class _DecodeAndAugment:
    """A class, not a closure, because workers may be spawned and then get it pickled."""

    def __init__(self) -> None:
        self._augment = augmentation()

    def __call__(self, data: bytes) -> Tensor:
        return self._augment(decode_rgb(data))


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more, a tenth of the read
        return file.read()


def _collate(samples: list[_Sample]) -> tuple[Tensor | list[Tensor | bytes], Tensor, int, int]:
    images, labels, num_gets, num_bytes = zip(*samples, strict=True)
    stacked = torch.stack(images) if isinstance(images[0], Tensor) else list(images)
    return stacked, torch.tensor(labels), sum(num_gets), sum(num_bytes)
