"""One peer's epoch in one process of its own environment: ``python -m benchmarks.peers.side``, a job on standard input.

The outcome is a line of JSON on standard output; what libraries print goes to standard error. A program below
`benchmarks.peers.programs` has ``write(job)``, which puts the images into the bucket in the peer's format, and
``open_loader(job)``, which makes the peer's dataset and loader, from ``job.state`` where there is one. It may have
``prepare(job)``: what runs already when a training starts, before an epoch's clock does.
"""

from __future__ import annotations

import gc
import importlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec
import torch
import xxhash
from torch import Tensor

from benchmarks.harness import take_task
from benchmarks.machine import cpu_of_tree_s, make_memory_resident, peak_rss_bytes, start_peak_rss, workers_rss
from benchmarks.peers.job import Job, Loader, Outcome, paths
from benchmarks.training import Trainer


def read(program: Any, job: Job) -> Outcome:
    """Times one epoch."""
    if job.resident_bytes:
        make_memory_resident(Path(job.cache_dir or job.photos).parent, job.resident_bytes)
    taken = _Taken(job)
    if hasattr(program, "prepare"):
        program.prepare(job)
    torch.manual_seed(job.seed)  # of the augmentation
    rss_before = start_peak_rss()
    cpu_before_s = cpu_of_tree_s()
    began = perf_counter()
    loader: Loader = program.open_loader(job)
    build_s = perf_counter() - began
    try:
        complete = taken.take(loader, began)
        state = loader.state() if job.num_batches is not None else None
        cpu_after_s, peak_rss = cpu_of_tree_s(), peak_rss_bytes()
        spans = list(loader.spans)
        peak_rss_mb, fetched = (peak_rss + workers_rss()) / 1e6, loader.fetched()
    finally:
        loader.close()
        del loader
        gc.collect()
    return Outcome(
        numbers=taken.numbers,
        batch_sizes=taken.batch_sizes,
        digest="" if job.decoded else f"{taken.digest:032x}",
        build_s=build_s,
        # As many images as a batch has, even if they came one by one.
        first_batch_s=taken.when(min(job.batch_size, len(taken.numbers))),
        half_s=taken.when(len(taken.numbers) / 2),
        epoch_s=taken.times[-1],
        # Closing costs, too; but of processes that nobody waits for, nothing is left to be read afterwards.
        cpu_s=max(cpu_after_s, cpu_of_tree_s()) - cpu_before_s,
        complete=complete,
        state=state,
        waiting_s=taken.waiting_s,
        peak_rss_mb=peak_rss_mb,
        rss_added_mb=(peak_rss - rss_before) / 1e6,
        lesson=taken.trainer.lesson() if taken.trainer else None,
        fetched=fetched,
        utilisation=taken.accelerators.utilisation() if taken.accelerators else None,
        spans=spans,
    )


class _Accelerators:
    """Accelerators that take a batch each, compute while nothing is asked for, and wait for each other, as DLIO's do.

    What is noted about a batch is noted while they compute: a trainer's host would have other things to do then.
    """

    def __init__(self, job: Job) -> None:
        self._step_samples, self._computation_s = job.accelerators * job.batch_size, job.computation_s
        self._batches: list[tuple[Any, list[int]]] = []
        self._num_steps = 0
        self._began = self._ended = 0.0

    def take(self, images: Any, numbers: list[int], look_at: Callable[[Any, list[int]], None]) -> None:
        """Takes a batch; computes if each accelerator has one."""
        self._batches.append((images, numbers))
        if sum(len(numbers) for _, numbers in self._batches) < self._step_samples:
            return
        now = perf_counter()
        self._began = self._began or now
        self._num_steps += 1
        self.end(look_at)
        sleep(max(0.0, now + self._computation_s - perf_counter()))
        self._ended = perf_counter()

    def end(self, look_at: Callable[[Any, list[int]], None]) -> None:
        """Looks at the batches that were taken, too few for a step at the end of an epoch."""
        for batch in self._batches:
            look_at(*batch)
        self._batches.clear()

    def utilisation(self) -> float | None:
        """Returns the share of the time that was computed in, without the wait for the first step, 0 … 1."""
        return self._num_steps * self._computation_s / (self._ended - self._began) if self._num_steps else None


class _Taken:
    """Takes batches with a stopwatch as a training script would, and notes what was in them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.accelerators = _Accelerators(job) if job.accelerators else None
        self.trainer: Trainer | None = None
        if job.train:
            folders = [path.parent.name for path in paths(job.photos)]
            classes = sorted(set(folders))
            self._labels = torch.tensor([classes.index(name) for name in folders])
            self.trainer = Trainer(len(classes), seed=job.seed)
        self.numbers: list[int] = []
        self.batch_sizes: list[int] = []
        self.times: list[float] = []
        self.waiting_s = 0.0
        self.digest = 0

    def take(self, batches: Iterable[Any], began: float) -> bool:
        """Takes all batches, or as many as the job allows; returns whether the epoch ended."""
        asked = perf_counter()
        for images, numbers in batches:
            self.waiting_s += perf_counter() - asked
            told: list[int] = numbers.tolist() if isinstance(numbers, Tensor) else [int(number) for number in numbers]
            if self.accelerators is None:
                self._look_at(images, told)
            else:
                self.accelerators.take(images, told, self._look_at)
            if self.trainer is not None:
                self.trainer.step(images, self._labels[told])
            self.numbers += told
            self.batch_sizes.append(len(told))
            asked = perf_counter()
            self.times.append(asked - began)
            is_late = self._job.limit_s is not None and self.times[-1] >= self._job.limit_s
            if is_late or len(self.times) == self._job.num_batches:
                return False
        if self.accelerators is not None:
            self.accelerators.end(self._look_at)
        if not self.times:
            raise RuntimeError("nothing was delivered")
        return True

    def when(self, num_samples: float) -> float:
        """Returns the seconds after which so many images had come."""
        return self.times[bisect_left(list(accumulate(self.batch_sizes)), num_samples)]

    def _look_at(self, images: Sequence[bytes | memoryview] | Tensor, numbers: Sequence[int]) -> None:
        if len(images) != len(numbers):
            raise RuntimeError(f"{len(images)} images with {len(numbers)} numbers")
        if isinstance(images, Tensor) != self._job.decoded:
            raise RuntimeError(f"{type(images).__name__} was delivered, decoded is {self._job.decoded}")
        if isinstance(images, Tensor):
            if images.shape[1:] != (3, self._job.size, self._job.size) or images.element_size() != 1:
                raise RuntimeError(f"a tensor of {images.dtype}, {tuple(images.shape)} was not asked for")
            return
        for data, number in zip(images, numbers, strict=True):
            self.digest = (self.digest + xxhash.xxh3_128_intdigest(data, seed=number)) % 2**128


def main() -> None:
    """Does one job."""
    task, messages = take_task()
    job = msgspec.json.decode(task, type=Job)
    program: Any = importlib.import_module(f"benchmarks.peers.programs.{job.peer}")
    if job.task == "write":
        program.write(job)
        outcome = Outcome()
    else:
        outcome = read(program, job)
    messages.write(msgspec.json.encode(outcome) + b"\n")
    messages.close()


if __name__ == "__main__":
    main()
