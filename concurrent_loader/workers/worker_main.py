"""Main program of a worker process: makes whole batches of its own steps, with its own dataset, loop and threads.

`concurrent_loader.workers.workers` starts it. It handles the commands on its channel and sends each outcome as a packed
batch. When the channel closes, because the loader is done or its process is dead, the worker ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import resource
import selectors
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from concurrent_loader.batch.shared_memory import SharedBlocks
from concurrent_loader.errors import CollateError, LoaderError
from concurrent_loader.pipeline.batch_iterator import Failure
from concurrent_loader.pipeline.pipeline import Pipeline, PipelineConfig
from concurrent_loader.pipeline.sample_processing import make_sample_processing
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import Spans
from concurrent_loader.storage.errors import ConfigurationError, StorageError
from concurrent_loader.storage.redaction import redact
from concurrent_loader.storage.span_recorder import SpanRecorder, active, set_active
from concurrent_loader.workers.channel import Channel, Command, CommandKind
from concurrent_loader.workers.fork_server import restore_environment
from concurrent_loader.workers.job import Job, PickledJob
from concurrent_loader.workers.messages import ANY_RUN, Outcome, Report
from concurrent_loader.workers.serialization import PackedBatch, pack

__all__ = ["main", "seed_generators"]

_GRACE_S = 5.0  # for a running transform when the loader is done with the worker

log = logging.getLogger(__name__)


def seed_generators(*entropy: int) -> None:
    """Seeds the global generators of Python, numpy and torch (CPU) with a pure function of some integers."""
    words = np.random.SeedSequence(entropy).generate_state(12, np.uint32)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:8])
    torch.default_generator.manual_seed(int.from_bytes(words[8:10].tobytes(), "little"))


def main(pickled_job: PickledJob, end: socket.socket, worker: int, parent_pid: int) -> None:
    """Runs a worker until its channel closes.

    Args:
        pickled_job: Job of the worker.
        end: Socket of the channel.
        worker: Number of the worker.
        parent_pid: Process id of the loader.
    """
    # Ctrl-C is handled by the loader's process, which ends its workers by closing their channels.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    restore_environment()
    # Descriptors of batches under way count against the sender's limit.
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = Channel(end)
    try:
        job = pickled_job.open()
    except Exception as error:  # noqa: BLE001 -- raised by the loader
        channel.send_batch(ANY_RUN, _packed(_outcome_of(_not_opened(error), Report(), worker)))
        return
    torch.set_num_threads(1)  # the workers themselves use all cores
    with _Work(job, channel, worker) as work, _Parent(parent_pid) as parent:
        work.open()
        while (command := parent.next_command(channel)) is not None:
            work.handle(command)


class _Parent:
    """Waits for commands while the loader's process lives.

    Its death closes the channel, unless a forked child still has the channel's other end open.
    """

    def __init__(self, pid: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._process: int | None = None
        if hasattr(os, "pidfd_open"):
            try:
                self._process = os.pidfd_open(pid)
            except OSError:  # the process and the channel are gone, or the kernel is too old
                return
            self._selector.register(self._process, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        if self._process is not None:
            os.close(self._process)

    def next_command(self, channel: Channel) -> Command | None:
        """Returns the next command; None at the end."""
        if channel.fileno() not in self._selector.get_map():
            self._selector.register(channel, selectors.EVENT_READ)
        ready = {key.fd for key, _ in self._selector.select()}
        return channel.receive_command() if channel.fileno() in ready else None


class _Work:
    """State of a worker between commands."""

    def __init__(self, job: Job, channel: Channel, worker: int) -> None:
        self._job = job
        self._channel = channel
        self._worker = worker
        self._run = ANY_RUN
        self._clock = StageClock()
        self._reporting = threading.Lock()
        self._reported = {"process_cpu": time.process_time()}  # what starting costs is no work
        self._num_reports = 0
        self._dataset = job.dataset
        if job.temp_cache is not None:
            folder, budget_bytes = job.temp_cache
            self._dataset = job.dataset.with_cache(folder, budget_bytes)
        self._pipeline: Pipeline | None = None
        self._ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A transform may hang. Its result is no longer needed.
        deadline = threading.Timer(_GRACE_S, self._give_up)
        deadline.daemon = True
        deadline.start()
        self._stop()
        for stored in self._dataset.stored:
            stored.close()
        self._remove_temp_cache()

    def _give_up(self) -> None:
        self._remove_temp_cache()
        os._exit(1)

    def _remove_temp_cache(self) -> None:
        """Deletes the cache folder, also if the loader's process was killed."""
        if self._job.temp_cache is not None:
            shutil.rmtree(self._job.temp_cache[0], ignore_errors=True)

    def open(self) -> None:
        """Calls the user's function and opens the dataset. A failure is sent to the loader and raised there."""
        try:
            seed_generators(self._job.processing.seed, self._job.rank, self._worker)
            if self._job.worker_init_fn is not None:
                try:
                    self._job.worker_init_fn(self._worker)
                except Exception as error:
                    raise LoaderError(
                        f"worker_init_fn failed: {type(error).__name__}: {error}", stage="worker"
                    ) from error
            processing = make_sample_processing(self._dataset, self._job.processing, clock=self._clock)
            self._processing = replace(processing, ship=self._ship)
            self._ready = True
        except Exception as error:  # noqa: BLE001 -- raised by the loader
            self._send(ANY_RUN, _packed(_outcome_of(error, self._report(), self._worker)))

    def handle(self, command: Command) -> None:
        """Handles one command."""
        if not self._ready:
            return
        if command.kind is CommandKind.BEGIN:
            try:
                self._begin(command)
            except Exception as error:  # noqa: BLE001 -- of a weights function, or of the store; raised by the loader
                self._send(command.run, _packed(_outcome_of(error, self._report(), self._worker)))
        elif command.run == self._run and self._pipeline is not None:
            if command.kind is CommandKind.TAKEN:
                self._dataset.loop.call_soon(self._pipeline.consumed)
            elif command.kind is CommandKind.STATUS:
                self._send(
                    command.run, _packed(Outcome(report=self._report(), batch_status=self._pipeline.batch_status()))
                )
            else:
                self._stop()

    def _begin(self, command: Command) -> None:
        self._stop()  # the last run has delivered everything, but may still be ending
        job = self._job
        set_active(SpanRecorder(command.max_spans) if command.max_spans else None)
        self._run = command.run
        streams = job.processing.seed, command.epoch, job.rank
        seed_generators(*streams, self._worker, 1)
        before = None
        if job.num_threads == 1:
            # With one thread, random numbers drawn for a batch depend on its position alone.
            def before(step: int, what: int) -> None:
                seed_generators(*streams, step, what, 2)

        config = PipelineConfig(
            source=self._dataset.source_for(job.plan, command.epoch),
            plan=self._dataset.plan(job.plan, command.epoch),
            processing=replace(self._processing, before=before),
            start_step=command.step,
            rank=job.rank,
            world_size=job.world_size,
            num_threads=job.num_threads,
            prefetch_batches=job.batches_ahead(self._worker),
            prefetch_bytes=job.prefetch_bytes // job.num_workers,
            worker=self._worker,
            num_workers=job.num_workers,
        )
        self._pipeline = Pipeline(config, deliver=_Delivery(self, command.run))
        self._dataset.loop.run(self._pipeline.start())

    def _stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop(self._dataset.loop)
            self._pipeline = None

    # -- messages to the loader --------------------------------------------------------------------------------------

    def _ship(self, make: Callable[[], Any], blocks: SharedBlocks) -> PackedBatch:
        """Makes a batch in shared memory and packs it. Runs in a thread."""
        try:
            with blocks:
                batch = make()
            try:
                return pack(Outcome(item=(batch,), report=self._report()), blocks)
            except Exception as error:
                raise CollateError(
                    f"the batch cannot be sent from a worker: {type(error).__name__}: {error}"
                ) from error
        finally:
            blocks.close()

    def deliver(self, run: int, outcome: Any, spans: Spans) -> None:
        """Sends an outcome of a pipeline. Runs on the loop; sending a few bytes does not block."""
        if not isinstance(outcome, PackedBatch):
            error = outcome.error if isinstance(outcome, Failure) else None
            outcome = _packed(_outcome_of(error, self._report(), self._worker))
        outcome.append_metadata(spans)
        self._send(run, outcome)

    def _send(self, run: int, packed: PackedBatch) -> None:
        if not self._channel.send_batch(run, packed):
            log.debug("worker %d cannot deliver: the loader has closed its channel", self._worker)

    def _report(self) -> Report:
        with self._reporting:
            now = self._clock.seconds() | {"process_cpu": time.process_time()}
            more = {stage: seconds - self._reported.get(stage, 0.0) for stage, seconds in now.items()}
            self._reported = now
            self._num_reports += 1
            if not self._ready:
                return Report(more, number=self._num_reports)
            recorder = active()
            spans = [] if recorder is None else recorder.drain()
            status = PipelineStatus() if (pipeline := self._pipeline) is None else pipeline.status()
            status = replace(status, slow=tuple(replace(each, worker=self._worker) for each in status.slow))
            fetch, cache = self._dataset.fetch_stats, self._dataset.cache_stats
            return Report(more, fetch, cache, status, self._num_reports, spans)


class _Delivery:
    """Forwards the outcomes of one pipeline, up to its last one."""

    def __init__(self, work: _Work, run: int) -> None:
        self._work = work
        self._run = run
        self._open = True

    def __call__(self, outcome: Any, spans: Spans) -> None:
        if self._open:
            self._open = isinstance(outcome, PackedBatch)
            self._work.deliver(self._run, outcome, spans)


def _outcome_of(error: BaseException | None, report: Report, worker: int) -> Outcome:
    if error is None:
        return Outcome(report=report)
    trace = redact("".join(traceback.format_exception(error)))
    return Outcome(error=error, cause=f"in worker {worker} (pid {os.getpid()})\n\n{trace}", report=report)


def _packed(outcome: Outcome) -> PackedBatch:
    """Packs an outcome. An error that cannot be pickled is replaced by a `LoaderError` with its text."""
    if outcome.error is not None:
        error = outcome.error
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 -- pickled here
        except Exception:  # noqa: BLE001 -- pickling runs code of the user's class
            error = LoaderError(f"{type(error).__name__}: {error}", stage="worker")
        outcome = replace(outcome, error=error)
    return pack(outcome)


def _not_opened(error: Exception) -> Exception:
    if isinstance(error, StorageError | LoaderError):
        return error
    made = ConfigurationError(
        "an argument of the loader cannot be unpickled in a worker process; define its functions and classes in a "
        "module, or in the main file of the script",
        got=redact(f"{type(error).__name__}: {error}"),
    )
    made.__cause__ = error
    return made
