"""Makes one epoch's batches: fetches shards ahead, processes samples in threads, delivers in order, within bounds.

One coroutine on the dataset's event loop schedules the work, and the plan names the next shards and samples. Bounds:

- At most ``prefetch_batches`` batches are being made or wait for the consumer.
- Shards are fetched ahead of their first use up to ``prefetch_bytes``, and 1,024 of them. A shard that is needed now is
  always fetched, so a shard larger than the budget works.
- The first batch's samples may be fetched by themselves, ahead of their shards (`FirstRows`), if that costs less than
  half.
- A shard is released when all of its samples are delivered, or after the step that the plan names as its last use.

Worker processes that share a rank's steps each have their own pipeline. A pipeline fetches and makes what its own steps
need, and counts the samples of the other workers' steps. It releases shards only when the consumer has taken a batch:
by then the other workers have made their earlier steps, so no shard is evicted that one of them still needs.

A failure is delivered in its batch's place: the batches before it always arrive first.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from concurrent_loader.batch.buffers import BatchBuffers
from concurrent_loader.datasets.protocol import OpenUnit, Source
from concurrent_loader.errors import LoaderError
from concurrent_loader.order.protocol import BatchIndex, Plan
from concurrent_loader.pipeline.assemble_batch import BatchAssembler
from concurrent_loader.pipeline.batch_iterator import END, STOP_S, Failure
from concurrent_loader.pipeline.first_rows import FirstRows
from concurrent_loader.pipeline.process_slice import process_slice
from concurrent_loader.pipeline.sample_processing import SampleProcessing
from concurrent_loader.pipeline.shard_leases import ShardLeases
from concurrent_loader.pipeline.slices import Slice, count_slices, cut_batch, units_of
from concurrent_loader.pipeline.thread_pool import DecodeThreads
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, BatchTrace, Spans, batch_status
from concurrent_loader.storage.errors import CorruptData, StorageError, StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread, hold

__all__ = ["Pipeline", "PipelineConfig"]

_log = logging.getLogger(__name__)

_UNWIND_S = 10.0  # for all other cleanup, on top of the threads' grace period


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The steps of an epoch that a pipeline makes, and its resources.

    Attributes:
        source: Source of the dataset's units, called shards here.
        plan: Order of the epoch.
        processing: Operations on every sample and batch.
        start_step: First step.
        rank: Rank of this process.
        world_size: Number of ranks that share the epoch.
        num_threads: Number of decode threads.
        prefetch_batches: Maximum number of batches made ahead of the consumer.
        prefetch_bytes: Maximum bytes of shards fetched ahead of their first use.
        worker: Number of this worker, 0 by default. It makes the steps s with ``s % num_workers == worker``.
        num_workers: Number of pipelines that share the rank's steps, 1 by default.
    """

    source: Source
    plan: Plan
    processing: SampleProcessing
    start_step: int
    rank: int
    world_size: int
    num_threads: int
    prefetch_batches: int
    prefetch_bytes: int
    worker: int = 0
    num_workers: int = 1


class Pipeline:
    """Makes the batches of one epoch for one rank.

    Args:
        config: Steps to make, and the resources for making them.
        deliver: Callback on the event loop for each batch and its spans, in order, up to a `Failure`; finally for
            `END`. The callback must not block.
    """

    def __init__(self, config: PipelineConfig, *, deliver: Callable[[Any, Spans], None]) -> None:
        self._config = config
        self._source = config.source
        self._plan = config.plan
        choosers = config.processing.choosers(config.plan.epoch)
        if any(choosers):
            self._source.choose_groups(choosers)
        self._processing = config.processing
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(config.prefetch_batches)
        self._leases = ShardLeases(
            config.source,
            config.plan,
            start_step=config.start_step,
            rank=config.rank,
            world_size=config.world_size,
            worker=config.worker,
            num_workers=config.num_workers,
        )
        self._traces: dict[int, BatchTrace] = {}  # step → trace of the batch that is being made
        self._num_ready = 0  # delivered batches that the consumer has not taken
        self._first_rows = FirstRows(config.source, self._leases)
        self._grace_period_s = STOP_S
        # Delivered batches that still hold shards; each one comes with the other workers' batches before it.
        self._delivered: deque[list[BatchIndex]] = deque()

    def consumed(self) -> None:
        """Notes that the consumer has taken a batch. Must be called on the event loop."""
        self._slots.release()
        self._num_ready = max(0, self._num_ready - 1)  # the end is taken, too
        if self._config.num_workers > 1 and self._delivered:
            self._release_oldest()

    async def start(self) -> None:
        """Starts making batches. However the pipeline ends, the end is delivered to the consumer."""
        self._task = asyncio.create_task(self.run())
        hold(self._task)
        self._task.add_done_callback(self._deliver_end)

    def batch_status(self) -> BatchStatus:
        """Returns what the next batch to be delivered is waiting for. Can be called from any thread."""
        return batch_status(list(self._traces.values()), self._processing.clock.now())

    def status(self) -> PipelineStatus:
        """Returns how full the stages are, and the slowest fetches. Can be called from any thread."""
        config, traces = self._config, list(self._traces.values())
        return PipelineStatus(
            num_ready=self._num_ready,
            num_making=len(traces),
            max_batches=config.prefetch_batches,
            prefetched_bytes=self._leases.ahead_bytes,
            max_prefetched_bytes=config.prefetch_bytes,
            num_busy_threads=sum(len(trace.busy()) for trace in traces),
            num_threads=config.num_threads,
            slow=self._leases.slowest(self._processing.clock.now()),
        )

    def detailed_status(self) -> PipelineStatus:
        """Returns the status with what the next batch waits for. Can be called from any thread."""
        return replace(self.status(), batch=self.batch_status())

    def stop(self, loop: LoopThread, grace_period_s: float = STOP_S) -> None:
        """Stops the pipeline, and waits until its tasks and threads have ended. Call it from the consumer's thread.

        Args:
            loop: Event loop that the pipeline runs on.
            grace_period_s: Time in seconds for threads to finish their current work. A thread that takes longer, such
                as a transform that never returns, is left running with a warning. It ends when it returns, and then its
                shards are released. It keeps neither this call nor the process from ending.
        """
        self._grace_period_s = grace_period_s
        try:
            loop.run(self._cancel(grace_period_s + _UNWIND_S), timeout_s=grace_period_s + 2 * _UNWIND_S)
        except TimeoutError:
            _log.warning("a loader's event loop does not answer; its tasks are left behind")
        except (StoreClosed, CancelledError):
            # The dataset is being closed, which ends the pipeline.
            return

    async def _cancel(self, timeout_s: float) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            _, late = await asyncio.wait({self._task}, timeout=timeout_s)
            if late:
                _log.warning("a loader is still waiting for the local drive %.0f s after it was stopped", timeout_s)

    def _deliver_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._deliver(Failure(LoaderError("the dataset was closed while a loader was reading it")), ())
        elif (error := task.exception()) is not None:
            self._deliver(Failure(error), ())
        else:
            self._deliver(END, ())

    async def run(self) -> None:
        """Makes and delivers all batches from the first step to the last one, or to the first failure."""
        await self._source.set_schedule(self._plan, self._config.world_size, shared=self._config.num_workers > 1)
        self._source.set_step(self._config.start_step)
        threads = DecodeThreads(self._config.num_threads)
        try:
            async with asyncio.TaskGroup() as group:
                await self._run(group, threads)
        finally:
            # Threads end first: no thread may read from a shard that is being released.
            try:
                await threads.join_async(self._grace_period_s)
            finally:
                if threads.has_exited:
                    self._leases.release_all()
                    await self._source.end()
                else:
                    self._leave_behind(threads)

    def _leave_behind(self, threads: DecodeThreads) -> None:
        """Warns about threads that do not end, and releases their shards when they do."""
        stages = [stage for trace in self._traces.values() for stage, _ in trace.busy()]
        _log.warning("%d decode threads do not end and are left behind, in: %s", len(stages), ", ".join(stages))
        loop = asyncio.get_running_loop()

        def release() -> None:
            # If the loop has been closed since, the cache has been closed with it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._leases.release_all)

        threads.add_exit_callback(release)

    async def _run(self, group: asyncio.TaskGroup, threads: DecodeThreads) -> None:
        order: asyncio.Queue[tuple[list[BatchIndex], asyncio.Task[Any]] | None]
        order = asyncio.Queue()  # bounded by the slots
        tasks: set[asyncio.Task[Any]] = set()

        def start(coroutine: Any) -> asyncio.Task[Any]:
            task = group.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        async def schedule() -> None:
            config = self._config
            passed: list[BatchIndex] = []
            is_first = True
            for index in self._plan.batches(config.start_step, config.rank, config.world_size):
                passed.append(index)
                if not self._is_own(index):
                    continue
                await self._slots.acquire()
                if is_first:
                    await self._first_rows.fetch(index, start)
                else:
                    await self._leases.prefetch(index.step, start, ahead_bytes=config.prefetch_bytes)
                trace = self._traces[index.step] = BatchTrace(index.step, self._processing.clock.now)
                order.put_nowait((passed, start(self._make(index, threads, trace))))
                passed = []
                if is_first:
                    is_first = False
                    threads.start()  # while the first requests are under way
                    await self._first_rows.follow(index.step, start, ahead_bytes=config.prefetch_bytes)
            order.put_nowait(None)

        start(schedule())
        while (entry := await order.get()) is not None:
            passed, making = entry
            outcome = await making
            self._deliver(outcome, self._traces.pop(passed[-1].step).spans)
            if isinstance(outcome, Failure):
                for task in tasks:
                    task.cancel()
                return
            self._num_ready += 1
            self._delivered.append(passed)
            if self._config.num_workers == 1:
                self._release_oldest()

    def _is_own(self, index: BatchIndex) -> bool:
        return index.step % self._config.num_workers == self._config.worker

    def _release_oldest(self) -> None:
        for index in self._delivered.popleft():
            self._leases.release_after(index)

    # -- batches ---------------------------------------------------------------------------------------------------

    async def _make(self, index: BatchIndex, threads: DecodeThreads, trace: BatchTrace) -> Any:
        """Makes one batch. Errors become a `Failure`, which is delivered in the batch's place."""
        padding: list[int] = []
        try:
            shards: dict[int, OpenUnit] = {}
            resolved = self._source.resolve(index)
            leased = units_of(index.shard[: len(index) - index.num_padded])
            for shard in units_of(index.shard) if index.num_padded else leased:
                if shard not in leased:
                    # Padding uses shards that have been released, or may be at any moment.
                    with self._waiting(trace, shard):
                        shards[shard] = await self._source.acquire(shard)
                    padding.append(shard)
                    continue
                future = self._leases[shard]
                if not self._first_rows.is_needless(index.step, shard, future):
                    with self._waiting(trace, shard):
                        if (first_rows := await self._first_rows.wait(index.step, shard, future)) is not None:
                            shards[shard] = first_rows
                            continue
                        await asyncio.wait({future})
                outcome = future.result()
                if isinstance(outcome, StorageError):
                    sample = int(resolved.sample[resolved.shard == shard][0])
                    raise _copied(outcome).locate(sample=sample, url=self._source.url(shard))
                if isinstance(outcome, Exception):
                    raise outcome
                shards[shard] = outcome
            with trace.in_threads():
                return await self._process(resolved, shards, threads, trace)
        except Exception as error:  # noqa: BLE001 - delivered to the consumer, in order
            urls = {self._source.url(shard) for shard in units_of(index.shard)}
            if isinstance(error, StorageError) and len(urls) == 1:
                error.locate(url=urls.pop())
            return Failure(error)
        finally:
            for shard in padding:
                self._source.release(shard)

    def _waiting(self, trace: BatchTrace, shard: int) -> AbstractContextManager[None]:
        return trace.waiting(self._source.key(shard), partial(self._source.fetch_times, shard))

    async def _process(
        self, index: BatchIndex, shards: dict[int, OpenUnit], threads: DecodeThreads, trace: BatchTrace
    ) -> Any:
        with closing(self._processing.make_buffers(len(index))) as buffers:
            return await self._process_slices(buffers, index, shards, threads, trace)

    async def _process_slices(
        self,
        buffers: BatchBuffers,
        index: BatchIndex,
        shards: dict[int, OpenUnit],
        threads: DecodeThreads,
        trace: BatchTrace,
    ) -> Any:
        processing = self._processing.of(index)
        num_bytes = None if processing.computes else self._estimate_bytes(index)
        num_slices = count_slices(len(index), num_threads=self._config.num_threads, num_bytes=num_bytes)
        parts = cut_batch(index, shards, num_slices=num_slices, epoch=self._plan.epoch, buffers=buffers)
        assembler = BatchAssembler(processing, index, self._plan.epoch, num_slices=len(parts))

        async def make_part(number: int, part: Slice) -> None:
            def work() -> None:
                assembler.put(number, part, process_slice(processing, part))

            for _ in range(len(part.shards)):
                try:
                    await self._in_thread(threads, trace, work)
                    return
                except CorruptData as error:
                    part = await self._repair(part, error)
            await self._in_thread(threads, trace, work)

        if len(parts) == 1:
            await make_part(0, parts[0])
            return assembler.batch
        outcomes = await asyncio.gather(*map(make_part, itertools.count(), parts), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return assembler.batch

    def _estimate_bytes(self, index: BatchIndex) -> int:
        """Returns about how many bytes a batch has, by the mean of one of its shards."""
        source, first = self._source, index.shard[:1].tolist()
        return sum(len(index) * source.num_bytes(unit) // max(1, source.num_samples(unit)) for unit in first)

    async def _in_thread(self, threads: DecodeThreads, trace: BatchTrace, work: Callable[[], None]) -> None:
        """Runs work for a batch in a thread. Work for earlier batches has priority."""

        def run() -> None:
            with self._processing.clock.serving(trace):
                try:
                    work()
                except BaseException as error:
                    if isinstance(error, Exception) and not isinstance(error, StopIteration):
                        raise
                    # A coroutine cannot raise these: StopIteration would never arrive, SystemExit would end the loop.
                    what = f"the user's code raised {type(error).__name__}: {error}; no batch can be made of that"
                    raise LoaderError(what) from error

        await asyncio.wrap_future(threads.submit_with_priority(trace.step, run))

    async def _repair(self, part: Slice, error: CorruptData) -> Slice:
        """Fetches the shard again whose local bytes are damaged, or raises the error again."""
        damaged = next((at for at, shard in enumerate(part.shards) if shard.key == error.shard), None)
        if damaged is None or not part.shards[damaged].cached:
            if damaged is not None:
                error.locate(url=self._source.url(part.units[damaged]))
            raise error
        fresh = await self._source.replace(part.units[damaged], part.shards[damaged])
        return replace(part, shards=(*part.shards[:damaged], fresh, *part.shards[damaged + 1 :]))


def _copied(error: StorageError) -> StorageError:
    """Returns the same error again: several batches need a shard that did not come, and each names its own sample."""
    own = copy.copy(error)
    own.__cause__, own.__context__ = error.__cause__, error.__context__
    own.__suppress_context__ = error.__suppress_context__
    return own.with_traceback(error.__traceback__)
