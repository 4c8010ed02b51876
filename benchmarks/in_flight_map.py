"""How many objects a second come with so many workers and so many requests in flight: one cell of the heat map.

One object an item, its bytes as they are, from a bucket that is far away: the drop-in loader asks an `ObjectDataset`
for items, in its own process or in forked workers, each with so many requests under way, or as many as
``in_flight="auto"`` finds. A first epoch opens connections and, for "auto", learns; the second is measured.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from benchmarks.delivery import Delivery
from benchmarks.machine import cpu_of_tree_s
from benchmarks.photo_places import Where, order_of
from benchmarks.photos import CLASSES
from benchmarks.timed_photos import Samples, TimedPhotosAsync, collate_timed
from concurrent_loader import ConcurrentDataLoader, ObjectDataset
from concurrent_loader.storage.fetch import InFlight

_BATCH = 16
_ASKED_FOR = 256  # items at once where "auto" decides how many of them become requests
_LEARNING = 192  # items a process for "auto" to learn from


@dataclass(frozen=True, slots=True)
class Cell:
    """A place in the map."""

    workers: int  # processes of the loader; 0 is the consumer's own
    in_flight: InFlight  # requests of each process


@dataclass(frozen=True, slots=True)
class CellEpoch:
    """One measurement; see `benchmarks.layers.Epoch`."""

    num_samples: int
    class_counts: list[int]
    digest: str
    epoch_s: float
    cpu_s: float


class _Numbers:
    """A sampler whose numbers may be changed between epochs."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def measure_cell(cell: Cell, where: Where, limit: int) -> CellEpoch:
    """Measures one epoch; for a process of its own."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    processes = max(1, cell.workers)
    warm = order_of(len(where.names), (_LEARNING if cell.in_flight == "auto" else _BATCH) * processes)
    order = order_of(len(where.names), limit)
    sampler = _Numbers(warm)
    samples = Samples(ObjectDataset, where.objects_url, where.options, in_flight=cell.in_flight)
    drop_in: Any = ConcurrentDataLoader  # with torch's arguments, which are not the native loader's
    loader = drop_in(
        TimedPhotosAsync(samples, where.labels, None),
        batch_size=_BATCH,
        sampler=sampler,
        num_workers=cell.workers,
        persistent_workers=cell.workers > 0,
        collate_fn=collate_timed,
        in_flight=_ASKED_FOR if cell.in_flight == "auto" else cell.in_flight,
    )
    for _ in loader:
        continue
    sampler.numbers = order
    delivery = Delivery(_BATCH, len(CLASSES), raw=True)
    cpu_before_s, began = cpu_of_tree_s(), perf_counter()
    for batch in loader:
        delivery.take(batch)
    return CellEpoch(
        num_samples=delivery.num_samples,
        class_counts=delivery.class_counts.tolist(),
        digest=delivery.digest,
        epoch_s=perf_counter() - began,
        cpu_s=cpu_of_tree_s() - cpu_before_s,
    )
