"""What every peer does to its images, so that only where they come from differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from benchmarks.peers.messages import Job

SIZE = 224


def paths(folder: str) -> list[Path]:
    """All images; an image's number is its place here."""
    return sorted(Path(folder).glob("*/*.jpg"))


def written(job: Job) -> Iterator[tuple[int, bytes]]:
    """Number and file of each image, in the order in which every format gets them."""
    found = paths(job.photos)
    for number in job.order:
        yield number, found[number].read_bytes()


class Treat:
    """Decodes and augments as torch users do, or leaves a file as it is. A class, because workers may get it pickled.

    torchvision's decoder and v2 transforms: with torchcodec the same speed, with PIL 1.5 times as slow.
    """

    def __init__(self, job: Job) -> None:
        self._augment = (
            v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]) if job.decoded else None
        )

    def __call__(self, data: bytes) -> Tensor | bytes:
        if self._augment is None:
            return data
        encoded = torch.frombuffer(
            bytearray(data), dtype=torch.uint8
        )  # a copy of 3 µs: read-only buffers are warned of
        image: Tensor = self._augment(decode_jpeg(encoded, mode=ImageReadMode.RGB))
        return image


def collate(samples: list[tuple[Tensor | bytes, int]]) -> tuple[Tensor | list[Tensor | bytes], Tensor]:
    """A list of images and numbers → a batch."""
    images, numbers = zip(*samples, strict=True)
    return torch.stack(images) if isinstance(images[0], Tensor) else list(images), torch.tensor(numbers)
