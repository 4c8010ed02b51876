"""One iteration over the drop-in loader: between torch's iterator, whose results are outcomes, and the consumer."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from concurrent_loader.dataset_state import Places
from concurrent_loader.drop_in_parts import ItemParts, StreamParts
from concurrent_loader.served import Outcome
from concurrent_loader.torch_iterator import next_batch_of
from concurrent_loader.worker_places import ItemProgress, StreamProgress

__all__ = ["Counts", "Iteration"]


@dataclass(slots=True)
class Counts:
    """What `LoaderStats` shows, of all iterations."""

    num_batches: int = 0
    num_samples: int = 0
    first_batch_s: float = 0.0
    wait_s: float = 0.0
    total_s: float = 0.0


class Iteration(Iterator[Any]):
    """One iteration; threads and workers end with it, or with its last batch.

    After an exception it can be asked for the next batch, as torch's can. Attributes that begin with an underscore,
    such as ``_workers``, are those of torch's iterator: tools that watch workers read them.

    Args:
        loader: What to ask for a length, and to keep alive.
        batches: torch's iterator.
        progress: Through the dataset.
        counts: Counters of the loader.
        began: When the iteration began, in seconds of `perf_counter`.
        with_workers: Whether there are worker processes.
        on_end: Called at the end of the epoch with what the next one begins with.
        parts: What torch's iterator was made of; its threads in this process end with the epoch.
    """

    def __init__(
        self,
        loader: Any,
        batches: Iterator[Any],
        progress: ItemProgress | StreamProgress,
        *,
        counts: Counts,
        began: float,
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
        self._early: deque[Outcome] = deque()  # what came while others were still beginning
        self._given: float | None = None  # when the newest batch was given away

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "_batches" in self.__dict__:
            return getattr(self._batches, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def await_begun(self, num_workers: int) -> None:
        """Waits until each worker has said that it has begun; raises what went wrong there."""
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
            self._on_end(self._progress.at_end())
            self._parts.close()
            self._clear_frames(end)
            raise
        except BaseException as error:
            if not (isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")):
                self._progress.failed(outcome)
            self._parts.rest()  # the traceback keeps this object alive; threads it need not keep
            self._clear_frames(error)
            raise
        now = perf_counter()
        if self._given is None:
            counts.first_batch_s = now - self._began
        else:
            counts.total_s += asked - self._given
        counts.wait_s += now - asked
        counts.total_s += now - asked
        counts.num_batches += 1
        counts.num_samples += self._progress.delivered(outcome)
        self._given = now
        return outcome.batch if type(outcome) is Outcome else outcome

    def __del__(self) -> None:
        if not sys.is_finalizing() and "_progress" in self.__dict__:
            self._progress.put_back()

    def _clear_frames(self, error: BaseException) -> None:
        """Frees workers of an error that came from one.

        torch raises such an error from a frame that refers to it: a cycle, which would keep the workers until it is
        collected, and then for some seconds more, as their queues may be collected before them.
        """
        if self._with_workers:
            traceback.clear_frames(error.__traceback__)
