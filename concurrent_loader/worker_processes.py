"""Worker processes as the loader sees them: started, given steps, listened to in the order of steps, and ended.

Worker w of N makes the steps s of this rank with ``s % N == w``, so that any number of workers gives the same batches
in the same order as threads do. The consumer's thread reads the workers' channels itself, with no thread in between.
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

from concurrent_loader.epoch_batches import check_process
from concurrent_loader.errors import LoaderError, WorkerDied
from concurrent_loader.multiprocessing_folder import own_multiprocessing_folder
from concurrent_loader.pipeline import STOP_S, Failure
from concurrent_loader.private_cache import PrivateCache
from concurrent_loader.stats import StageClock
from concurrent_loader.waiting import Trail, Whereabouts
from concurrent_loader.worker_job import Job, check_job
from concurrent_loader.worker_pool import WorkerPool
from concurrent_loader.worker_reports import WorkerReports
from storage.errors import ConfigurationError

__all__ = ["ProcessBatches", "WorkerProcesses", "check_worker_arguments"]

log = logging.getLogger(__name__)

_ANSWER_S = 1.0
_SLOW_IMPORTS = ("torchvision.transforms.v2",)  # whose import has no effect but to take seconds


class WorkerProcesses:
    """The workers of one loader, over all of its iterations.

    Args:
        job: What they do.
        context: How they are started: ``"spawn"`` or ``"forkserver"``, a context of `multiprocessing`, or None for the
            program's start method if it is one of these, else forkserver.
        persistent: Whether they are kept for the next epoch.
        clock: The loader's.

    Raises:
        ConfigurationError: They would be forked, or something cannot be pickled.
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
        """Returns the rest of an epoch; nothing is started yet."""
        return ProcessBatches(self, epoch, start_step)

    @property
    def processes(self) -> list[BaseProcess]:
        """All worker processes that are there, of all iterations."""
        return [process for pool in self._pools for process in pool.processes]

    def acquire(self) -> WorkerPool:
        """Returns workers that are kept and idle, or new ones."""
        while self._idle:
            pool = self._idle.pop()
            if pool.begin_use():
                return pool
            self.discard(pool)
        pool = WorkerPool(self._job, context=self._context, private_cache=self._private_cache(), reports=self.reports)
        self._pools.add(pool)
        return pool

    def give_back(self, pool: WorkerPool) -> None:
        """Keeps workers for the next epoch, if there is to be one and none are kept; ends them otherwise."""
        if self.persistent and not self._idle and pool.end_use():
            self._idle.append(pool)
        else:
            self.discard(pool)

    def discard(self, pool: WorkerPool, patience_s: float = STOP_S) -> None:
        """Ends workers."""
        pool.close(patience_s)
        self._pools.discard(pool)

    def _private_cache(self) -> tuple[PrivateCache, int] | None:
        job, dataset = self._job, self._job.dataset
        if dataset.cache_dir is not None:
            return None
        try:
            return PrivateCache(), _needed_bytes(job)
        except OSError as error:
            log.warning("no folder for the workers' shards can be made (%s): each worker fetches its own", error)
            return None


class ProcessBatches:
    """One iteration's batches, made by workers; see `concurrent_loader.epoch_batches.EpochBatches`.

    Args:
        workers: Of the loader.
        epoch: To iterate over.
        start_step: The first batch.
    """

    def __init__(self, workers: WorkerProcesses, epoch: int, start_step: int) -> None:
        self._workers = workers
        self._epoch = epoch
        self._step = start_step
        self._pool: WorkerPool | None = None
        self._run = 0
        self._trail: Trail = ()
        self._pid = os.getpid()

    def start(self) -> None:
        """Starts the workers, or gives those that are there the epoch."""
        self._pool = self._workers.acquire()
        self._run = self._pool.begin(self._epoch, self._step)

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next batch, and makes room for another at its worker.

        Raises:
            TimeoutError: None has come; it may be asked for again.
            StoreClosed: The process has been forked meanwhile.
        """
        check_process(self._pid)
        pool = self._pool
        assert pool is not None
        number = self._step % pool.num_workers
        try:
            outcome = pool.receive(number, self._run, timeout_s)
        except WorkerDied as error:
            if pool.abandoned:
                return Failure(LoaderError("the data set was closed while a loader was reading it"))
            return Failure(error)
        self._trail = outcome.trail
        if not outcome.last:
            self._step += 1
            pool.taken(number, self._run)
        return outcome.unwrapped()

    @property
    def trail(self) -> Trail:
        """Where the batch taken last has been in its worker, whose monotonic clock is this process's, too."""
        return self._trail

    def whereabouts(self) -> Whereabouts:
        """Says where the next one is, as its worker sees it, if that answers."""
        pool = self._pool
        if pool is None:
            return Whereabouts()
        number = self._step % pool.num_workers
        at = pool.ask(number, self._run, _ANSWER_S)
        if at is None:
            why = "does not answer" if pool.proved(number) else "is still starting"
            return Whereabouts("other", f"is up to worker {number}, which {why}", pool.age_s)
        return replace(at, what=f"is up to worker {number}, where it {at.what}")

    def stop(self, patience_s: float = STOP_S) -> None:
        """Ends the workers, or what they do, and waits for that. Idempotent.

        Args:
            patience_s: For how long the user's code may take to return, a few seconds at most; then workers are killed.
        """
        pool, self._pool = self._pool, None
        if pool is None or os.getpid() != self._pid:
            return
        try:
            rested = self._workers.persistent and pool.rest(self._run, patience_s)
        except BaseException:
            self._workers.discard(pool, patience_s)
            raise
        if rested:
            self._workers.give_back(pool)
        else:
            self._workers.discard(pool, patience_s)


def check_worker_arguments(num_workers: int, context: str | BaseContext | None, persistent: bool) -> None:
    """Makes sure that a loader's arguments about workers go together.

    Raises:
        ConfigurationError: They do not.
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigurationError("num_workers must be an integer from 0", got=num_workers)
    if not num_workers and context is not None:
        raise ConfigurationError("multiprocessing_context needs num_workers", got=context)
    if not num_workers and persistent:
        raise ConfigurationError("persistent_workers needs num_workers")


def _context(given: str | BaseContext | None) -> BaseContext:
    if given is None:
        given = multiprocessing.get_start_method(allow_none=True)
        if given != "spawn":
            given = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if isinstance(given, str):
        try:
            given = _quick_context() if given == "forkserver" else multiprocessing.get_context(given)
        except ValueError as error:
            raise ConfigurationError(
                "no such way to start workers", expected=["spawn", "forkserver"], got=given
            ) from error
    if not isinstance(given, BaseContext):
        raise ConfigurationError(
            "multiprocessing_context is a name or a context of multiprocessing", got=type(given).__name__
        )
    if given.get_start_method() == "fork":
        raise ConfigurationError(
            "workers cannot be forked: a fork copies neither the event loop's thread nor the decode threads, and "
            "shares every connection; use multiprocessing_context='spawn' or 'forkserver', or num_workers=0 (threads)"
        )
    return given


def _quick_context() -> BaseContext:
    """A server that imports torch and what takes as long, once, and then forks workers."""
    own_multiprocessing_folder()  # the server's socket lies there
    context = multiprocessing.get_context("forkserver")
    imported = [name for name in _SLOW_IMPORTS if name in sys.modules]
    context.set_forkserver_preload(["__main__", "concurrent_loader.worker_program", *imported])  # heeded at its start
    return context


def _needed_bytes(job: Job) -> int:
    """Estimates what is at hand at once: the shuffle's window, twice, what is prefetched, and odd ends."""
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
        # The garbage collector runs on any thread, on the dataset's loop as well, which has to go on meanwhile.
        threading.Thread(target=_close_each, args=(pools,), name="workers-close", daemon=True).start()


def _close_each(pools: set[WorkerPool]) -> None:
    for pool in list(pools):
        pool.close()
