"""The loader for any torch data set: torch's DataLoader, with many items in flight in each of its processes."""

from __future__ import annotations

import copy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from types import GenericAlias
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset

from concurrent_loader.ahead_items import AheadItems, WorkerInit
from concurrent_loader.choosing import refuse_native
from concurrent_loader.drop_in_state import from_dict, inexact, to_dict
from concurrent_loader.inline_heuristic import Findings
from concurrent_loader.item_way import way_of
from concurrent_loader.loader import ConcurrentDataLoader
from concurrent_loader.order_source import BegunOrder, OrderSource, Start
from concurrent_loader.stats import LoaderStats
from concurrent_loader.tasks_ahead import TasksAhead, TaskSampler
from concurrent_loader.torch_iterator import next_batch_of
from storage.errors import ConfigurationError

__all__ = ["DEFAULT_IN_FLIGHT", "DropInDataLoader"]

DEFAULT_IN_FLIGHT = 64
# Items named ahead for each item in flight: while a batch waits for its slowest item, the threads have something to do.
_AHEAD = 2
_PIPES = tuple(
    getattr(torch.utils.data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(torch.utils.data, name)
)


class DropInDataLoader(DataLoader[Any], ConcurrentDataLoader):  # type: ignore[misc]
    """torch's DataLoader, argument by argument, whose items are got many at once; see docs/drop_in.md.

    ``ConcurrentDataLoader(dataset, …)`` makes one of these for any data set that is not this package's.

    A map-style data set is asked, in each worker process (or in this one), for the items of the batch in hand and of
    the next ones at once: in threads, or on an event loop if it has ``async def getitem_async(index)``. Everything
    else is torch's own: samplers, workers, seeds, collation, pinning, time-outs, errors. The results are the same in
    the same order, for a data set whose items depend on their index alone. An iterable data set is read as torch does.

    Args:
        dataset: Map-style or iterable. Its ``__getitem__`` is called by several threads at once.
        batch_size: As for torch's, like all that are not described here.
        shuffle: See there.
        sampler: See there; it is read ahead by ``2 * in_flight`` items a worker, rounded up to batches.
        batch_sampler: See there, and ``sampler``.
        num_workers: See there.
        collate_fn: See there; called in one thread.
        pin_memory: See there.
        drop_last: See there.
        timeout: See there.
        worker_init_fn: See there.
        multiprocessing_context: See there.
        generator: See there.
        prefetch_factor: See there.
        persistent_workers: See there.
        pin_memory_device: See there.
        in_order: See there; with ``False`` and several workers only the batch in hand is got at once.
        in_flight: Items under way at once in each process; 1 gets them one after the other, when torch would.

    Raises:
        ConfigurationError: An argument of the native loader, or an impossible ``in_flight``.
        ValueError: As torch's.

    Thread-safety: Use a loader from one thread. Several iterators at once work; the state is that of the newest.
    """

    __class_getitem__: Any = classmethod(GenericAlias)
    sampler: Any = None  # torch's, not the native loader's property

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        in_flight: int = DEFAULT_IN_FLIGHT,
        **native_options: Any,
    ) -> None:
        refuse_native(native_options)
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise ConfigurationError("in_flight must be a positive integer", got=in_flight)
        if isinstance(dataset, str):
            raise ConfigurationError("a URL is no data set; open it with ShardDataset(url)")
        if not (isinstance(dataset, IterableDataset) or _is_map_style(dataset)):
            raise ConfigurationError(
                "the data set must be one of this package's, or map-style, or a torch IterableDataset",
                got=type(dataset).__name__,
            )
        self.in_flight = in_flight
        DataLoader.__init__(
            self,
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._start = Start()
        self._order: BegunOrder | None = None  # of the newest iteration while it lasts
        self._kept: _Parts | None = None  # persistent workers'
        self._counts = _Counts()
        self._findings: Findings | None = None  # about the items, kept from one iteration to the next

    # -- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begins an iteration, and with it the workers', as torch does."""
        if not self._by_item:
            return DataLoader.__iter__(self)
        began = perf_counter()
        parts = self._kept or self._make_parts()
        if self.persistent_workers:
            self._kept = parts
        start, self._start = self._start, Start()
        if start.sampler is not None and (stateful := self._source.stateful) is not None:
            stateful.load_state_dict(copy.deepcopy(start.sampler))
        parts.sampler.start = start
        try:
            batches = iter(parts.loader)
        finally:
            parts.sampler.start = Start()
        assert parts.sampler.newest is not None
        self._order = parts.sampler.newest.order
        return _Iteration(self, batches, parts.sampler.newest, parts.items, began=began)

    def _ended(self, order: BegunOrder) -> None:
        if self._order is order:
            self._order = None

    @property
    def _by_item(self) -> bool:
        """Whether the data set is asked by index; data pipes, which torch treats specially, are left to torch."""
        return not isinstance(self.dataset, (IterableDataset, *_PIPES))

    @property
    def _source(self) -> OrderSource:
        by = self.sampler if self.batch_sampler is None else self.batch_sampler
        return OrderSource(by, self.generator)

    @property
    def _in_known_order(self) -> bool:
        return self.in_order or self.num_workers <= 1

    def _make_parts(self) -> _Parts:
        batched = self.batch_sampler is not None
        num_processes = max(1, self.num_workers)
        if self._findings is None or len(self._findings.bytes) != num_processes:
            self._findings = Findings(num_processes, is_shared=self.num_workers > 0)
        items = AheadItems(self.dataset, in_flight=self.in_flight, batched=batched, findings=self._findings)
        sampler = TaskSampler(
            self._source,
            num_workers=self.num_workers,
            num_items_ahead=self._num_items_ahead(),
            batched=batched,
            found=self._findings.bytes,
        )
        loader: DataLoader[Any] = DataLoader(
            items,
            **({"batch_sampler": sampler} if batched else {"batch_size": None, "sampler": sampler}),
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=WorkerInit(self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            pin_memory_device=self.pin_memory_device,
            in_order=self.in_order,
        )
        return _Parts(loader, sampler, items)

    def _num_items_ahead(self) -> int:
        if self.in_flight == 1 or not self._in_known_order:
            return 0
        way = way_of(self.dataset)
        by_batch = self.batch_sampler is not None and (way.batch_async or (way.batch and not way.item_async))
        return self.in_flight if by_batch else _AHEAD * self.in_flight

    # -- position --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """What the sampler was told last by `set_epoch`; 0 for one that cannot be told."""
        return self._source.epoch or 0

    def set_epoch(self, epoch: int) -> None:
        """Tells the sampler, if it wants to know; torch's DistributedSampler does."""
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch delivered last: a count, and the states of the order's random generators.

        It can be loaded where the order can be found again: not for an iterable data set, nor with ``in_order=False``
        and several workers; `load_state_dict` tells.
        """
        if not self._by_item:
            return inexact("an iterable data set has no positions")
        if not self._in_known_order:
            return inexact("with in_order=False batches have no order")
        source = self._source
        if self._order is not None:
            start = self._order.position()
        else:
            start = self._start if self._start.at_iter else Start(at_iter=source.randomness(default=False))
        return to_dict(start, epoch=source.epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on after the batch delivered last; what was delivered is not fetched again.

        Raises:
            LoaderStateError: The state is damaged or another loader's.
        """
        start, epoch, why_not = from_dict(state)
        if why_not is not None:
            warnings.warn(f"the epoch begins anew: {why_not}", stacklevel=2)
            return
        source = self._source
        source.check(start)
        if epoch is not None:
            source.set_epoch(epoch)
        self._start, self._order = start, None

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> LoaderStats:
        """Counters so far, of map-style data sets; what happens in the data set itself is not known here."""
        return LoaderStats(**asdict(self._counts))

    def __repr__(self) -> str:
        return (
            f"DropInDataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, in_flight={self.in_flight})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None, "_kept": None, "_findings": None, "_iterator": None}


def _is_map_style(dataset: object) -> bool:
    return hasattr(dataset, "__getitem__") or hasattr(dataset, "getitem_async")


@dataclass(frozen=True, slots=True)
class _Parts:
    """A torch loader that passes tasks instead of indices."""

    loader: DataLoader[Any]
    sampler: TaskSampler
    items: AheadItems


class _Iteration(Iterator[Any]):
    """One iteration; threads and workers end with it, or with its last batch.

    After an exception it can be asked for the next batch, as torch's can.
    """

    def __init__(
        self, loader: DropInDataLoader, batches: Iterator[Any], tasks: TasksAhead, items: AheadItems, *, began: float
    ) -> None:
        self._loader = loader
        self._next_batch = next_batch_of(batches)
        self._counts = loader._counts
        self._tasks = tasks
        self._items = items
        self._began = began
        self._given: float | None = None  # when the newest batch was given away

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        asked = perf_counter()
        try:
            batch = self._next_batch()
        except StopIteration as end:
            self._loader._ended(self._tasks.order)
            self._items.close()
            self._clear_frames(end)
            raise
        except BaseException as error:
            if not (isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")):
                self._tasks.failed()
            self._items.rest()  # the traceback keeps this object alive; threads it need not keep
            self._clear_frames(error)
            raise
        now, counts = perf_counter(), self._counts
        if self._given is None:
            counts.first_batch_s = now - self._began
            self._given = asked
        counts.wait_s += now - asked
        counts.total_s += now - self._given
        counts.num_batches += 1
        counts.num_samples += self._tasks.delivered()
        self._given = now
        return batch

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._tasks.put_back()

    def _clear_frames(self, error: BaseException) -> None:
        """Frees workers of an error that came from one.

        torch raises such an error from a frame that refers to it: a cycle, which would keep the workers until it is
        collected, and then for some seconds more, as their queues may be collected before them.
        """
        if self._loader.num_workers:
            traceback.clear_frames(error.__traceback__)


@dataclass(slots=True)
class _Counts:
    """What `LoaderStats` shows, of all iterations."""

    num_batches: int = 0
    num_samples: int = 0
    first_batch_s: float = 0.0
    wait_s: float = 0.0
    total_s: float = 0.0
