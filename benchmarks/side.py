"""One side of a comparison, one epoch, one process: ``python -m benchmarks.side`` with a request on standard input.

Lines of JSON go to standard output (see `benchmarks.measurement`); what libraries print goes to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Protocol

import msgspec
import psutil
import torch
import xxhash

from benchmarks.child import take_task
from benchmarks.machine import cpu_of_tree_s, make_memory_resident
from benchmarks.measurement import Epoch, Message, Request
from benchmarks.memory import peak_rss_bytes, start_peak_rss
from benchmarks.minibatch import Minibatch
from benchmarks.training import Trainer

_PROGRESS_S = 0.2


class Batches(Protocol):
    """What a side must be able to do."""

    @property
    def client(self) -> str | None: ...

    @property
    def dataset_bytes(self) -> int: ...

    def __iter__(self) -> Iterator[Minibatch]: ...

    def fetched(self) -> tuple[int, int] | None:
        """Requests and body bytes so far; None if the batches themselves say it."""

    def close(self) -> None: ...


def time_epoch(request: Request, *, on_progress: Callable[[int], object]) -> Epoch:
    """Makes the loader, runs an epoch, and says what it took."""
    open_side = _opener(request)
    trainer = Trainer(request.num_classes, seed=request.seed) if request.step == "train" else None
    consumer = _Consumer(trainer, request.num_classes, on_progress)
    torch.manual_seed(request.seed)  # of the augmentation
    if request.resident_bytes:
        make_memory_resident(Path(request.cache_dir or request.location).parent, request.resident_bytes)
    rss_before = start_peak_rss()
    cpu_before = cpu_of_tree_s()
    began = perf_counter()
    batches = open_side()
    build_s = perf_counter() - began
    try:
        consumer.consume(batches)
        cpu_s = cpu_of_tree_s() - cpu_before
        peak_rss = peak_rss_bytes()
        fetched = batches.fetched() or (consumer.num_gets, consumer.num_bytes)
        lesson = trainer.lesson() if trainer else None
        return Epoch(
            num_samples=consumer.num_samples,
            build_s=build_s,
            epoch_s=consumer.timeline[-1][0],
            first_batch_s=consumer.first_batch_s,
            waiting_s=consumer.waiting_s,
            num_gets=fetched[0],
            num_bytes=fetched[1],
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
        if not isinstance(batch.images, torch.Tensor):
            for data in batch.images:
                self.digest = (self.digest + xxhash.xxh3_128_intdigest(data)) % 2**128
        elif self._trainer is not None:
            self._trainer.step(batch.images, batch.labels)
        self.num_samples += len(batch.labels)
        self.num_gets += batch.num_gets
        self.num_bytes += batch.num_bytes
        self.class_counts += torch.bincount(batch.labels, minlength=len(self.class_counts))


def _opener(request: Request) -> Callable[[], Batches]:
    """Imports what the side needs, and only that, so that its memory is its own."""
    decoded, size, seed = request.step != "raw", request.batch_size, request.seed
    if request.side == "shards":
        from benchmarks.contender import ShardBatches

        return lambda: ShardBatches(
            request.location,
            request.storage_options,
            decoded=decoded,
            batch_size=size,
            seed=seed,
            cache_dir=request.cache_dir,
            client=request.client,
        )
    from benchmarks.baselines import TorchBatches

    if request.side == "folder":
        return lambda: TorchBatches.of_folder(
            request.location, decoded=decoded, batch_size=size, num_workers=request.num_workers, seed=seed
        )
    return lambda: TorchBatches.of_objects(
        request.location,
        request.storage_options,
        decoded=decoded,
        batch_size=size,
        num_workers=request.num_workers,
        seed=seed,
        limit=request.limit,
    )


# -- what it costs -------------------------------------------------------------------------------------------------


def workers_rss() -> int:
    """Resident memory of the workers, what they share counted once, in bytes."""
    infos = [child.memory_full_info() for child in psutil.Process().children(recursive=True)]
    return sum(int(getattr(info, "pss", info.rss)) for info in infos)


# -- the process ----------------------------------------------------------------------------------------------------


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
