"""Datasets that run in the drop-in's workers in place of the user's: each sample is an outcome, a batch or an error.

torch's loader does not batch these samples. The worker itself collates, turns errors into a form that always
arrives, and adds the state of the dataset.
"""

from __future__ import annotations

import contextlib
import multiprocessing.queues
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.worker import _generate_state

from concurrent_loader.map_style.dataset_state import Place, Places, pack_state, unpack_state
from concurrent_loader.map_style.prefetching_dataset import PrefetchingDataset
from concurrent_loader.map_style.worker_errors import picklable_error, replace_stop_iteration, wrap_worker_error
from concurrent_loader.workers.multiprocessing_folder import claim_multiprocessing_folder

__all__ = ["Outcome", "StartTask", "WorkerDataset", "WorkerInit", "WorkerStream", "identity"]


class Outcome(NamedTuple):
    """Result of one task, sent by a worker.

    Attributes:
        worker: Number of the worker; 0 in the loader's own process.
        number: Number of the task; None from a stream.
        size: Number of samples.
        has_batch: Whether there is a batch. Other outcomes report that a worker has started or ended.
        batch: Collated batch.
        error: Exception in place of a batch, from a worker process. In the loader's process it is raised.
        state: Packed state of the dataset after the batch; None if it is not kept.
        ended: Whether the dataset is exhausted.
    """

    worker: int
    number: int | None = None
    size: int = 0
    has_batch: bool = False
    batch: Any = None
    error: ExceptionWrapper | None = None
    state: bytes | None = None
    ended: bool = False


class StartTask(NamedTuple):
    """First task of a worker whose dataset has a state.

    Attributes:
        state: Packed state to restore; None to keep the dataset's own.
    """

    state: bytes | None = None


def identity(outcome: Any) -> Any:
    """Returns its argument, so that torch's loader does not collate outcomes."""
    return outcome


def _worker() -> int | None:
    info = get_worker_info()
    return None if info is None else int(info.id)


class WorkerDataset(Dataset[Outcome]):
    """Makes batches of a map-style dataset, one per task.

    Args:
        items: Prefetching dataset that reads the items.
        collate: Function from the items of a batch, or from one item where torch does not make batches.
        batched: Whether a task is a batch rather than one item.
        stateful: Whether the dataset has a state, which is then sent with each batch.
        numbered: Whether batches are sent with the numbers of their tasks. Otherwise, and without a state, a batch is
            sent plain, because an outcome around it takes a microsecond.
    """

    def __init__(
        self, items: PrefetchingDataset, collate: Callable[[Any], Any], *, batched: bool, stateful: bool, numbered: bool
    ) -> None:
        self.items = items
        self.dataset = items.dataset
        self._collate = collate
        self._batched = batched
        self.stateful = stateful
        self._is_plain = not (stateful or numbered)

    def place(self) -> Place:
        """Returns the position of this process's dataset."""
        return Place(pack_state(self.dataset))

    def __getitem__(self, task: Any) -> Any:
        """Runs a task and returns its outcome, or the plain batch. None is an empty task."""
        doing = "the dataset"
        try:
            if self._is_plain:
                items = self.items.__getitems__(task) if self._batched else self.items[task]
                doing = "collate_fn"
                return self._collate(items)
            worker = _worker()
            number = worker or 0
            if task is None:
                return Outcome(number)
            if isinstance(task, StartTask):
                if task.state is not None:
                    self.dataset.load_state_dict(unpack_state(task.state)[0])
                return Outcome(number, state=pack_state(self.dataset))
            items = self.items.__getitems__(task) if self._batched else self.items[task]
            doing = "collate_fn"
            batch = self._collate(items)
            state = pack_state(self.dataset) if self.stateful and worker is not None else None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an error of the user's code; raised in the training loop
            if (worker := _worker()) is None:
                raise replace_stop_iteration(error, doing)  # noqa: B904 - its cause is set
            return Outcome(worker, getattr(task, "number", None), error=wrap_worker_error(error, worker, doing))
        return Outcome(number, task.number, has_batch=True, batch=batch, state=state)


class WorkerStream(IterableDataset[Outcome]):
    """Makes batches of an iterable dataset.

    Each worker first reports that it has started, and at the end that its dataset is exhausted.

    Args:
        dataset: Dataset of the user.
        collate: Function from the samples of a batch, or from one sample where torch does not make batches.
        batch_size: Number of samples per batch; None for single samples.
        drop_last: Whether a smaller last batch is left out.
        snapshot_every: Number of batches after which a worker sends its dataset's state.

    Attributes:
        newest: Stream started last in this process.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        snapshot_every: int,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.snapshot_every = snapshot_every
        self._places: Places | None = None
        self.newest: _Stream | None = None

    def __iter__(self) -> _Stream:
        """Starts to iterate over the dataset in this worker, at the position set for it."""
        worker = _worker()
        # A persistent worker is further along the next time.
        places, self._places = self._places, None
        try:
            made = _Stream(self, worker, places)
        except Exception as error:
            if worker is None:
                raise
            raise picklable_error(error, "iter(dataset)")  # noqa: B904 - its cause is set
        self.newest = made if worker is None else None
        return made

    def set_start(self, places: Places | None) -> None:
        """Sets the positions at which the next iteration's workers start; None for the beginning."""
        self._places = places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "newest": None}


class _Stream(Iterator[Outcome]):
    """Yields one worker's outcomes in one iteration."""

    def __init__(self, served: WorkerStream, worker: int | None, places: Places | None) -> None:
        self._served = served
        self._worker = worker
        self._number = worker or 0
        place = None if places is None else places.workers[self._number]
        of_dataset, of_iterator = unpack_state(None if place is None else place.state)
        if of_dataset is not None:
            served.dataset.load_state_dict(of_dataset)
        self._samples = iter(served.dataset)
        if of_iterator is not None:
            self._samples.load_state_dict(of_iterator)
        if places is not None and places.epoch_ended:
            if of_iterator is not None:
                self._samples = iter(served.dataset)
            place = None
        self._ended = place is not None and place.ended
        self._num_to_repeat = 0 if place is None else place.num_since
        self._num_since = self._num_to_repeat
        self._has_said_end = False
        is_new = place is None or place == Place()  # otherwise the loader has the state
        self._first = [Outcome(self._number, state=self.state() if is_new else None)]
        if places is not None and self._number < places.turn:  # its batch of this round is already delivered
            self._first.append(Outcome(self._number))

    def state(self) -> bytes | None:
        """Returns the packed state of dataset and iterator."""
        return pack_state(self._served.dataset, self._samples)

    def place(self) -> Place:
        """Returns the position of this process. Without a state, everything is read again."""
        state = self.state()
        return Place(state, 0 if state is not None else self._num_since, self._ended)

    def __next__(self) -> Outcome:
        if self._first:
            return self._first.pop(0)
        if self._has_said_end:
            raise StopIteration
        doing = "iterating over the dataset"
        try:
            self._repeat()
            samples, size = self._take()
            if size == 0:
                self._has_said_end = True
                return self._outcome()
            doing = "collate_fn"
            self._num_since += 1
            return self._outcome(size=size, has_batch=True, batch=self._served.collate(samples))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an error of the user's code; raised in the training loop
            self._num_since += doing != "collate_fn"  # already counted
            if self._worker is None:
                raise replace_stop_iteration(error, doing)  # noqa: B904 - its cause is set
            return self._outcome(error=wrap_worker_error(error, self._worker, doing))

    def _outcome(self, **what: Any) -> Outcome:
        state = None
        if self._worker is not None and (0 < self._served.snapshot_every <= self._num_since or self._has_said_end):
            state = self.state()
            self._num_since = 0 if state is not None else self._num_since
        return Outcome(self._number, state=state, ended=self._ended, **what)

    def _repeat(self) -> None:
        """Reads again the batches between the state and the position."""
        while self._num_to_repeat:
            self._num_to_repeat -= 1
            with contextlib.suppress(Exception):  # it was raised when it was first read
                self._take()

    def _take(self) -> tuple[Any, int]:
        """Reads the samples of the next batch; none at the end."""
        if self._ended:
            return None, 0
        size = self._served.batch_size
        try:
            if size is None:
                return next(self._samples), 1
        except StopIteration:
            self._ended = True
            return None, 0
        samples: list[Any] = []
        try:
            while len(samples) < size:
                samples.append(next(self._samples))
        except StopIteration:
            self._ended = True
        return samples, 0 if self._ended and self._served.drop_last else len(samples)


class WorkerInit:
    """Prepares a worker: shows the user's dataset in ``get_worker_info()``, then calls the user's ``worker_init_fn``.

    Args:
        then: ``worker_init_fn`` of the user, or None.

    Attributes:
        seed: Base of the workers' seeds in place of torch's; None for torch's.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then
        self.seed: int | None = None

    def __call__(self, worker_id: int) -> None:
        claim_multiprocessing_folder()  # torch passes tensors through sockets in this folder
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, WorkerDataset | WorkerStream):
            if isinstance(info.dataset, WorkerDataset):
                info.dataset.items.number = worker_id
            object.__setattr__(info, "dataset", info.dataset.dataset)  # plain assignment is refused
        if self.seed is not None:
            _seed_worker(self.seed, worker_id)
        multiprocessing.queues.Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
        if self._then is not None:
            try:
                self._then(worker_id)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - an error of the user's code; raised in the training loop
                raise picklable_error(error, "worker_init_fn")  # noqa: B904 - its cause is set


def _seed_worker(base: int, worker: int) -> None:
    """Seeds the global generators of a worker as torch does for a base seed."""
    random.seed(base + worker)
    torch.manual_seed(base + worker)
    np.random.seed(_generate_state(base, worker))  # type: ignore[no-untyped-call]
    object.__setattr__(get_worker_info(), "seed", base + worker)


_print_error = multiprocessing.queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]


def _send_error(queue: Any, error: Exception, sent: Any) -> None:
    """Sends an error in place of an outcome that cannot be pickled.

    The queue's thread calls this. By default it prints the error, and the loader would wait forever.
    """
    match sent:
        case (int() as number, data) if not (isinstance(data, Outcome) and data.error is not None):
            outcome = data if isinstance(data, Outcome) else Outcome(_worker() or 0)
            made = RuntimeError(
                f"a batch cannot be sent from a worker process ({type(error).__name__}: {error}); "
                "return tensors, arrays or other objects that can be pickled"
            )
            wrapped = wrap_worker_error(made, outcome.worker, "pickle")
            queue.put((number, outcome._replace(has_batch=False, batch=None, error=wrapped)))
        case _:
            _print_error(error, sent)
