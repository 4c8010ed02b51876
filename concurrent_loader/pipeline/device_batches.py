"""Passes one epoch's batches through the device stage, on their way from the pipeline or the workers to the loader.

The consumer's thread takes finished batches, two ahead at most, and passes them to the stage's thread. Only that thread
uses the device. Pipelines and workers are still used from the consumer's thread alone, and the device decodes the next
batch while the consumer trains.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.decode_failures import OnError, RepairedBatch
from concurrent_loader.device import DeviceBackend, DeviceStage, StagedBatch, open_backend
from concurrent_loader.errors import DeviceError
from concurrent_loader.pipeline.batch_iterator import END, STOP_S, EpochBatches, Failure
from concurrent_loader.pipeline.thread_pool import DecodeThreads
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Span, Spans

__all__ = ["BATCHES_AHEAD", "DeviceBatches"]

BATCHES_AHEAD = 2  # on the device, in addition to the consumer's batch

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Staged:
    """A batch in the stage's thread.

    Attributes:
        future: The staged batch, and the start and end of staging.
        spans: Time spans before staging.
        since_s: Time of submission to the thread.
    """

    future: Future[tuple[Any, float, float]]
    spans: Spans
    since_s: float


class DeviceBatches:
    """Batches on a device; see `concurrent_loader.pipeline.batch_iterator.EpochBatches`.

    Args:
        made: Batches from the pipeline or the workers.
        device: Device to stage the batches on.
        pinned: Whether to copy through page-locked memory.
        clock: Clock of the loader.
        on_error: Policy for images that only the device finds undecodable; ``"raise"`` by default.
        open_device: Function that opens the device; called on the thread that uses it.
    """

    def __init__(
        self,
        made: EpochBatches,
        device: torch.device,
        *,
        pinned: bool,
        clock: StageClock,
        on_error: OnError = "raise",
        open_device: Callable[..., DeviceBackend] = open_backend,
    ) -> None:
        self._made = made
        self._device = device
        self._clock = clock
        self._pinned = pinned
        self._on_error = on_error
        self._open_device = open_device
        self._stage: DeviceStage | None = None
        self._failed = False  # whether the consumer has received a failure
        self._broken = False  # whether staging has failed; written by the stage's thread
        self._thread = DecodeThreads(1, name=f"device_{device}")
        self._ahead: deque[_Staged] = deque()
        self._last: Any = None  # a failure or the end; delivered after the batches ahead
        self._spans: Spans = ()
        self._free_since_s = -float("inf")  # when the stage's thread finished the batch taken last
        self._pid = os.getpid()

    def start(self) -> None:
        """Starts making batches."""
        self._made.start()

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next batch; see `EpochBatches.take`.

        Raises:
            TimeoutError: No batch has come.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._advance()
        if not self._ahead and self._last is None:
            self._submit(self._made.take(timeout_s))
            self._advance()
        if not self._ahead:
            self._spans = self._made.spans
            return self._last
        first = self._ahead[0]
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        try:
            item, began_s, ended_s = first.future.result(left_s)
        except TimeoutError:
            if not first.future.done() or first.future.exception() is None:
                raise  # a batch that comes at this very moment is found by the next call
            return self._failure(first)  # the stage itself raised a TimeoutError
        except Exception:  # noqa: BLE001 - delivered in the batch's place
            return self._failure(first)
        self._ahead.popleft()
        self._spans = (*first.spans, self._staging(first.spans, began_s, ended_s))
        self._free_since_s = ended_s
        self._advance()
        if isinstance(item, StagedBatch) and self._stage is not None:
            batch = self._stage.hand_over(item)
            return RepairedBatch(batch, item.errors) if item.errors or item.repaired else batch
        return item

    @property
    def spans(self) -> Spans:
        """Time spans of the batch taken last."""
        return self._spans

    def batch_status(self) -> BatchStatus:
        """Returns what the next batch is waiting for at this moment."""
        at = self._made.batch_status() if self._last is None else BatchStatus()
        if not self._ahead:
            return at
        what = f"is being copied to {self._device}, or decoded there"
        for_s = max(0.0, self._clock.now() - self._ahead[0].since_s)
        return BatchStatus("device", what, for_s, at.num_batches + len(self._ahead))

    def pipeline_status(self) -> PipelineStatus:
        """Returns how full the stages are; see `EpochBatches.pipeline_status`."""
        return replace(self._made.pipeline_status(), num_on_device=len(self._ahead), max_on_device=BATCHES_AHEAD)

    def stop(self, grace_period_s: float = STOP_S) -> None:
        """Ends the stage's thread, stops making batches, and waits for both. Idempotent."""
        self._ahead.clear()
        self._last = self._last or END
        try:
            if os.getpid() == self._pid and not self._thread.join(grace_period_s):
                _log.warning("%s does not respond; the thread that waits for it is left behind", self._device)
            elif self._stage is not None:
                self._close(self._stage)
        finally:
            self._stage = None
            self._made.stop(grace_period_s)

    def _close(self, stage: DeviceStage) -> None:
        try:
            stage.close()
        except DeviceError as error:
            if not self._failed:  # otherwise an error has been delivered already
                raise
            _log.debug("%s cannot be closed properly: %s", self._device, error)

    # -- the consumer's thread ---------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Submits finished batches to the stage, without waiting."""
        while self._last is None and len(self._ahead) < BATCHES_AHEAD:
            try:
                item = self._made.take(0.0)
            except TimeoutError:
                return
            self._submit(item)

    def _submit(self, item: Any) -> None:
        if item is END or isinstance(item, Failure):
            self._last = item
            return
        future = self._thread.submit(self._do, item)
        self._ahead.append(_Staged(future, self._made.spans, self._clock.now()))

    def _failure(self, first: _Staged) -> Failure:
        error = first.future.exception()
        assert error is not None
        self._failed = True
        self._ahead.clear()
        self._spans = first.spans
        self._last = Failure(error)
        return self._last  # type: ignore[no-any-return]

    def _staging(self, spans: Spans, began_s: float, ended_s: float) -> Span:
        """Returns the span of staging, including the time in which the stage was busy with the batch before."""
        arrived_s = spans[-1].end_s if spans else began_s
        start_s = arrived_s if arrived_s < self._free_since_s else began_s
        return Span(start_s, max(start_s, ended_s), {"device": 1.0})

    # -- the stage's thread ------------------------------------------------------------------------------------------

    def _do(self, item: Any) -> tuple[Any, float, float]:
        began_s = self._clock.now()
        batch, errors = (item.batch, item.errors) if isinstance(item, RepairedBatch) else (item, ())
        if not isinstance(batch, Batch):
            return item, began_s, began_s
        if self._broken:  # the device may still read from the slot, and nothing is delivered after a failure
            return item, began_s, began_s
        try:
            if self._stage is None:
                backend = self._open_device(self._device, pinned=self._pinned)
                self._stage = DeviceStage(backend, clock=self._clock, on_error=self._on_error)
            staged = self._stage.stage(batch)
        except BaseException as error:
            self._broken = True
            # The traceback's frames would keep the device's memory alive as long as the error.
            clear_frames: Callable[[Any], None] = traceback.clear_frames
            clear_frames(error.__traceback__)
            raise
        staged = replace(staged, errors=(*errors, *staged.errors), repaired=isinstance(item, RepairedBatch))
        return staged, began_s, self._clock.now()
