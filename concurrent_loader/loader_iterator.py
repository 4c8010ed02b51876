"""One iteration over the native loader: the iterator that the consumer holds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import count
from multiprocessing.process import BaseProcess
from typing import Any

from concurrent_loader.batch.batch import Batch
from concurrent_loader.errors import LoaderError, LoaderTimeout
from concurrent_loader.pipeline.batch_iterator import END, EpochBatches, Failure
from concurrent_loader.pipeline.batch_timeout import BatchTimeout
from concurrent_loader.stats.loader_stats import WallTime
from concurrent_loader.stats.trace import profiled
from concurrent_loader.stats.wait_attribution import spans_for
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.redaction import shorten_traceback
from concurrent_loader.storage.span_recorder import active
from concurrent_loader.workers.workers import WorkerProcesses

__all__ = ["LoaderIterator", "num_samples", "receive_batches"]


class LoaderIterator(Iterator[Any]):
    """Yields the batches of one epoch. Its threads and workers end with it.

    ``len()`` is the number of batches still to come, so ``tqdm(iter(loader))`` shows the right total after a resume::

        loader.load_state_dict(state)  # after 7 of 10 batches
        len(loader)  # 10
        len(iter(loader))  # 3

    Args:
        batches: Generator of the batches.
        workers: Worker processes of the loader; None if threads make the batches.
        begins_at: Function that returns (epoch, step) of the first batch of an iteration that starts now.
        num_steps: Function from an epoch to its number of batches.
    """

    def __init__(
        self,
        batches: Generator[Any, None, None],
        workers: WorkerProcesses | None,
        *,
        begins_at: Callable[[], tuple[int, int]],
        num_steps: Callable[[int], int],
    ) -> None:
        self._batches = batches
        self._processes = workers
        self._begins_at = begins_at
        self._num_steps = num_steps
        self._next_place: tuple[int, int] | None = None  # (epoch, step), from the first batch on
        self._has_ended = False

    def __next__(self) -> Any:
        epoch, step = self._next_place or self._begins_at()
        try:
            batch = next(self._batches)
        except BaseException:
            self._has_ended = True
            raise
        self._next_place = epoch, step + 1
        return batch

    def __len__(self) -> int:
        if self._has_ended:
            return 0
        epoch, step = self._next_place or self._begins_at()
        return self._num_steps(epoch) - step

    def close(self) -> None:
        """Ends the iteration."""
        self._has_ended = True
        self._batches.close()

    @property
    def _workers(self) -> list[BaseProcess]:
        """Worker processes, from the first batch on. Tools that watch workers look here, as with torch's iterator.

        Raises:
            AttributeError: The loader has no workers, as with torch.
        """
        if self._processes is None:
            raise AttributeError("_workers: the loader has num_workers=0")
        return self._processes.processes


def receive_batches(
    batches: EpochBatches, patience: BatchTimeout, wall: WallTime, *, epoch: int, start_step: int
) -> Iterator[Any]:
    """Yields the batches of an epoch and charges the waiting time to the stages that caused it.

    Args:
        batches: Batches of the epoch, started.
        patience: Time-out of the wait for one batch.
        wall: Wall time of the iteration, by cause.
        epoch: Epoch, for messages.
        start_step: Step of the first batch, for messages.

    Raises:
        LoaderTimeout: No batch arrived in time.
        StorageError: Bytes could not be fetched or verified.
        LoaderError: A sample could not be decoded, transformed or collated.
    """
    for step in count(start_step):
        try:
            with profiled("wait"):
                item = patience.take(batches, name=f"batch {step} of epoch {epoch}")
        except LoaderTimeout as error:
            wall.count_wait(spans_for(error.stage or "other"))
            raise
        except BaseException:
            wall.count_wait(())
            raise
        waited_s = wall.count_wait(batches.spans)
        if (recorder := active()) is not None:
            for span in batches.spans:
                cause = max(span.shares, key=span.shares.__getitem__, default="other")
                recorder.add("batch", cause, span.start_s, span.end_s, step=step, epoch=epoch, shares=dict(span.shares))
        if item is END:
            return
        if isinstance(item, Failure):
            is_typed = isinstance(item.error, StorageError | LoaderError)  # any other error keeps its whole traceback
            raise shorten_traceback(item.error) if is_typed else item.error
        wall.count_batch(waited_s)
        yield item


def num_samples(item: Any) -> int:
    """Returns the number of a batch's samples without padding; 0 for what `collate_fn` made of them."""
    return len(item.sample_ids) - item.num_padded if isinstance(item, Batch) else 0
