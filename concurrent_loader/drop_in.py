"""The loader for any torch data set: torch's DataLoader, with many items in flight in each of its processes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from time import perf_counter
from types import GenericAlias
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset

from concurrent_loader.ahead_items import AheadItems
from concurrent_loader.choosing import refuse_native
from concurrent_loader.dataset_state import Places, Stateful
from concurrent_loader.drop_in_iteration import Counts, Iteration
from concurrent_loader.drop_in_parts import ItemParts, StreamParts
from concurrent_loader.drop_in_state import from_dict, inexact, to_dict
from concurrent_loader.errors import WorkerCountError
from concurrent_loader.inline_heuristic import Findings
from concurrent_loader.item_way import way_of
from concurrent_loader.loader import ConcurrentDataLoader
from concurrent_loader.order_source import DefaultRandomness, OrderSource, Start
from concurrent_loader.served import ServedItems, ServedStream
from concurrent_loader.stats import LoaderStats
from concurrent_loader.tasks_ahead import TaskSampler
from concurrent_loader.worker_places import ItemProgress, StreamProgress
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

    While the items of a map-style dataset wait, each worker process (or this one) gets those of the batch in hand and
    of the next ones at once: in threads, or on an event loop if it has ``async def getitem_async(index)``. While they
    compute, it gets them by torch's own calls, in torch's thread. Which of both is measured all the time. Everything
    else is torch's own: samplers, workers, seeds, collation, pinning, time-outs, errors. The results are the same in
    the same order, for a data set whose items depend on their index alone. An iterable data set is read as torch does.

    Args:
        dataset: Map-style or iterable. Its ``__getitem__`` is called by several threads at once while items wait.
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
        in_flight: Items under way at once in each process; 1 gets them one after the other, when torch would. Map-style
            datasets that have a state are read so, too.
        snapshot_every_n_steps: Number of batches after which a worker sends the state of an iterable dataset; what it
            has made since then is read again when the loader's state is loaded. 0: only at the beginning.

    Raises:
        ConfigurationError: An argument of the native loader, or an impossible ``in_flight``.
        ValueError: As torch's.

    Thread-safety: Use a loader from one thread. Several iterators at once work; the state is that of the newest.
    """

    __class_getitem__: Any = classmethod(GenericAlias)
    sampler: Any = None  # torch's, not the native loader's properties
    batch_sampler: Any = None

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
        snapshot_every_n_steps: int = 1,
        **native_options: Any,
    ) -> None:
        refuse_native(native_options)
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise ConfigurationError("in_flight must be a positive integer", got=in_flight)
        if (
            isinstance(snapshot_every_n_steps, bool)
            or not isinstance(snapshot_every_n_steps, int)
            or snapshot_every_n_steps < 0
        ):
            raise ConfigurationError("snapshot_every_n_steps must be an integer from 0", got=snapshot_every_n_steps)
        if isinstance(dataset, str):
            raise ConfigurationError("a URL is no data set; open it with ShardDataset(url)")
        if not (isinstance(dataset, IterableDataset) or _is_map_style(dataset)):
            raise ConfigurationError(
                "the data set must be one of this package's, or map-style, or a torch IterableDataset",
                got=type(dataset).__name__,
            )
        self.in_flight = in_flight
        self.snapshot_every_n_steps = snapshot_every_n_steps
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
        self._progress: ItemProgress | StreamProgress | None = None  # of the newest iteration while it lasts
        self._after = Start()  # where the next epoch begins, but for the generators
        self._kept: ItemParts | StreamParts | None = None  # persistent workers'
        self._default = DefaultRandomness()
        self._counts = Counts()
        self._findings: Findings | None = None  # about the items, kept from one iteration to the next

    # -- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begins an iteration, and with it the workers', as torch does.

        Where the dataset has a state, or persistent workers go on, it waits until each worker has begun.

        Raises:
            WorkerCountError: The state that was loaded has a place for each of another number of workers.
        """
        if isinstance(self.dataset, _PIPES):
            return DataLoader.__iter__(self)
        began = perf_counter()
        self._check_workers(self._start)
        start, self._start, self._after = self._start, Start(), Start()
        self._default.go_on()
        is_again = self._kept is not None
        parts = self._kept or self._make_parts()
        if self.persistent_workers:
            self._kept = parts
        source = self._source
        if start.sampler is not None and (stateful := source.stateful) is not None:
            stateful.load_state_dict(copy.deepcopy(start.sampler))
        with source.made(start.at_begin):
            at_iter = source.randomness()
            batches = parts.begin(start)
            if self._is_stream and start.at_first is not None:
                source.set_drawn(start.at_first.named)  # the workers' seeds were drawn in the program before
            at_first = source.randomness()
        now = Start(at_iter=at_iter, at_first=at_first)
        progress = parts.progress(start, batches, now=now, stated_length=self._IterableDataset_len_called)
        if start.at_begin is not None:
            progress.first_at(at_first)
        self._progress = progress

        def on_end(places: Places | None) -> None:
            if self._progress is progress:
                self._progress = None
                if self.persistent_workers:  # they go on with their generators; others begin anew
                    self._after = Start(seed=progress.seed, places=places)
                elif not self.num_workers:
                    self._after = Start(places=places)

        made = Iteration(
            self, batches, progress, counts=self._counts, began=began, with_workers=self.num_workers > 0,
            on_end=on_end, parts=parts,
        )  # fmt: skip
        if parts.is_announced and (is_again or isinstance(self.dataset, Stateful)):
            made.await_begun(max(1, self.num_workers))
        return made

    def _check_workers(self, start: Start) -> None:
        expected = len(start.places.workers) if start.places is not None else 0
        if start.places is not None and expected != max(1, self.num_workers):
            raise WorkerCountError(
                "the state has a place in the dataset for each worker; load it into a loader with as many",
                expected=expected,
                got=max(1, self.num_workers),
            )

    @property
    def _source(self) -> OrderSource:
        by = self.sampler if self.batch_sampler is None else self.batch_sampler
        return OrderSource(() if self._is_stream else by, self.generator, self._default)

    @property
    def _is_stream(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def _in_known_order(self) -> bool:
        return self.in_order or self.num_workers <= 1

    def _make_parts(self) -> ItemParts | StreamParts:
        arguments: dict[str, Any] = {
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
            "timeout": self.timeout,
            "worker_init_fn": self.worker_init_fn,
            "multiprocessing_context": self.multiprocessing_context,
            "generator": self.generator,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": self.persistent_workers,
            "pin_memory_device": self.pin_memory_device,
            "in_order": self.in_order,
        }
        if self._is_stream:
            stream = ServedStream(
                self.dataset,
                self.collate_fn,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                snapshot_every=self.snapshot_every_n_steps,
            )
            return StreamParts(stream, arguments)
        batched = self.batch_sampler is not None
        num_processes = max(1, self.num_workers)
        if self._findings is None or len(self._findings.bytes) != num_processes:
            self._findings = Findings(num_processes, is_shared=self.num_workers > 0)
        stateful = isinstance(self.dataset, Stateful)
        in_flight = 1 if stateful else self.in_flight
        items = AheadItems(self.dataset, in_flight=in_flight, batched=batched, findings=self._findings)
        tasks = TaskSampler(
            self._source,
            num_workers=self.num_workers,
            num_items_ahead=self._num_items_ahead(),
            batched=batched,
            found=self._findings.bytes,
        )
        served = ServedItems(
            items, self.collate_fn, batched=batched, stateful=stateful, numbered=not self._in_known_order
        )
        return ItemParts(served, tasks, arguments)

    def _num_items_ahead(self) -> int:
        if self.in_flight == 1 or not self._in_known_order or isinstance(self.dataset, Stateful):
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
        """Returns the position after the batch delivered last, in values that JSON keeps.

        It has the number of batches, the states of the order's random generators, and what samplers, datasets and
        iterators with a ``state_dict`` of their own say, for each worker. Data pipes have no position.
        """
        if isinstance(self.dataset, _PIPES):
            return inexact("data pipes have no positions")
        source = self._source
        if self._progress is not None:
            start = self._progress.position()
        elif self._start != Start():
            start = self._start
        else:
            start = replace(self._after, at_begin=source.randomness())
        return to_dict(start, epoch=source.epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on after the batch delivered last.

        What was delivered of a map-style dataset is not fetched again. An iterable dataset without a state is read
        again up to there.

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
        self._start, self._progress, self._after = start, None, Start()
        self._kept = None  # persistent workers have gone on elsewhere

    @property
    def _is_accelerate_prepared(self) -> bool:
        """False; Accelerate asks this before it makes a loader of torch's from this one, in silence."""
        warnings.warn(
            "accelerator.prepare() puts torch's DataLoader in the place of this loader, which gets one item after the "
            "other; to keep this one: loader = concurrent_loader.take_over(loader, accelerator)",
            stacklevel=3,
        )
        return False

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> LoaderStats:
        """Counters so far; what happens in the dataset itself is not known here."""
        return LoaderStats(**asdict(self._counts))

    def __repr__(self) -> str:
        return (
            f"DropInDataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, in_flight={self.in_flight})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_kept": None, "_findings": None, "_iterator": None}


def _is_map_style(dataset: object) -> bool:
    return hasattr(dataset, "__getitem__") or hasattr(dataset, "getitem_async")
