"""N worker processes that were started together and end together: their channels, their lives, their deaths."""

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
from concurrent_loader.fork_server import starting
from concurrent_loader.parcel import read_note, unpack
from concurrent_loader.private_cache import PrivateCache
from concurrent_loader.waiting import Whereabouts
from concurrent_loader.worker_channel import Arrival, Channel, Order, OrderKind
from concurrent_loader.worker_job import ANY_RUN, Job, Outcome, Sealed
from concurrent_loader.worker_program import main
from concurrent_loader.worker_reports import WorkerReports

__all__ = ["WorkerPool"]

_END_S = 6.0  # a little more than a worker gives a transform that is under way
_EXIT_S = 5.0  # from the end of a dying worker's channel to its exit status, which takes milliseconds


class _Worker:
    """One process and the line to it."""

    def __init__(self, number: int, sealed: Sealed, context: BaseContext) -> None:
        ours, theirs = socket.socketpair()
        self.number = number
        self.channel = Channel(ours)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=main, args=(sealed, theirs, number, os.getpid()), name=f"loader-worker-{number}", daemon=True
        )
        self.proved = False  # whether it has ever sent anything
        self.early: deque[Outcome] = deque()  # what came while something else was waited for
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
    """The workers of one iteration at a time. It begins in use.

    Args:
        job: What they do.
        context: How they are started; not by fork.
        private_cache: A folder to be theirs, and its budget in bytes; it is removed with them.
        reports: Where their reports go.

    Raises:
        LoaderError: A process cannot be started.

    Thread-safety: one thread uses it; `close` may be called from any.
    """

    def __init__(
        self,
        job: Job,
        *,
        context: BaseContext,
        private_cache: tuple[PrivateCache, int] | None,
        reports: WorkerReports,
    ) -> None:
        self.num_workers = job.num_workers
        self.abandoned = False
        self._broken = False  # a worker has died, or could not begin
        self._loop = job.dataset.loop
        self._reports = reports
        self._pid = os.getpid()
        self._began_s = monotonic()
        self._run = ANY_RUN
        self._finished: set[int] = set()
        self._lives = threading.Lock()  # two threads that wait for one process would disagree about its end
        self._in_use = True
        self._closed = False
        self._private = None
        if private_cache is not None:
            self._private, budget_bytes = private_cache
            job = replace(job, private_cache=(str(self._private.path), budget_bytes))
        self._workers: list[_Worker] = []
        self._over = asyncio.Event()
        sealed = Sealed(job)
        try:
            for number in range(job.num_workers):
                self._workers.append(_Worker(number, sealed, context))
            self._watch = self._loop.submit(self._end_with_data_set())
        except BaseException as error:
            with self._lives:
                self._end()
                self._release()
            if isinstance(error, OSError):
                raise LoaderError(f"a worker process cannot be started: {error}", stage="worker") from error
            raise

    # -- an iteration ----------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[BaseProcess]:
        """The processes."""
        return [worker.process for worker in self._workers]

    def begin(self, epoch: int, step: int) -> int:
        """Has all workers begin an epoch; returns the number of the run."""
        self._run += 1
        self._finished.clear()
        for worker in self._workers:
            worker.early.clear()
            worker.channel.send_order(Order(OrderKind.BEGIN, self._run, epoch, step))
        return self._run

    def receive(self, number: int, run: int, timeout_s: float | None = None, *, with_answers: bool = False) -> Outcome:
        """Waits for the next outcome of a worker.

        Args:
            number: Of the worker.
            run: Which outcomes of other iterations do not belong to.
            timeout_s: For how long; None for as long as it takes.
            with_answers: Also what `ask` asks for; otherwise nobody waits for that any more.

        Raises:
            TimeoutError: None has come.
            WorkerDied: There is none, nor will there be.
        """
        worker = self._workers[number]
        if worker.early:
            return worker.early.popleft()
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - monotonic())
            if not wait([worker.channel.fileno(), worker.process.sentinel], left_s):
                raise TimeoutError
            # What a worker sent before it died still counts.
            arrival = worker.channel.receive_parcel() if wait([worker.channel.fileno()], 0) else None
            if arrival is None:
                raise self._death(worker)
            worker.proved = True
            outcome = _opened(arrival)
            if outcome.whereabouts is None:
                self._reports.add(worker.pid, outcome.report)
            self._broken = self._broken or arrival.run == ANY_RUN
            if arrival.run in (run, ANY_RUN) and (with_answers or outcome.whereabouts is None):
                if outcome.last:
                    self._finished.add(number)
                return outcome

    def ask(self, number: int, run: int, timeout_s: float) -> Whereabouts | None:
        """Asks a worker where the next batch is; None if it does not answer."""
        worker = self._workers[number]
        worker.channel.send_order(Order(OrderKind.SAY, run))
        arrived: list[Outcome] = []
        try:
            while True:
                outcome = self.receive(number, run, timeout_s, with_answers=True)
                if outcome.whereabouts is not None:
                    return outcome.whereabouts
                arrived.append(outcome)
        except (TimeoutError, WorkerDied):
            return None
        finally:
            worker.early.extend(arrived)

    @property
    def age_s(self) -> float:
        """How long ago the workers were started."""
        return monotonic() - self._began_s

    def proved(self, number: int) -> bool:
        """Whether a worker has ever said anything."""
        return self._workers[number].proved

    def taken(self, number: int, run: int) -> None:
        """Tells a worker that there is room for another batch; one that is dead shows when its next one is due."""
        self._workers[number].channel.send_order(Order(OrderKind.TAKEN, run))

    def rest(self, run: int, patience_s: float = _END_S) -> bool:
        """Has all workers stop what they do, and waits for it; False if they cannot be used any more."""
        if self._broken:
            return False
        for worker in self._workers:
            if worker.number not in self._finished:
                worker.channel.send_order(Order(OrderKind.STOP, run))
        deadline_s = monotonic() + min(patience_s, _END_S)
        for worker in self._workers:
            while worker.number not in self._finished:
                try:
                    self.receive(worker.number, run, max(0.0, deadline_s - monotonic()))
                except (TimeoutError, WorkerDied):
                    return False
        return not self._broken

    def begin_use(self) -> bool:
        """Takes workers that were kept; False if they have ended meanwhile."""
        with self._lives:
            self._in_use = not self.abandoned and all(worker.process.is_alive() for worker in self._workers)
            return self._in_use

    def end_use(self) -> bool:
        """Keeps the workers for another iteration; False if they have ended meanwhile."""
        with self._lives:
            self._in_use = False
            return not self.abandoned

    # -- ends ------------------------------------------------------------------------------------------------------

    def close(self, patience_s: float = _END_S) -> None:
        """Ends the workers, waits for that, and lets go of all that was theirs. Idempotent.

        Args:
            patience_s: For how long the user's code may go on, a few seconds at most; then they are killed.
        """
        if os.getpid() != self._pid:
            return
        with self._lives:
            already, self._closed = self._closed, True
        if already:
            return
        self._loop.call_soon(self._over.set)
        wait_for_futures({self._watch}, _END_S + _EXIT_S)  # the loop may be ending just now
        with self._lives:
            self._end(patience_s)
            self._release()

    async def _end_with_data_set(self) -> None:
        """Ends the workers when the data set is closed, which cancels all tasks on its loop."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.abandoned = True
            await asyncio.get_running_loop().run_in_executor(None, self._abandon)
            raise

    def _abandon(self) -> None:
        with self._lives:
            self._end()
            if not self._in_use:  # else whoever waits for a worker still needs the descriptors
                self._release()

    def _end(self, patience_s: float = _END_S) -> None:
        """Ends all processes: hangs up, waits, and kills what does not end."""
        for worker in self._workers:
            worker.channel.hang_up()
        deadline_s = monotonic() + min(patience_s, _END_S)
        for worker in self._workers:
            if not worker.process.pid:
                continue
            _join(worker.process, max(0.0, deadline_s - monotonic()))

    def _release(self) -> None:
        for worker in self._workers:
            worker.channel.close()
            self._reports.ended(worker.pid)
            with contextlib.suppress(ValueError):  # somebody else has waited for our child, and knows how it ended
                worker.process.close()
        self._workers.clear()
        if self._private is not None:
            self._private.remove()

    def _death(self, worker: _Worker) -> WorkerDied:
        """Says how a worker has ended."""
        self._broken = True
        with self._lives:
            worker.process.join(_EXIT_S)
            hangs = worker.process.exitcode is None
            status = _join(worker.process, 0.0)
        killed_by = None
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                killed_by = signal.Signals(-status).name
        if hangs:
            what = "a worker process hung up without ending, and was killed"
        elif killed_by == "SIGKILL":
            what = "a worker process was killed; the kernel does that when memory runs out"
        elif killed_by is not None:
            what = "a worker process was killed by a signal"
        elif not worker.proved:
            what = (
                "a worker process ended before it could begin; its standard error says why: an import that fails there "
                "(a file that is named like a library, such as numpy.py, hides that library), or a script that starts "
                "its work while it is imported (put that below if __name__ == '__main__')"
            )
        else:
            what = "a worker process ended before its work did; its standard error may say why"
        return WorkerDied(
            what, worker=worker.number, pid=worker.pid, exit_status=None if killed_by else status, signal=killed_by
        )


def _opened(arrival: Arrival) -> Outcome:
    """Unpacks a parcel, and closes its descriptors."""
    try:
        outcome: Outcome = unpack(arrival.files)
        return replace(outcome, trail=read_note(arrival.files) or ())
    except Exception as error:  # noqa: BLE001 -- delivered in its place
        return Outcome(
            error=LoaderError(
                f"what a worker has made cannot be unpacked here: {type(error).__name__}: {error}", stage="worker"
            )
        )
    finally:
        for fd in arrival.files:
            os.close(fd)


def _join(process: BaseProcess, patience_s: float) -> int | None:
    """Waits for a process, kills it if that takes too long, and returns its exit status."""
    process.join(patience_s)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keeps Ctrl-C from what is started meanwhile, until it says itself what to do about it; here it waits its turn."""
    resource_tracker.ensure_running()  # or starting the first process starts this as well, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
