"""One iteration over the drop-in: turns the outcomes of torch's iterator into batches or errors."""

from __future__ import annotations

import sys
import traceback
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from concurrent_loader.map_style.dataset_state import Places
from concurrent_loader.map_style.torch_iterator import next_batch_of
from concurrent_loader.map_style.torch_loader import ItemParts, StreamParts
from concurrent_loader.map_style.worker_dataset import Outcome
from concurrent_loader.map_style.worker_progress import ItemProgress, StreamProgress
from concurrent_loader.metrics.live_server import track, untrack
from concurrent_loader.metrics.running import Place
from concurrent_loader.stats.loader_stats import WAIT_BOUNDS_S, LoaderStats

__all__ = ["Counts", "Iteration"]

_SHORT_S = 1.0  # a shorter iteration starts no thread for metrics


def _nothing() -> None:
    """Ends nothing, because a short iteration is not tracked."""


@dataclass(slots=True)
class Counts:
    """Counters of all iterations, as `LoaderStats` shows them."""

    num_batches: int = 0
    num_samples: int = 0
    first_batch_s: float = 0.0
    wait_s: float = 0.0
    total_s: float = 0.0
    state: str = ""
    since_s: float = 0.0  # start of the state, in seconds of `perf_counter`
    batch_waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS_S) + 1))

    def stats(self) -> LoaderStats:
        """Returns the counters, frozen."""
        return LoaderStats(
            num_batches=self.num_batches, num_samples=self.num_samples, first_batch_s=self.first_batch_s,
            wait_s=self.wait_s, total_s=self.total_s, batch_waits=tuple(self.batch_waits),
        )  # fmt: skip


class Iteration(Iterator[Any]):
    """Iterates over the drop-in once. Threads and workers end with the iterator, or with its last batch.

    After an exception, the next batch can be requested, as with torch. Attributes with a leading underscore, such as
    ``_workers``, are those of torch's iterator, for tools that watch workers.

    Args:
        loader: Loader, kept alive and asked for its length.
        batches: Iterator of torch's loader.
        progress: Progress through the dataset.
        counts: Counters of the loader.
        began: Start of the iteration, in seconds of `perf_counter`.
        num_before: Number of the epoch's batches that were delivered before a resume.
        with_workers: Whether there are worker processes.
        on_end: Function called at the end of the epoch with the positions for the next one.
        parts: Parts of torch's iterator. Their threads in this process end with the epoch.
    """

    def __init__(
        self,
        loader: Any,
        batches: Iterator[Any],
        progress: ItemProgress | StreamProgress,
        *,
        counts: Counts,
        began: float,
        num_before: int,
        with_workers: bool,
        on_end: Callable[[Places | None], None],
        parts: ItemParts | StreamParts,
    ) -> None:
        self._loader = loader
        self._batches = batches
        self._next_outcome = next_batch_of(batches)
        self._progress = progress
        self._counts = counts
        self._began = began
        self._with_workers = with_workers
        self._on_end = on_end
        self._parts = parts
        self._early: deque[Outcome] = deque()  # received while other workers were still starting
        self._given: float | None = None  # time of delivery of the newest batch
        self._first = counts.num_batches
        self._num_before = num_before
        self._untrack: Callable[[], object] = _nothing

    def __len__(self) -> int:
        """Returns the number of batches of this iteration: of a resumed one, those that were still to come."""
        return max(0, len(self._loader) - self._num_before)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "_batches" in self.__dict__:
            return getattr(self._batches, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def wait_for_workers(self, num_workers: int) -> None:
        """Waits until each worker reports that it has started; raises an error from there."""
        begun: set[int] = set()
        while len(begun) < num_workers:
            outcome: Outcome = self._next_outcome()
            if outcome.worker in begun:
                self._early.append(outcome)
                continue
            if outcome.error is not None:
                outcome.error.reraise()  # type: ignore[no-untyped-call]
            begun.add(outcome.worker)
            self._progress.note(outcome)

    def __next__(self) -> Any:
        counts, asked = self._counts, perf_counter()
        counts.state, counts.since_s = "wait", asked
        outcome: Any = None
        try:
            while True:
                outcome = None
                outcome = self._early.popleft() if self._early else self._next_outcome()
                if type(outcome) is not Outcome or outcome.has_batch:
                    break
                if outcome.error is not None:
                    outcome.error.reraise()  # type: ignore[no-untyped-call]
                self._progress.note(outcome)
        except StopIteration as end:
            self._untrack()
            self._on_end(self._progress.next_epoch_start())
            self._parts.close()
            self._clear_frames(end)
            raise
        except BaseException as error:
            if not (isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")):
                self._progress.failed(outcome)
            self._parts.release_idle()  # the traceback keeps this object alive, but need not keep threads
            self._clear_frames(error)
            raise
        now = perf_counter()
        if self._given is None:
            counts.first_batch_s = now - self._began
        else:
            counts.total_s += asked - self._given
        counts.wait_s += now - asked
        counts.total_s += now - asked
        counts.batch_waits[bisect_left(WAIT_BOUNDS_S, now - asked)] += 1
        counts.num_batches += 1
        counts.num_samples += self._progress.delivered(outcome)
        self._given = now
        counts.state, counts.since_s = "consumer", now
        if self._untrack is _nothing and now - self._began > _SHORT_S:
            self._track()
        return outcome.batch if type(outcome) is Outcome else outcome

    def _track(self) -> None:
        """Makes an iteration that is not a short one known to metrics; `weakref.finalize` ends this at the latest."""
        counts, first, epoch = self._counts, self._first - self._num_before, self._loader.epoch
        num_steps = None
        if not self._loader._is_stream:  # torch notes that the length of a stream was asked for
            with suppress(TypeError, NotImplementedError):  # a sampler without a length
                num_steps = len(self._loader)
        live = track(
            self._loader,
            place=lambda: Place(epoch, counts.num_batches - first, num_steps),
            pending=lambda: (counts.state, perf_counter() - counts.since_s),
        )
        self._untrack = weakref.finalize(self, untrack, live)

    def __del__(self) -> None:
        if not sys.is_finalizing() and "_progress" in self.__dict__:
            self._progress.restore_generators()

    def _clear_frames(self, error: BaseException) -> None:
        """Releases the workers from the traceback of an error that one of them sent.

        torch raises such an error from a frame that refers to it. This cycle would keep the workers alive until it is
        collected, and some seconds longer, because their queues may be collected before them.
        """
        if self._with_workers:
            traceback.clear_frames(error.__traceback__)
