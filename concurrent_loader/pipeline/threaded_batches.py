"""Passes the batches of a pipeline, made by threads of this process, to the consumer's thread."""

from __future__ import annotations

import os
import queue
from typing import Any

from concurrent_loader.pipeline.batch_iterator import STOP_S, check_process
from concurrent_loader.pipeline.pipeline import Pipeline, PipelineConfig
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.loop_thread import LoopThread

__all__ = ["ThreadedBatches"]


class ThreadedBatches:
    """Takes batches from a pipeline on the dataset's event loop; see `EpochBatches`.

    Args:
        loop: Event loop of the dataset.
        config: Steps to make, and the resources for making them.
    """

    def __init__(self, loop: LoopThread, config: PipelineConfig) -> None:
        self._loop = loop
        self._ready: queue.SimpleQueue[tuple[Any, Spans]] = queue.SimpleQueue()
        self._spans: Spans = ()
        self._pipeline = Pipeline(config, deliver=lambda item, spans: self._ready.put((item, spans)))
        self._pid = os.getpid()

    def start(self) -> None:
        """Starts making batches."""
        self._loop.run(self._pipeline.start())

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next batch; see `EpochBatches.take`.

        Raises:
            TimeoutError: No batch has come.
            StoreClosed: The process has been forked since.
        """
        check_process(self._pid)
        try:
            item, self._spans = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError("no batch has come") from None
        self._loop.call_soon(self._pipeline.consumed)
        return item

    @property
    def spans(self) -> Spans:
        """Time spans of the batch taken last."""
        return self._spans

    def batch_status(self) -> BatchStatus:
        """Returns what the next batch is waiting for at this moment."""
        return self._pipeline.batch_status()

    def pipeline_status(self) -> PipelineStatus:
        """Returns how full the stages are; see `EpochBatches.pipeline_status`."""
        return self._pipeline.detailed_status()

    def stop(self, grace_period_s: float = STOP_S) -> None:
        """Stops the pipeline, and waits until its tasks and threads have ended; see `Pipeline.stop`."""
        self._pipeline.stop(self._loop, grace_period_s)
