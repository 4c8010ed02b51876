"""Worker processes of a loader: starts them, hands out steps, receives batches in the order of steps, ends them.

Worker w of N makes the steps s of this rank with ``s % N == w``. Any number of workers, and threads, therefore deliver
the same batches in the same order. The consumer's thread reads the workers' channels itself.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import weakref
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.errors import LoaderError, WorkerDied
from concurrent_loader.pipeline.batch_iterator import STOP_S, Failure, check_process
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.workers.aggregate_stats import WorkerReports
from concurrent_loader.workers.job import Job, check_job
from concurrent_loader.workers.multiprocessing_folder import claim_multiprocessing_folder
from concurrent_loader.workers.pool import WorkerPool
from concurrent_loader.workers.temp_cache import TempCache

__all__ = ["ProcessBatches", "WorkerProcesses", "check_worker_arguments", "fetched"]

log = logging.getLogger(__name__)

_ANSWER_S = 1.0
_SLOW_IMPORTS = ("torchvision.transforms.v2",)  # slow imports without side effects


class WorkerProcesses:
    """Manages the workers of one loader over all of its iterations.

    Args:
        job: Job of the workers.
        context: Start method: ``"spawn"``, ``"forkserver"`` or a context of `multiprocessing`. None: the program's own
            start method if it is one of these, else forkserver.
        persistent: Whether workers are kept for the next epoch.
        clock: Clock of the loader.

    Raises:
        ConfigurationError: The start method is fork, or an argument cannot be pickled.
    """

    def __init__(self, job: Job, *, context: str | BaseContext | None, persistent: bool, clock: StageClock) -> None:
        self._context = _context(context)
        check_job(job)
        self._job = job
        self.persistent = persistent
        self._idle: list[WorkerPool] = []
        self._pools: set[WorkerPool] = set()
        self.reports = WorkerReports(clock)
        weakref.finalize(self, _close_all, self._pools)

    def batches(self, epoch: int, start_step: int) -> ProcessBatches:
        """Returns the rest of an epoch. Nothing is started yet."""
        return ProcessBatches(self, epoch, start_step)

    @property
    def num_workers(self) -> int:
        """Number of workers of an iteration."""
        return self._job.num_workers

    @property
    def processes(self) -> list[BaseProcess]:
        """Running worker processes of all iterations."""
        return [process for pool in self._pools for process in pool.processes]

    def acquire(self) -> WorkerPool:
        """Returns idle workers that were kept, or new ones."""
        while self._idle:
            pool = self._idle.pop()
            if pool.start_use():
                return pool
            self.discard(pool)
        pool = WorkerPool(self._job, context=self._context, temp_cache=self._temp_cache(), reports=self.reports)
        self._pools.add(pool)
        return pool

    def release(self, pool: WorkerPool) -> None:
        """Keeps workers for the next epoch if they are persistent and none are kept yet; otherwise ends them."""
        if self.persistent and not self._idle and pool.end_use():
            self._idle.append(pool)
        else:
            self.discard(pool)

    def discard(self, pool: WorkerPool, grace_period_s: float = STOP_S) -> None:
        """Ends workers."""
        pool.close(grace_period_s)
        self._pools.discard(pool)

    def _temp_cache(self) -> tuple[TempCache, int] | None:
        job, dataset = self._job, self._job.dataset
        if dataset.cache_dir is not None:
            return None
        try:
            return TempCache(), _needed_bytes(job)
        except OSError as error:
            log.warning(
                "no cache folder for the workers can be created (%s): each worker fetches all shards it needs", error
            )
            return None


class ProcessBatches:
    """One iteration's batches, made by workers; see `concurrent_loader.pipeline.batch_iterator.EpochBatches`.

    Args:
        workers: Workers of the loader.
        epoch: Epoch to iterate over.
        start_step: Step of the first batch.
    """

    def __init__(self, workers: WorkerProcesses, epoch: int, start_step: int) -> None:
        self._workers = workers
        self._epoch = epoch
        self._step = start_step
        self._pool: WorkerPool | None = None
        self._run = 0
        self._spans: Spans = ()
        self._pid = os.getpid()

    def start(self) -> None:
        """Starts the workers, or makes idle ones begin the epoch."""
        self._pool = self._workers.acquire()
        self._run = self._pool.begin(self._epoch, self._step)

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next batch, and lets its worker make another.

        Raises:
            TimeoutError: No batch arrived in time. The call may be repeated.
            StoreClosed: The process was forked meanwhile.
        """
        check_process(self._pid)
        pool = self._pool
        assert pool is not None
        number = self._step % pool.num_workers
        try:
            outcome = pool.receive(number, self._run, timeout_s)
        except WorkerDied as error:
            if pool.dataset_closed:
                return Failure(LoaderError("the dataset was closed while a loader was reading it"))
            return Failure(error)
        self._spans = outcome.spans
        if not outcome.last:
            self._step += 1
            pool.taken(number, self._run)
        return outcome.unwrapped()

    @property
    def spans(self) -> Spans:
        """Times that the last batch spent at each stage in its worker, by the monotonic clock of the machine."""
        return self._spans

    def batch_status(self) -> BatchStatus:
        """Returns the status of the next batch, as its worker reports it."""
        pool = self._pool
        if pool is None:
            return BatchStatus()
        number = self._step % pool.num_workers
        at = pool.ask_status(number, self._run, _ANSWER_S)
        if at is None:
            why = "does not reply" if pool.has_responded(number) else "is still starting"
            return BatchStatus("other", f"is up to worker {number}, which {why}", pool.age_s)
        return replace(at, what=f"is up to worker {number}, where it {at.what}")

    def pipeline_status(self) -> PipelineStatus:
        """Returns how full the stages of all workers were at their newest reports, and asks for one more.

        Reports come with batches. While the consumer waits, the worker it waits for is asked each time somebody looks.
        """
        if (pool := self._pool) is not None:
            pool.request_report(self._step % pool.num_workers, self._run)
        return self._workers.reports.pipeline_status()

    def stop(self, grace_period_s: float = STOP_S) -> None:
        """Ends the workers, or their current run, and waits for it. Idempotent.

        Args:
            grace_period_s: Seconds that the user's code may take to return, a few at most. Then the workers are killed.
        """
        pool, self._pool = self._pool, None
        if pool is None or os.getpid() != self._pid:
            return
        try:
            rested = self._workers.persistent and pool.stop_run(self._run, grace_period_s)
        except BaseException:
            self._workers.discard(pool, grace_period_s)
            raise
        if rested:
            self._workers.release(pool)
        else:
            self._workers.discard(pool, grace_period_s)


def fetched(dataset: LoadableDataset, workers: WorkerProcesses | None) -> tuple[FetchStats, CacheStats]:
    """Returns the counters of all processes of a loader: requests, and cache hits."""
    fetch, cache = dataset.fetch_stats, dataset.cache_stats
    return (fetch, cache) if workers is None else (workers.reports.fetch(fetch), workers.reports.cache(cache))


def check_worker_arguments(num_workers: int, context: str | BaseContext | None, persistent: bool) -> None:
    """Checks a loader's arguments about workers.

    Raises:
        ConfigurationError: An argument is invalid, or needs workers and there are none.
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigurationError("num_workers must be a non-negative integer", got=num_workers)
    if not num_workers and context is not None:
        raise ConfigurationError("multiprocessing_context needs workers; pass num_workers too", got=context)
    if not num_workers and persistent:
        raise ConfigurationError("persistent_workers needs workers; pass num_workers too")


def _context(given: str | BaseContext | None) -> BaseContext:
    if given is None:
        given = multiprocessing.get_start_method(allow_none=True)
        if given != "spawn":
            given = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if isinstance(given, str):
        try:
            given = _preloading_context() if given == "forkserver" else multiprocessing.get_context(given)
        except ValueError as error:
            raise ConfigurationError(
                "unknown start method of workers", expected=["spawn", "forkserver"], got=given
            ) from error
    if not isinstance(given, BaseContext):
        raise ConfigurationError(
            "multiprocessing_context must be a start method or a context of multiprocessing", got=type(given).__name__
        )
    if given.get_start_method() == "fork":
        raise ConfigurationError(
            "workers cannot be forked, because a fork has no event loop and no decode threads, and shares every "
            "connection; pass multiprocessing_context='spawn' or 'forkserver', or num_workers=0 (threads)"
        )
    return given


def _preloading_context() -> BaseContext:
    """Returns a fork server context that imports torch and other slow modules once, before it forks workers.

    The last import lets the server exit quickly. It must stay the last one; see there.
    """
    claim_multiprocessing_folder()  # the server's socket is created there
    context = multiprocessing.get_context("forkserver")
    imported = [name for name in _SLOW_IMPORTS if name in sys.modules]
    context.set_forkserver_preload(
        ["__main__", "concurrent_loader.workers.worker_main", *imported, "concurrent_loader.workers.fork_server_exit"]
    )  # read when the server starts
    return context


def _needed_bytes(job: Job) -> int:
    """Estimates the bytes in use at once: twice the shuffle window, the prefetched shards, and partial shards."""
    stored = job.dataset.stored
    sizes = np.concatenate([each.unit_sizes for each in stored])
    total, largest = int(sizes.sum()), int(sizes.max(initial=0))
    window = job.dataset.plan(job.plan, 0).window * len(stored)
    window_bytes = window * total // max(1, sum(map(len, stored)))
    ends = job.plan.groups + 2 * job.num_workers
    wanted = 2 * window_bytes + job.prefetch_bytes + ends * largest
    return max(1, min(total + largest, wanted))


def _close_all(pools: set[WorkerPool]) -> None:
    if threading.current_thread() is threading.main_thread():
        _close_each(pools)
    else:
        # The garbage collector may run on the dataset's loop, which must not be blocked.
        threading.Thread(target=_close_each, args=(pools,), name="workers-close", daemon=True).start()


def _close_each(pools: set[WorkerPool]) -> None:
    for pool in list(pools):
        pool.close()
