"""Records a run of the native loader: counters before and after, and the units that its steps read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concurrent_loader.order.options import PlanOptions
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.whatif.run_trace import MAX_STEPS, MAX_USES, RunTrace

if TYPE_CHECKING:
    from concurrent_loader.datasets.protocol import LoadableDataset
    from concurrent_loader.order.protocol import Plan
    from concurrent_loader.pipeline.sample_processing import SampleProcessing
    from concurrent_loader.stats.loader_stats import LoaderStats, StageClock

__all__ = ["Recordable"]


class Recordable:
    """A mix-in of the native loader that adds `record`."""

    dataset: LoadableDataset
    rank: int
    world_size: int
    _clock: StageClock
    _num_threads: int
    _plan_options: PlanOptions
    _prefetch_batches: int
    _prefetch_bytes: int
    _processing: SampleProcessing
    _workers: object | None

    if TYPE_CHECKING:

        @property
        def stats(self) -> LoaderStats: ...
        def _plan(self, epoch: int) -> Plan: ...
        def _begins_at(self) -> tuple[int, int]: ...

    @contextmanager
    def record(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Records the batches that are loaded in the block, for ``concurrent-loader whatif``.

        Load an epoch, or its first few hundred batches, in the block. The first epoch tells most, because it makes
        requests. Recording costs two system calls per batch and thread. See docs/how-to/whatif.md.

        Args:
            path: File to write when the block ends; an existing file is replaced.

        Raises:
            ConfigurationError: The block loaded nothing.

        Example:
            >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
            >>> loader = ConcurrentDataLoader(ShardDataset("photos"), batch_size=4)
            >>> with loader.record("run.rec"):
            ...     num_batches = len(list(loader))
        """
        epoch, start_step = self._begins_at()
        before, thread_cpu_s, workers_cpu_s = self.stats, self._clock["thread_cpu"], self._clock["process_cpu"]
        began_s, cpu_s, own_cpu_s = time.monotonic(), time.process_time(), time.thread_time()
        yield
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        own_cpu_s = time.thread_time() - own_cpu_s
        cpu_s += self._clock["process_cpu"] - workers_cpu_s
        after, thread_cpu_s = self.stats, self._clock["thread_cpu"] - thread_cpu_s
        num_batches = after.num_batches - before.num_batches
        if not num_batches:
            raise ConfigurationError("nothing was recorded: no batch was loaded in the block")
        source = self.dataset.source_for(self._plan_options, epoch)
        steps, samples, units = _steps(self._plan(epoch), start_step, self.rank, self.world_size)
        sizes = [source.num_bytes(unit) for unit in units]
        num_stored = max(1, sum(source.num_samples(unit) for unit in units))
        bound: Any = getattr(getattr(self.dataset.stored[0], "_options", None), "in_flight", "auto")
        RunTrace(
            step_units=steps[:num_batches],
            step_samples=samples[:num_batches],
            unit_bytes=sizes,
            by_object=source.max_concurrent is not None,
            in_flight=None if bound == "auto" else bound,
            num_threads=self._num_threads,
            prefetch_batches=self._prefetch_batches,
            prefetch_bytes=self._prefetch_bytes,
            cores=num_cores(),
            num_batches=num_batches,
            num_samples=max(1, after.num_samples - before.num_samples),
            wall_s=wall_s,
            wait_s=after.wait_s - before.wait_s,
            consumer_s=after.consumer_s - before.consumer_s + after.device_s - before.device_s,
            consumer_cpu_s=own_cpu_s,
            thread_s=sum(
                getattr(after, name) - getattr(before, name)
                for name in ("read_s", "decode_s", "transform_s", "collate_s")
            ),
            thread_cpu_s=thread_cpu_s,
            process_cpu_s=cpu_s,
            num_gets=after.fetch.num_gets - before.fetch.num_gets,
            num_bytes=after.fetch.num_bytes - before.fetch.num_bytes,
            request_s=after.fetch.wait_s - before.fetch.wait_s,
            first_byte_s=(after.fetch.first_byte_p50_s, after.fetch.first_byte_p95_s, after.fetch.first_byte_p99_s),
            sample_bytes=0 if self._processing.computes else sum(sizes) // num_stored,
        ).save(Path(path))


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _steps(plan: Plan, start_step: int, rank: int, world_size: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Returns the units of each step, numbered by first use, the samples of each step, and the units in this order."""
    numbers: dict[int, int] = {}
    steps: list[list[int]] = []
    samples: list[int] = []
    num_uses = 0
    for index in plan.batches(start_step, rank, world_size):
        units = dict.fromkeys(index.shard.tolist())
        num_uses += len(units)
        if len(steps) == MAX_STEPS or (steps and num_uses > MAX_USES):
            break
        steps.append([numbers.setdefault(unit, len(numbers)) for unit in units])
        samples.append(len(index))
    return steps, samples, list(numbers)
