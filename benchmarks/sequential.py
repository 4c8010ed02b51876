"""datadings' comparison: images from the local drive, as bytes, out of a folder and out of a format of few files.

All of it has been read before, so it comes from the page cache: what is compared is what a sample costs beyond its
bytes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch.utils.data import DataLoader

from benchmarks.delivery import Delivery
from benchmarks.machine import cpu_of_tree_s
from benchmarks.memory import peak_rss_bytes, start_peak_rss
from benchmarks.photo_places import Where
from benchmarks.photos import CLASSES
from benchmarks.side import workers_rss
from benchmarks.timed_photos import FolderFiles, TimedBatch, TimedPhotos, collate_timed
from concurrent_loader import ConcurrentDataLoader, ShardDataset

_BATCH = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement."""

    num_samples: int  # of a first pass, which is not timed, but compared with the files
    class_counts: list[int]  # of that pass
    digest: str  # of that pass: of the images' numbers and files
    timed_samples: int  # of all passes that were timed
    seconds: float  # that they took
    first_s: float  # from the start of the first of them to its first sample
    cpu_s: float  # processor time of the process and its workers
    peak_rss_mb: float  # highest resident memory of the process, and its workers' proportional share


def _by_open(where: Where) -> Iterator[TimedBatch]:
    files, total = FolderFiles(where.root, where.names), len(where.names)
    for start in range(0, total, _BATCH):
        numbers = list(range(start, min(start + _BATCH, total)))
        images = [files.read(number) for number in numbers]
        yield TimedBatch(numbers, images, torch.tensor([where.labels[number] for number in numbers]), 0.0, 0.0)


def _by_torch(where: Where, *, num_workers: int) -> Iterator[TimedBatch]:
    photos = TimedPhotos(FolderFiles(where.root, where.names), where.labels, None)
    yield from DataLoader(photos, _BATCH, num_workers=num_workers, collate_fn=collate_timed)


def _by_shards(where: Where, *, shuffle: bool) -> Iterator[TimedBatch]:
    with ShardDataset(where.local_shards) as dataset:
        for batch in ConcurrentDataLoader(dataset, _BATCH, shuffle=shuffle):
            yield TimedBatch(batch["number"].tolist(), batch["image"], batch["label"], 0.0, 0.0)


READERS: dict[str, Callable[[Where], Iterator[TimedBatch]]] = {
    "files, open() in a loop": _by_open,
    "files, torch DataLoader, no workers": partial(_by_torch, num_workers=0),
    "files, torch DataLoader, 2 workers": partial(_by_torch, num_workers=2),
    "shards, in order": partial(_by_shards, shuffle=False),
    "shards, shuffled": partial(_by_shards, shuffle=True),
}


def measure_reading(name: str, where: Where, at_least_s: float) -> Reading:
    """Measures one reader; for a process of its own."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    read = READERS[name]
    delivery = Delivery(_BATCH, len(CLASSES), raw=True)
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
    return Reading(
        num_samples=delivery.num_samples,
        class_counts=delivery.class_counts.tolist(),
        digest=delivery.digest,
        timed_samples=timed_samples,
        seconds=seconds,
        first_s=first_s,
        cpu_s=cpu_s,
        peak_rss_mb=(peak_bytes + workers_bytes) / 1e6,
    )
