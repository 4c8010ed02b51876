"""What a worker of the drop-in loader serves in the place of a dataset: outcomes, each one batch or one error.

torch's loader sees a dataset whose "samples" are outcomes, and does not batch them. So the worker itself collates,
turns errors into what arrives in any case, and adds the state of the dataset.
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

from concurrent_loader.ahead_items import AheadItems
from concurrent_loader.dataset_state import Place, Places, pack_state, unpack_state
from concurrent_loader.multiprocessing_folder import own_multiprocessing_folder
from concurrent_loader.worker_errors import caught_in_worker, no_stop_iteration, presentable

__all__ = ["Begin", "Outcome", "ServedItems", "ServedStream", "WorkerInit", "as_it_is"]


class Outcome(NamedTuple):
    """What a worker sends.

    Attributes:
        worker: Number of the worker; 0 in the loader's own process.
        number: Number of the task; None from a stream.
        size: Number of samples.
        has_batch: Whether there is a batch: a worker also says that it has begun, and that it has ended.
        batch: Collated batch.
        error: Exception in the batch's place; only from a worker process, elsewhere it is raised.
        state: Packed state of the dataset afterwards; None where it is not kept.
        ended: Whether the dataset has come to its end.
    """

    worker: int
    number: int | None = None
    size: int = 0
    has_batch: bool = False
    batch: Any = None
    error: ExceptionWrapper | None = None
    state: bytes | None = None
    ended: bool = False


class Begin(NamedTuple):
    """The first task of a worker whose dataset has a state.

    Attributes:
        state: Packed state to begin with; None for the state that the dataset has.
    """

    state: bytes | None = None


def as_it_is(outcome: Any) -> Any:
    """Returns its argument: torch's loader is not to collate outcomes."""
    return outcome


def _worker() -> int | None:
    info = get_worker_info()
    return None if info is None else int(info.id)


class ServedItems(Dataset[Outcome]):
    """Serves batches of a map-style dataset, task by task.

    Args:
        items: Where items come from.
        collate: Called with the items of a batch, or with one item where torch does not make batches.
        batched: Whether tasks are batches.
        stateful: Whether the dataset has a state, which then goes along with each batch.
        numbered: Whether batches come with the numbers of their tasks. Otherwise, and without a state, a batch is
            served as it is, since an outcome around it takes a microsecond.
    """

    def __init__(
        self, items: AheadItems, collate: Callable[[Any], Any], *, batched: bool, stateful: bool, numbered: bool
    ) -> None:
        self.items = items
        self.dataset = items.dataset
        self._collate = collate
        self._batched = batched
        self.stateful = stateful
        self._is_plain = not (stateful or numbered)

    def place(self) -> Place:
        """Returns how far the dataset of this process has come."""
        return Place(pack_state(self.dataset))

    def __getitem__(self, task: Any) -> Any:
        """Does one task; None is no task. Returns an outcome, or the plain batch."""
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
            if isinstance(task, Begin):
                if task.state is not None:
                    self.dataset.load_state_dict(unpack_state(task.state)[0])
                return Outcome(number, state=pack_state(self.dataset))
            items = self.items.__getitems__(task) if self._batched else self.items[task]
            doing = "collate_fn"
            batch = self._collate(items)
            state = pack_state(self.dataset) if self.stateful and worker is not None else None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the user's; raised in the training loop
            if (worker := _worker()) is None:
                raise no_stop_iteration(error, doing)  # noqa: B904 - it has its cause
            return Outcome(worker, getattr(task, "number", None), error=caught_in_worker(error, worker, doing))
        return Outcome(number, task.number, has_batch=True, batch=batch, state=state)


class ServedStream(IterableDataset[Outcome]):
    """Serves batches of an iterable dataset.

    Each worker first says that it has begun, and at last that its dataset has come to its end.

    Args:
        dataset: The user's.
        collate: Called with the samples of a batch, or with one sample where torch does not make batches.
        batch_size: Number of samples in a batch; None for single samples.
        drop_last: Whether a last smaller batch is left out.
        snapshot_every: Number of batches after which a worker sends its dataset's state.

    Attributes:
        newest: The stream begun last in this process.
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
        """Begins to iterate over the dataset, in this worker, where the last iteration was left."""
        worker = _worker()
        # A worker that is kept has come further the next time.
        places, self._places = self._places, None
        try:
            made = _Stream(self, worker, places)
        except Exception as error:
            if worker is None:
                raise
            raise presentable(error, "iter(dataset)")  # noqa: B904 - it has its cause
        self.newest = made if worker is None else None
        return made

    def begin_at(self, places: Places | None) -> None:
        """Sets where the workers of the next iteration begin; None for the beginning."""
        self._places = places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "newest": None}


class _Stream(Iterator[Outcome]):
    """One worker's outcomes in one iteration."""

    def __init__(self, served: ServedStream, worker: int | None, places: Places | None) -> None:
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
        is_new = place is None or place == Place()  # else the loader has the state
        self._first = [Outcome(self._number, state=self.state() if is_new else None)]
        if places is not None and self._number < places.turn:  # its batch of this round was delivered
            self._first.append(Outcome(self._number))

    def state(self) -> bytes | None:
        """Returns the packed state of dataset and iterator."""
        return pack_state(self._served.dataset, self._samples)

    def place(self) -> Place:
        """Returns how far this process has come; where there is no state, everything is repeated."""
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
        except BaseException as error:  # noqa: BLE001 - the user's; raised in the training loop
            self._num_since += doing != "collate_fn"  # counted already
            if self._worker is None:
                raise no_stop_iteration(error, doing)  # noqa: B904 - it has its cause
            return self._outcome(error=caught_in_worker(error, self._worker, doing))

    def _outcome(self, **what: Any) -> Outcome:
        state = None
        if self._worker is not None and (0 < self._served.snapshot_every <= self._num_since or self._has_said_end):
            state = self.state()
            self._num_since = 0 if state is not None else self._num_since
        return Outcome(self._number, state=state, ended=self._ended, **what)

    def _repeat(self) -> None:
        """Takes again what was taken between the state and the place."""
        while self._num_to_repeat:
            self._num_to_repeat -= 1
            with contextlib.suppress(Exception):  # it was raised the first time
                self._take()

    def _take(self) -> tuple[Any, int]:
        """Takes the samples of the next batch; none at the end."""
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
    """Runs first in each worker: lets ``get_worker_info().dataset`` be the user's dataset, then calls the user's.

    Args:
        then: ``worker_init_fn`` of the user.

    Attributes:
        seed: Base of the workers' seeds in the place of torch's; None for torch's.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then
        self.seed: int | None = None

    def __call__(self, worker_id: int) -> None:
        own_multiprocessing_folder()  # torch hands tensors over through sockets in it
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, ServedItems | ServedStream):
            if isinstance(info.dataset, ServedItems):
                info.dataset.items.number = worker_id
            object.__setattr__(info, "dataset", info.dataset.dataset)  # it refuses the plain way
        if self.seed is not None:
            _seed_worker(self.seed, worker_id)
        multiprocessing.queues.Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
        if self._then is not None:
            try:
                self._then(worker_id)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - the user's; raised in the training loop
                raise presentable(error, "worker_init_fn")  # noqa: B904 - it has its cause


def _seed_worker(base: int, worker: int) -> None:
    """Seeds the global generators of a worker as torch does for this base."""
    random.seed(base + worker)
    torch.manual_seed(base + worker)
    np.random.seed(_generate_state(base, worker))  # type: ignore[no-untyped-call]
    object.__setattr__(get_worker_info(), "seed", base + worker)


_print_error = multiprocessing.queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]


def _send_error(queue: Any, error: Exception, sent: Any) -> None:
    """Sends an error in the place of an outcome that cannot be pickled.

    The thread of a queue calls this. Otherwise it would print the error, and the loader would wait for ever.
    """
    match sent:
        case (int() as number, data) if not (isinstance(data, Outcome) and data.error is not None):
            outcome = data if isinstance(data, Outcome) else Outcome(_worker() or 0)
            made = RuntimeError(
                f"a batch cannot be sent from a worker process ({type(error).__name__}: {error}); "
                "return tensors, arrays or other objects that can be pickled"
            )
            wrapped = caught_in_worker(made, outcome.worker, "pickle")
            queue.put((number, outcome._replace(has_batch=False, batch=None, error=wrapped)))
        case _:
            _print_error(error, sent)
