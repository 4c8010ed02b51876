"""One epoch's batches on their way through the device stage: between those who make them and the loader.

The consumer's thread takes finished batches from whoever makes them, as many as are ready and two ahead at most, and
gives them to the stage's thread; that one alone talks to the device. So all that belongs to workers and pipelines stays
on the thread where it always was, and while the consumer trains the device decodes the next batch.
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

from concurrent_loader.batch import Batch
from concurrent_loader.broken import Mended, OnError
from concurrent_loader.decode_threads import DecodeThreads
from concurrent_loader.device import DeviceBackend, DeviceStage, Staged, open_backend
from concurrent_loader.epoch_batches import EpochBatches
from concurrent_loader.errors import DeviceError
from concurrent_loader.pipeline import END, STOP_S, Failure
from concurrent_loader.stats import StageClock
from concurrent_loader.waiting import Span, Trail, Whereabouts

__all__ = ["BATCHES_AHEAD", "DeviceBatches"]

BATCHES_AHEAD = 2  # on the device, beside the one that the consumer has

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Staged:
    """A batch with the stage's thread.

    Attributes:
        future: What becomes of it, and when the thread began and ended.
        trail: Where it was before.
        since_s: When the thread got it.
    """

    future: Future[tuple[Any, float, float]]
    trail: Trail
    since_s: float


class DeviceBatches:
    """Batches on a device; see `concurrent_loader.epoch_batches.EpochBatches`.

    Args:
        made: Where batches come from.
        device: Where they go.
        pinned: Whether they go by page-locked memory.
        clock: The loader's.
        on_error: What becomes of samples whose pictures only the device finds broken.
        open_device: Opens the device, on the thread that will use it.
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
        self._failed = False  # as the consumer has been told
        self._broken = False  # as the stage's thread knows
        self._thread = DecodeThreads(1, name=f"device_{device}")
        self._ahead: deque[_Staged] = deque()
        self._last: Any = None  # a failure or the end, which comes after all that is ahead
        self._trail: Trail = ()
        self._free_since_s = -float("inf")  # when the stage's thread was done with the batch taken last
        self._pid = os.getpid()

    def start(self) -> None:
        """Begins to make them."""
        self._made.start()

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next one; see `EpochBatches`.

        Raises:
            TimeoutError: None has come.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._advance()
        if not self._ahead and self._last is None:
            self._submit(self._made.take(timeout_s))
            self._advance()
        if not self._ahead:
            self._trail = self._made.trail
            return self._last
        first = self._ahead[0]
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        try:
            item, began_s, ended_s = first.future.result(left_s)
        except TimeoutError:
            if not first.future.done() or first.future.exception() is None:
                raise  # and if it has come at this very moment, the next call finds it
            return self._failure(first)  # the stage's own error, of the same class
        except Exception:  # noqa: BLE001 - delivered in the batch's place
            return self._failure(first)
        self._ahead.popleft()
        self._trail = (*first.trail, self._staging(first.trail, began_s, ended_s))
        self._free_since_s = ended_s
        self._advance()
        if isinstance(item, Staged) and self._stage is not None:
            batch = self._stage.hand_over(item)
            return Mended(batch, item.errors) if item.errors else batch
        return item

    @property
    def trail(self) -> Trail:
        """Where the one taken last has been."""
        return self._trail

    def whereabouts(self) -> Whereabouts:
        """Says where the next one is at this moment."""
        at = self._made.whereabouts() if self._last is None else Whereabouts()
        if not self._ahead:
            return at
        what = f"is on its way to {self._device}, or being decoded there"
        for_s = max(0.0, self._clock.now() - self._ahead[0].since_s)
        return Whereabouts("device", what, for_s, at.num_batches + len(self._ahead))

    def stop(self, patience_s: float = STOP_S) -> None:
        """Ends the stage's thread, then whoever makes batches, and waits for both. Idempotent."""
        self._ahead.clear()
        self._last = self._last or END
        try:
            if os.getpid() == self._pid and not self._thread.join(patience_s):
                _log.warning("%s does not answer; the thread that waits for it is left behind", self._device)
            elif self._stage is not None:
                self._close(self._stage)
        finally:
            self._stage = None
            self._made.stop(patience_s)

    def _close(self, stage: DeviceStage) -> None:
        try:
            stage.close()
        except DeviceError as error:
            if not self._failed:  # else it has been said
                raise
            _log.debug("%s cannot be left in order: %s", self._device, error)

    # -- the consumer's thread ---------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Gives the stage what is ready, without waiting."""
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
        self._ahead.append(_Staged(future, self._made.trail, self._clock.now()))

    def _failure(self, first: _Staged) -> Failure:
        error = first.future.exception()
        assert error is not None
        self._failed = True
        self._ahead.clear()
        self._trail = first.trail
        self._last = Failure(error)
        return self._last  # type: ignore[no-any-return]

    def _staging(self, trail: Trail, began_s: float, ended_s: float) -> Span:
        """The time that the stage took, with that in which it was busy with the batch before."""
        arrived_s = trail[-1].end_s if trail else began_s
        start_s = arrived_s if arrived_s < self._free_since_s else began_s
        return Span(start_s, max(start_s, ended_s), {"device": 1.0})

    # -- the stage's thread ------------------------------------------------------------------------------------------

    def _do(self, item: Any) -> tuple[Any, float, float]:
        began_s = self._clock.now()
        batch, errors = (item.batch, item.errors) if isinstance(item, Mended) else (item, ())
        if not isinstance(batch, Batch):
            return item, began_s, began_s
        if self._broken:  # the device may still read from the slot; and nothing comes after a failure
            return item, began_s, began_s
        try:
            if self._stage is None:
                backend = self._open_device(self._device, pinned=self._pinned)
                self._stage = DeviceStage(backend, clock=self._clock, on_error=self._on_error)
            staged = self._stage.stage(batch)
        except BaseException as error:
            self._broken = True
            # Its frames would keep the device's memory for as long as anybody keeps the error.
            clear_frames: Callable[[Any], None] = traceback.clear_frames
            clear_frames(error.__traceback__)
            raise
        return replace(staged, errors=(*errors, *staged.errors)), began_s, self._clock.now()
