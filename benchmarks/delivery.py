"""What a consumer has got so far, as a count, a digest and the time that each batch took to load."""

from __future__ import annotations

from time import perf_counter

import torch
import xxhash
from torch import Tensor

from benchmarks.timed_photos import TimedBatch, TimedPhoto


def digest_of(number: int, data: bytes = b"") -> int:
    """Of an image; those of several are added up, whatever their order."""
    return xxhash.xxh3_128_intdigest(number.to_bytes(8, "little") + data)


class Delivery:
    """Counts images, delivered one by one or in batches."""

    def __init__(self, batch_size: int, num_classes: int, *, raw: bool) -> None:
        self._batch_size = batch_size
        self._raw = raw
        self._sum = 0
        self._spans: list[tuple[float, float]] = []
        self._loads: list[float] = []
        self.num_samples = 0
        self.first_batch_at = 0.0
        self.class_counts = torch.zeros(num_classes, dtype=torch.int64)

    def take(self, batch: TimedBatch) -> None:
        """A batch is there."""
        images = [b""] * len(batch.numbers) if isinstance(batch.images, Tensor) else batch.images
        for number, image in zip(batch.numbers, images, strict=True):
            self._sum += digest_of(number, bytes(image) if self._raw else b"")
        self.class_counts += torch.bincount(batch.labels, minlength=len(self.class_counts))
        if batch.ended_s:
            self._loads.append(batch.ended_s - batch.began_s)
        self._count(len(batch.numbers))

    def take_item(self, photo: TimedPhoto) -> None:
        """An item is there."""
        data = photo.image if self._raw and not isinstance(photo.image, Tensor) else b""
        self._sum += digest_of(photo.number, data)
        self.class_counts[photo.label] += 1
        self._spans.append((photo.began_s, photo.ended_s))
        self._count(1)

    @property
    def digest(self) -> str:
        """Of everything so far, whatever the order."""
        return f"{self._sum % 2**128:032x}"

    def load_s(self) -> list[float]:
        """Of each batch, from when its first item was begun to when its last one was there; in s."""
        spans = sorted(self._spans)
        size = self._batch_size
        groups = [spans[start : start + size] for start in range(0, len(spans) - size + 1, size)]
        return self._loads + [max(ended for _, ended in group) - group[0][0] for group in groups]

    def _count(self, number: int) -> None:
        self.num_samples += number
        if not self.first_batch_at and self.num_samples >= self._batch_size:
            self.first_batch_at = perf_counter()
