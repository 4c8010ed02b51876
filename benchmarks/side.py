"""One side of a comparison, one epoch, one process: ``python -m benchmarks.side`` with a request on standard input.

Lines of JSON go to standard output (see `benchmarks.harness`); what libraries print goes to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import msgspec
import torch
import xxhash
from torch import Tensor

from benchmarks.harness import Epoch, Message, Request, take_task
from benchmarks.machine import cpu_of_tree_s, make_memory_resident, peak_rss_bytes, start_peak_rss, workers_rss
from benchmarks.training import Trainer

_PROGRESS_S = 0.2


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What every side delivers to the consumer."""

    images: Tensor | Sequence[bytes | memoryview]  # uint8 (N, 3, 128, 128), or the N files where nothing is decoded
    labels: Tensor  # int64 (N,)
    num_gets: int = 0  # where the side counts them by batch
    num_bytes: int = 0  # bodies of these GETs


class Batches(Protocol):
    """What a side must be able to do."""

    client: str | None
    dataset_bytes: int

    def __iter__(self) -> Iterator[Minibatch]: ...

    def fetched(self) -> tuple[int, int] | None:
        """Returns requests and body bytes so far; None if the batches count them."""

    def close(self) -> None: ...


def time_epoch(request: Request, *, on_progress: Callable[[int], object]) -> Epoch:
    """Makes the loader and runs an epoch; ``on_progress`` gets the number of images done after each step."""
    open_side = _opener(request)
    trainer = Trainer(request.num_classes, seed=request.seed) if request.step == "train" else None
    consumer = _Consumer(trainer, request.num_classes, on_progress)
    torch.manual_seed(request.seed)  # of the augmentation
    if request.resident_bytes:
        make_memory_resident(Path(request.cache_dir or request.location).parent, request.resident_bytes)
    rss_before = start_peak_rss()
    cpu_before = cpu_of_tree_s()
    began = perf_counter()
    batches = open_side(request)
    build_s = perf_counter() - began
    try:
        consumer.consume(batches)
        cpu_s = cpu_of_tree_s() - cpu_before
        peak_rss = peak_rss_bytes()
        num_gets, num_bytes = batches.fetched() or (consumer.num_gets, consumer.num_bytes)
        lesson = trainer.lesson() if trainer else None
        return Epoch(
            num_samples=consumer.num_samples,
            build_s=build_s,
            epoch_s=consumer.timeline[-1][0],
            first_batch_s=consumer.first_batch_s,
            waiting_s=consumer.waiting_s,
            num_gets=num_gets,
            num_bytes=num_bytes,
            dataset_bytes=batches.dataset_bytes,
            cpu_s=cpu_s,
            peak_rss_mb=(peak_rss + workers_rss()) / 1e6,
            rss_added_mb=(peak_rss - rss_before) / 1e6,
            first_loss=lesson.first_loss if lesson else None,
            last_loss=lesson.last_loss if lesson else None,
            accuracy=lesson.accuracy if lesson else None,
            class_counts=consumer.class_counts.tolist(),
            digest=f"{consumer.digest:032x}" if request.step == "raw" else None,
            client=batches.client,
            timeline=consumer.timeline,
        )
    finally:
        batches.close()


class _Consumer:
    """Takes batches as a training script would, with a stopwatch."""

    def __init__(self, trainer: Trainer | None, num_classes: int, on_progress: Callable[[int], object]) -> None:
        self._trainer = trainer
        self._on_progress = on_progress
        self.num_samples = self.num_gets = self.num_bytes = self.digest = 0
        self.first_batch_s = self.waiting_s = 0.0
        self.class_counts = torch.zeros(num_classes, dtype=torch.int64)
        self.timeline: list[tuple[float, int]] = []

    def consume(self, batches: Batches) -> None:
        start = asked = perf_counter()
        for batch in batches:
            got = perf_counter()
            self.waiting_s += got - asked
            if not self.timeline:
                self.first_batch_s = got - start
            self._take(batch)
            asked = perf_counter()
            self.timeline.append((asked - start, self.num_samples))
            self._on_progress(self.num_samples)
        if not self.timeline:
            raise RuntimeError("the side delivered nothing")
        end = perf_counter()
        self.waiting_s += end - asked
        self.timeline.append((end - start, self.num_samples))

    def _take(self, batch: Minibatch) -> None:
        if not isinstance(batch.images, Tensor):
            for data in batch.images:
                self.digest = (self.digest + xxhash.xxh3_128_intdigest(data)) % 2**128
        elif self._trainer is not None:
            self._trainer.step(batch.images, batch.labels)
        self.num_samples += len(batch.labels)
        self.num_gets += batch.num_gets
        self.num_bytes += batch.num_bytes
        self.class_counts += torch.bincount(batch.labels, minlength=len(self.class_counts))


def _opener(request: Request) -> Callable[[Request], Batches]:
    """Imports what the side needs, and only that, so that its memory is its own."""
    if request.side == "shards":
        from benchmarks.shard_side import ShardBatches

        return ShardBatches
    from benchmarks.torch_side import TorchBatches

    return TorchBatches


def main() -> None:
    """Reads a request, times it, writes the result."""
    task, messages = take_task()
    request = msgspec.json.decode(task, type=Request)
    last = 0.0

    def on_progress(num_samples: int) -> None:
        nonlocal last
        if perf_counter() - last >= _PROGRESS_S:
            last = perf_counter()
            messages.write(msgspec.json.encode(Message(num_samples=num_samples)) + b"\n")

    epoch = time_epoch(request, on_progress=on_progress)
    messages.write(msgspec.json.encode(Message(epoch=epoch)) + b"\n")


if __name__ == "__main__":
    main()
