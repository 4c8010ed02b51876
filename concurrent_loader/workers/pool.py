"""Pool of worker processes that start and end together: their channels, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic

from concurrent_loader.errors import LoaderError, WorkerDied
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.storage.span_recorder import active
from concurrent_loader.workers.aggregate_stats import WorkerReports
from concurrent_loader.workers.channel import Channel, Command, CommandKind, ReceivedBatch
from concurrent_loader.workers.fork_server import NO_GUARD, starting
from concurrent_loader.workers.job import Job, PickledJob
from concurrent_loader.workers.messages import ANY_RUN, Outcome
from concurrent_loader.workers.serialization import read_metadata, unpack
from concurrent_loader.workers.temp_cache import TempCache
from concurrent_loader.workers.worker_main import main

__all__ = ["WorkerPool"]

_END_S = 6.0  # a little more than a worker gives a transform that is under way
_EXIT_S = 5.0  # from the end of a dying worker's channel to its exit status, which takes milliseconds


class _Worker:
    """One process and the channel to it."""

    def __init__(self, number: int, pickled_job: PickledJob, context: BaseContext) -> None:
        ours, theirs = socket.socketpair()
        self.number = number
        self.channel = Channel(ours)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=main, args=(pickled_job, theirs, number, os.getpid()), name=f"loader-worker-{number}", daemon=True
        )
        self.has_responded = False  # whether it has ever sent a message
        self.is_asked = False  # whether a status reply is to come
        self.early: deque[Outcome] = deque()  # outcomes received while waiting for a status reply
        try:
            with _interrupts_blocked(), starting(context):
                self.process.start()
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.pid = self.process.pid or 0


class WorkerPool:
    """Runs the workers of one iteration at a time. A new pool is in use.

    Args:
        job: Job of the workers.
        context: Context that starts them; not fork.
        temp_cache: Cache folder for the workers, deleted with them, and its budget in bytes; None for no folder.
        reports: Collection of the workers' reports.

    Raises:
        LoaderError: A process cannot be started.

    Thread-safety: One thread may use a pool. `close` may be called from any thread.
    """

    def __init__(
        self,
        job: Job,
        *,
        context: BaseContext,
        temp_cache: tuple[TempCache, int] | None,
        reports: WorkerReports,
    ) -> None:
        self.num_workers = job.num_workers
        self.dataset_closed = False
        self._broken = False  # a worker has died, or could not start
        self._loop = job.dataset.loop
        self._reports = reports
        self._pid = os.getpid()
        self._began_s = monotonic()
        self._run = ANY_RUN
        self._finished: set[int] = set()
        self._process_lock = threading.Lock()  # only one thread may wait for a process
        self._in_use = True
        self._closed = False
        self._temp = None
        if temp_cache is not None:
            self._temp, budget_bytes = temp_cache
            job = replace(job, temp_cache=(str(self._temp.path), budget_bytes))
        self._workers: list[_Worker] = []
        self._over = asyncio.Event()
        pickled_job = PickledJob(job)
        try:
            for number in range(job.num_workers):
                self._workers.append(_Worker(number, pickled_job, context))
            self._watch = self._loop.submit(self._end_with_dataset())
        except BaseException as error:
            with self._process_lock:
                self._end()
                self._release()
            if isinstance(error, OSError):
                raise LoaderError(f"a worker process cannot be started: {error}", stage="worker") from error
            raise

    # -- an iteration ----------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[BaseProcess]:
        """Worker processes."""
        return [worker.process for worker in self._workers]

    def begin(self, epoch: int, step: int) -> int:
        """Makes all workers begin an epoch; returns the number of the run."""
        self._run += 1
        self._finished.clear()
        recorder = active()
        max_spans = 0 if recorder is None else recorder.max_spans
        for worker in self._workers:
            worker.early.clear()
            worker.is_asked = False
            worker.channel.send_command(Command(CommandKind.BEGIN, self._run, epoch, step, max_spans))
        return self._run

    def receive(self, number: int, run: int, timeout_s: float | None = None, *, with_status: bool = False) -> Outcome:
        """Waits for the next outcome of a worker.

        Args:
            number: Number of the worker.
            run: Number of the run. Outcomes of other runs are discarded.
            timeout_s: Seconds to wait; None for no limit.
            with_status: Whether to return status replies too; otherwise they are discarded.

        Raises:
            TimeoutError: No outcome arrived in time.
            WorkerDied: The worker has ended.
        """
        worker = self._workers[number]
        if worker.early:
            return worker.early.popleft()
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - monotonic())
            if not wait([worker.channel.fileno(), worker.process.sentinel], left_s):
                raise TimeoutError
            # Outcomes sent before a worker died still count.
            arrival = worker.channel.receive_batch() if wait([worker.channel.fileno()], 0) else None
            if arrival is None:
                raise self._death(worker)
            worker.has_responded = True
            outcome = _opened(arrival)
            self._reports.add(worker.pid, outcome.report)
            worker.is_asked = worker.is_asked and outcome.batch_status is None
            self._broken = self._broken or arrival.run == ANY_RUN
            if arrival.run in (run, ANY_RUN) and (with_status or outcome.batch_status is None):
                if outcome.last:
                    self._finished.add(number)
                return outcome

    def ask_status(self, number: int, run: int, timeout_s: float) -> BatchStatus | None:
        """Asks a worker where the next batch is; returns None if it does not reply in time."""
        worker = self._workers[number]
        worker.channel.send_command(Command(CommandKind.STATUS, run))
        arrived: list[Outcome] = []
        try:
            while True:
                outcome = self.receive(number, run, timeout_s, with_status=True)
                if outcome.batch_status is not None:
                    return outcome.batch_status
                arrived.append(outcome)
        except (TimeoutError, WorkerDied):
            return None
        finally:
            worker.early.extend(arrived)

    def request_report(self, number: int, run: int) -> None:
        """Asks a worker for a report, which the consumer's thread receives while it waits for the worker's next batch.

        Thread-safety: For any thread. One request is under way at a time, so nothing piles up unread.
        """
        for worker in self._workers[number : number + 1]:
            if not worker.is_asked:
                worker.is_asked = worker.channel.send_command(Command(CommandKind.STATUS, run))

    @property
    def age_s(self) -> float:
        """Seconds since the workers were started."""
        return monotonic() - self._began_s

    def has_responded(self, number: int) -> bool:
        """Returns whether a worker has ever sent a message."""
        return self._workers[number].has_responded

    def taken(self, number: int, run: int) -> None:
        """Lets a worker make another batch. A dead worker is noticed when its next batch is due."""
        self._workers[number].channel.send_command(Command(CommandKind.TAKEN, run))

    def stop_run(self, run: int, grace_period_s: float = _END_S) -> bool:
        """Makes all workers stop the run and waits for them; returns False if they cannot be used again."""
        if self._broken:
            return False
        for worker in self._workers:
            if worker.number not in self._finished:
                worker.channel.send_command(Command(CommandKind.STOP, run))
        deadline_s = monotonic() + min(grace_period_s, _END_S)
        for worker in self._workers:
            while worker.number not in self._finished:
                try:
                    self.receive(worker.number, run, max(0.0, deadline_s - monotonic()))
                except (TimeoutError, WorkerDied):
                    return False
        return not self._broken

    def start_use(self) -> bool:
        """Marks kept workers as in use; returns False if one has ended meanwhile."""
        with self._process_lock:
            self._in_use = not self.dataset_closed and all(worker.process.is_alive() for worker in self._workers)
            return self._in_use

    def end_use(self) -> bool:
        """Keeps the workers for another iteration; returns False if they have ended meanwhile."""
        with self._process_lock:
            self._in_use = False
            return not self.dataset_closed

    # -- ends ------------------------------------------------------------------------------------------------------

    def close(self, grace_period_s: float = _END_S) -> None:
        """Ends the workers, waits for them, and releases their resources. Idempotent.

        Args:
            grace_period_s: Seconds that the user's code may continue, a few at most. Then the workers are killed.
        """
        if os.getpid() != self._pid:
            return
        with self._process_lock:
            already, self._closed = self._closed, True
        if already:
            return
        self._loop.call_soon(self._over.set)
        wait_for_futures({self._watch}, _END_S + _EXIT_S)  # the loop may be ending at this moment
        with self._process_lock:
            self._end(grace_period_s)
            self._release()

    async def _end_with_dataset(self) -> None:
        """Ends the workers when the dataset is closed, which cancels all tasks on its loop."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.dataset_closed = True
            await asyncio.get_running_loop().run_in_executor(None, self._abandon)
            raise

    def _abandon(self) -> None:
        with self._process_lock:
            self._end()
            if not self._in_use:  # otherwise a thread that waits for a worker still needs the descriptors
                self._release()

    def _end(self, grace_period_s: float = _END_S) -> None:
        """Ends all processes: closes their channels, waits, and kills those still running."""
        for worker in self._workers:
            worker.channel.hang_up()
        deadline_s = monotonic() + min(grace_period_s, _END_S)
        for worker in self._workers:
            if not worker.process.pid:
                continue
            _join(worker.process, max(0.0, deadline_s - monotonic()))

    def _release(self) -> None:
        for worker in self._workers:
            worker.channel.close()
            self._reports.ended(worker.pid)
            with contextlib.suppress(ValueError):  # other code has already waited for this child process
                worker.process.close()
        self._workers.clear()
        if self._temp is not None:
            self._temp.remove()

    def _death(self, worker: _Worker) -> WorkerDied:
        """Returns an error that says how a worker has ended."""
        self._broken = True
        with self._process_lock:
            worker.process.join(_EXIT_S)
            hangs = worker.process.exitcode is None
            status = _join(worker.process, 0.0)
        killed_by = None
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                killed_by = signal.Signals(-status).name
        if hangs:
            what = "a worker process closed its channel without exiting, and was killed"
        elif killed_by == "SIGKILL":
            what = "a worker process was killed, probably by the kernel because memory ran out"
        elif killed_by is not None:
            what = "a worker process was killed by a signal"
        elif not worker.has_responded:
            what = (
                "a worker process ended before it could start; its standard error says why. Either an import failed (a "
                f"file with the name of a library, such as numpy.py, hides that library), or {NO_GUARD}"
            )
        else:
            what = "a worker process ended too early; its standard error may say why"
        return WorkerDied(
            what, worker=worker.number, pid=worker.pid, exit_status=None if killed_by else status, signal=killed_by
        )


def _opened(arrival: ReceivedBatch) -> Outcome:
    """Unpacks a packed, and closes its descriptors."""
    try:
        outcome: Outcome = unpack(arrival.files)
        return replace(outcome, spans=read_metadata(arrival.files) or ())
    except Exception as error:  # noqa: BLE001 -- delivered in place of the batch
        return Outcome(
            error=LoaderError(
                f"a worker's batch cannot be unpacked in this process: {type(error).__name__}: {error}", stage="worker"
            )
        )
    finally:
        for fd in arrival.files:
            os.close(fd)


def _join(process: BaseProcess, grace_period_s: float) -> int | None:
    """Waits for a process, kills it if it does not end in time, and returns its exit status."""
    process.join(grace_period_s)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Blocks Ctrl-C for processes started in the block until they handle it; here it is delivered afterwards."""
    resource_tracker.ensure_running()  # otherwise the first process starts the tracker, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
