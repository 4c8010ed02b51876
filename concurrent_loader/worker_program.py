"""What a worker process does: its own copy of the data set, its own loop and threads, whole batches of its own steps.

It is started by `concurrent_loader.worker_processes`, does what the orders on its channel say, and sends every outcome
as a parcel. When the channel ends (the loader is done, or its process is dead) the worker ends, too.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import selectors
import shutil
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from concurrent_loader.errors import CollateError, LoaderError
from concurrent_loader.fork_server import restore_environment
from concurrent_loader.parcel import Parcel, pack
from concurrent_loader.pipeline import Failure, Pipeline
from concurrent_loader.recipe import make_recipe
from concurrent_loader.shared_memory import SharedBlocks
from concurrent_loader.stats import StageClock
from concurrent_loader.waiting import Trail
from concurrent_loader.worker_channel import Channel, Order, OrderKind
from concurrent_loader.worker_job import ANY_RUN, Job, Outcome, Report, Sealed
from storage.errors import ConfigurationError, StorageError
from storage.secrets import redact

__all__ = ["main", "set_random_streams"]

_GRACE_S = 5.0  # for a transform that is under way when the loader is done with the worker

log = logging.getLogger(__name__)


def set_random_streams(*entropy: int) -> None:
    """Sets the global random streams of Python, numpy and torch (CPU) to a pure function of some whole numbers."""
    words = np.random.SeedSequence(entropy).generate_state(12, np.uint32)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:8])
    torch.default_generator.manual_seed(int.from_bytes(words[8:10].tobytes(), "little"))


def main(sealed: Sealed, end: socket.socket, worker: int, parent_pid: int) -> None:
    """Runs a worker until its channel ends.

    Args:
        sealed: The job.
        end: Of the channel.
        worker: Its number.
        parent_pid: The process that it works for.
    """
    # Ctrl-C is for the process that the user sees; it ends its workers by hanging up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    restore_environment()
    channel = Channel(end)
    try:
        job = sealed.open()
    except Exception as error:  # noqa: BLE001 -- the loader raises it
        channel.send_parcel(ANY_RUN, _packed(_outcome_of(_not_opened(error), Report(), worker)))
        return
    torch.set_num_threads(1)  # there are workers enough
    with _Work(job, channel, worker) as work, _Parent(parent_pid) as parent:
        work.open()
        while (order := parent.order(channel)) is not None:
            work.obey(order)


class _Parent:
    """Waits for orders for as long as the process lives that gives them.

    Its death ends the channel; unless it has forked, and a child of it still has the channel's other end.
    """

    def __init__(self, pid: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._process: int | None = None
        if hasattr(os, "pidfd_open"):
            try:
                self._process = os.pidfd_open(pid)
            except OSError:  # it is gone, and so is the channel; or the kernel is too old
                return
            self._selector.register(self._process, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        if self._process is not None:
            os.close(self._process)

    def order(self, channel: Channel) -> Order | None:
        """Returns the next order; None when there will be none."""
        if channel.fileno() not in self._selector.get_map():
            self._selector.register(channel, selectors.EVENT_READ)
        ready = {key.fd for key, _ in self._selector.select()}
        return channel.receive_order() if channel.fileno() in ready else None


class _Work:
    """One worker's state between orders."""

    def __init__(self, job: Job, channel: Channel, worker: int) -> None:
        self._job = job
        self._channel = channel
        self._worker = worker
        self._run = ANY_RUN
        self._clock = StageClock()
        self._reporting = threading.Lock()
        self._reported: dict[str, float] = {}
        self._num_reports = 0
        self._dataset = job.dataset
        if job.private_cache is not None:
            folder, budget_bytes = job.private_cache
            self._dataset = job.dataset.with_cache(folder, budget_bytes)
        self._pipeline: Pipeline | None = None
        self._ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A transform may take for ever. Nobody waits for it any more.
        deadline = threading.Timer(_GRACE_S, self._give_up)
        deadline.daemon = True
        deadline.start()
        self._stop()
        for stored in self._dataset.stored:
            stored.close()
        self._remove_private_cache()

    def _give_up(self) -> None:
        self._remove_private_cache()
        os._exit(1)

    def _remove_private_cache(self) -> None:
        """The last worker does this last, also where the loader's process has been killed."""
        if self._job.private_cache is not None:
            shutil.rmtree(self._job.private_cache[0], ignore_errors=True)

    def open(self) -> None:
        """Calls the user's function and opens the data set; what goes wrong is the outcome of whatever is asked."""
        try:
            set_random_streams(self._job.seed, self._job.rank, self._worker)
            if self._job.worker_init_fn is not None:
                try:
                    self._job.worker_init_fn(self._worker)
                except Exception as error:
                    raise LoaderError(
                        f"worker_init_fn failed: {type(error).__name__}: {error}", stage="worker"
                    ) from error
            self._recipe = replace(
                make_recipe(
                    self._dataset,
                    decode=self._job.decode,
                    seed=self._job.seed,
                    transform=self._job.transform,
                    batch_transform=self._job.batch_transform,
                    collate_fn=self._job.collate_fn,
                    clock=self._clock,
                    device_codecs=self._job.device_codecs,
                    on_error=self._job.on_error,
                    decoding=self._job.decoding,
                ),
                ship=self._ship,
            )
            self._ready = True
        except Exception as error:  # noqa: BLE001 -- the loader raises it
            self._send(ANY_RUN, _packed(_outcome_of(error, self._report(), self._worker)))

    def obey(self, order: Order) -> None:
        """Does what the loader wants."""
        if not self._ready:
            return
        if order.kind is OrderKind.BEGIN:
            self._begin(order)
        elif order.run == self._run and self._pipeline is not None:
            if order.kind is OrderKind.TAKEN:
                self._dataset.loop.call_soon(self._pipeline.consumed)
            elif order.kind is OrderKind.SAY:
                self._send(order.run, _packed(Outcome(whereabouts=self._pipeline.whereabouts())))
            else:
                self._stop()

    def _begin(self, order: Order) -> None:
        self._stop()  # it has delivered its last, but may still be winding down
        job = self._job
        self._run = order.run
        streams = job.seed, order.epoch, job.rank
        set_random_streams(*streams, self._worker, 1)
        before = None
        if job.num_threads == 1:
            # Nobody else draws meanwhile: what is drawn for a batch depends on nothing but its place.
            def before(step: int, what: int) -> None:
                set_random_streams(*streams, step, what, 2)

        self._pipeline = Pipeline(
            source=self._dataset.source,
            plan=self._dataset.plan(job.plan, order.epoch),
            recipe=replace(self._recipe, before=before),
            start_step=order.step,
            rank=job.rank,
            world_size=job.world_size,
            num_threads=job.num_threads,
            prefetch_batches=job.batches_ahead(self._worker),
            prefetch_bytes=job.prefetch_bytes // job.num_workers,
            deliver=_Outbox(self, order.run),
            worker=self._worker,
            num_workers=job.num_workers,
        )
        self._dataset.loop.run(self._pipeline.start())

    def _stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop(self._dataset.loop)
            self._pipeline = None

    # -- what goes out ---------------------------------------------------------------------------------------------

    def _ship(self, make: Callable[[], Any], blocks: SharedBlocks) -> Parcel:
        """Makes a batch in memory that the consumer can see, and packs it; in a thread."""
        try:
            with blocks:
                batch = make()
            try:
                return pack(Outcome(item=(batch,), report=self._report()), blocks)
            except Exception as error:
                raise CollateError(
                    f"the batch cannot be handed over from a worker: {type(error).__name__}: {error}"
                ) from error
        finally:
            blocks.close()

    def deliver(self, run: int, outcome: Any, trail: Trail) -> None:
        """Sends what a pipeline delivers; on the loop, where a few bytes do not block."""
        if not isinstance(outcome, Parcel):
            error = outcome.error if isinstance(outcome, Failure) else None
            outcome = _packed(_outcome_of(error, self._report(), self._worker))
        outcome.add_note(trail)
        self._send(run, outcome)

    def _send(self, run: int, parcel: Parcel) -> None:
        if not self._channel.send_parcel(run, parcel):
            log.debug("worker %d has nobody to deliver to any more", self._worker)

    def _report(self) -> Report:
        with self._reporting:
            now = self._clock.seconds()
            more = {stage: seconds - self._reported.get(stage, 0.0) for stage, seconds in now.items()}
            self._reported = now
            self._num_reports += 1
            if not self._ready:
                return Report(more, number=self._num_reports)
            return Report(more, self._dataset.fetch_stats, self._dataset.cache_stats, number=self._num_reports)


class _Outbox:
    """Takes what one pipeline delivers, up to the first thing that is the last."""

    def __init__(self, work: _Work, run: int) -> None:
        self._work = work
        self._run = run
        self._open = True

    def __call__(self, outcome: Any, trail: Trail) -> None:
        if self._open:
            self._open = isinstance(outcome, Parcel)
            self._work.deliver(self._run, outcome, trail)


def _outcome_of(error: BaseException | None, report: Report, worker: int) -> Outcome:
    if error is None:
        return Outcome(report=report)
    trace = redact("".join(traceback.format_exception(error)))
    return Outcome(error=error, cause=f"in worker {worker} (pid {os.getpid()})\n\n{trace}", report=report)


def _packed(outcome: Outcome) -> Parcel:
    """Packs an outcome, its error in other words if it does not survive pickling."""
    if outcome.error is not None:
        error = outcome.error
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 -- its own
        except Exception:  # noqa: BLE001 -- the user's class
            error = LoaderError(f"{type(error).__name__}: {error}", stage="worker")
        outcome = replace(outcome, error=error)
    return pack(outcome)


def _not_opened(error: Exception) -> Exception:
    if isinstance(error, StorageError | LoaderError):
        return error
    made = ConfigurationError(
        "what was given to the loader cannot be made again in a worker process: functions and classes must be found "
        "there by importing a module, or the script's main file",
        got=redact(f"{type(error).__name__}: {error}"),
    )
    made.__cause__ = error
    return made
