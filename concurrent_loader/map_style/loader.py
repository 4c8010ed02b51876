"""Loader for any torch dataset: torch's DataLoader with many items in flight in each of its processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from types import GenericAlias
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset, IterableDataset

from concurrent_loader.errors import WorkerCountError
from concurrent_loader.loader_arguments import positive
from concurrent_loader.map_style.dataset_state import Places, Stateful
from concurrent_loader.map_style.inline_heuristic import FINDING_NAMES, UNKNOWN, Findings
from concurrent_loader.map_style.item_access import MapStyle, MapStyleAsync, item_access_of
from concurrent_loader.map_style.iterator import Counts, Iteration
from concurrent_loader.map_style.lookahead_sampler import LookaheadSampler
from concurrent_loader.map_style.prefetching_dataset import PrefetchingDataset
from concurrent_loader.map_style.sampler_state import DefaultGenerator, OrderSource, ResumePoint
from concurrent_loader.map_style.state import from_dict, inexact, to_dict
from concurrent_loader.map_style.torch_loader import ItemParts, StreamParts
from concurrent_loader.map_style.worker_dataset import WorkerDataset, WorkerStream
from concurrent_loader.map_style.worker_progress import ItemProgress, StreamProgress
from concurrent_loader.metrics.shown_loader import delivered_text, loader_html
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.sizes import format_count

__all__ = ["DEFAULT_IN_FLIGHT", "DropInDataLoader"]

DEFAULT_IN_FLIGHT = 64
# Items announced ahead per item in flight, so that threads stay busy while a batch waits for its slowest item.
_AHEAD = 2
_PIPES = tuple(
    getattr(torch.utils.data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(torch.utils.data, name)
)


class DropInDataLoader(DataLoader[Any], PublicNames):
    """Loads any torch dataset like torch's DataLoader, with many items in flight; see docs/how-to/drop_in.md.

    ``ConcurrentDataLoader(dataset, …)`` makes a drop-in for any dataset that is not one of this package.

    A map-style dataset's items either wait (for a network or a drive) or compute, which is measured all the time. While
    they wait, each worker process, or this process, reads the items of the current and the next batches at once. It
    does so in threads, or on an event loop if the dataset has ``async def getitem_async(index)``. While they compute,
    they are read by torch's own calls, in torch's thread. Samplers, workers, seeds, collation, pinning, timeouts and
    errors are torch's own. For a dataset whose items depend on their index alone, the results and their order are the
    same. An iterable dataset is read as torch reads it.

    Args:
        dataset: Map-style or iterable dataset. ``__getitem__`` must be thread-safe.
        batch_size: Number of samples per batch; default 1. None: items are delivered one by one, not collated.
        shuffle: Whether each epoch has a new order; default False.
        sampler: Indices in the order of delivery. It is read ahead by ``2 * in_flight`` items per worker, rounded up
            to batches.
        batch_sampler: Lists of indices, one per batch. It is read ahead like ``sampler``.
        num_workers: Number of worker processes; default 0, this process.
        collate_fn: Function from a list of items to a batch, called in one thread; default torch's.
        pin_memory: Whether batches are put into page-locked memory; default False.
        drop_last: Whether a smaller last batch is left out; default False.
        timeout: Seconds to wait for a batch from a worker; default 0, no limit.
        worker_init_fn: Function called with the worker's number when a worker process starts.
        multiprocessing_context: Start method of the workers, or a context; default that of the program.
        generator: Random generator of the order and of the workers' seeds; default torch's global one.
        prefetch_factor: Number of batches that each worker makes ahead; default 2 with workers.
        persistent_workers: Whether workers are kept for the next epoch; default False.
        pin_memory_device: Device that memory is page-locked for; default the current accelerator.
        in_order: Whether batches arrive in the sampler's order; default True. With False and several workers, only the
            items of the current batch are read at once.
        in_flight: Number of items read at once in each process; default 64. 1 reads them one by one, when torch would.
            Map-style datasets with a ``state_dict`` are always read one by one.
        snapshot_every_n_steps: Number of batches after which a worker sends the state of an iterable dataset; default
            1. Batches made since then are read again when the loader's state is loaded. 0: only at the start.

    Raises:
        ConfigurationError: The dataset or an argument cannot work.
        ValueError: Arguments contradict each other, as with torch.

    Thread-safety: Use a loader from one thread. Several iterators at once work; the state is that of the newest one.

    Example:
        >>> from concurrent_loader import DropInDataLoader
        >>> loader = DropInDataLoader([5, 6, 7], batch_size=2)
        >>> [batch.tolist() for batch in loader]
        [[5, 6], [7]]
    """

    __class_getitem__: Any = classmethod(GenericAlias)

    def __init__(
        self,
        dataset: Dataset[Any] | MapStyle | MapStyleAsync,
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
    ) -> None:
        if (
            isinstance(snapshot_every_n_steps, bool)
            or not isinstance(snapshot_every_n_steps, int)
            or snapshot_every_n_steps < 0
        ):
            raise ConfigurationError(
                "snapshot_every_n_steps must be a non-negative integer", got=snapshot_every_n_steps
            )
        if isinstance(dataset, str):
            raise ConfigurationError("a URL is not a dataset; open it with ShardDataset(url)")
        if not (isinstance(dataset, IterableDataset) or _is_map_style(dataset)):
            raise ConfigurationError(
                "the dataset must be one of this package, map-style, or a torch IterableDataset",
                got=type(dataset).__name__,
            )
        self.in_flight = positive("in_flight", in_flight)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch reads any object with __getitem__
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
        self._start = ResumePoint()
        self._progress: ItemProgress | StreamProgress | None = None  # of the newest iteration while it runs
        self._after = ResumePoint()  # start of the next epoch, without random states
        self._kept: ItemParts | StreamParts | None = None  # of persistent workers
        self._default = DefaultGenerator()
        self._counts = Counts()
        self._findings: Findings | None = None  # about the items, kept between iterations

    # -- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Starts an iteration and its workers, as torch does.

        If the dataset has a state, or if persistent workers continue, this waits until each worker has started.

        Raises:
            WorkerCountError: The loaded state was saved with another number of workers.
        """
        if isinstance(self.dataset, _PIPES):
            return DataLoader.__iter__(self)
        began = perf_counter()
        self._check_workers(self._start)
        start, self._start, self._after = self._start, ResumePoint(), ResumePoint()
        self._default.resume()
        is_again = self._kept is not None
        parts = self._kept or self._make_parts()
        if self.persistent_workers:
            self._kept = parts
        source = self._source
        with source.restored_generators(start.at_begin):
            at_iter = source.randomness()
            batches = parts.begin(start)
            if self._is_stream and start.at_first is not None:
                source.set_generator_states(
                    start.at_first.named
                )  # the interrupted program had drawn the workers' seeds
            at_first = source.randomness()
        now = ResumePoint(at_iter=at_iter, at_first=at_first)
        progress = parts.progress(start, batches, now=now, stated_length=self._IterableDataset_len_called)
        if start.at_begin is not None:
            progress.set_first_randomness(at_first)
        self._progress = progress

        def on_end(places: Places | None) -> None:
            if self._progress is progress:
                self._progress = None
                if self.persistent_workers:  # they keep their generators; new workers seed theirs
                    self._after = ResumePoint(seed=progress.seed, places=places)
                elif not self.num_workers:
                    self._after = ResumePoint(places=places)

        made = Iteration(
            self, batches, progress, counts=self._counts, began=began, num_before=start.num_batches,
            with_workers=self.num_workers > 0,
            on_end=on_end, parts=parts,
        )  # fmt: skip
        if parts.workers_report_start and (is_again or isinstance(self.dataset, Stateful)):
            made.wait_for_workers(max(1, self.num_workers))
        return made

    def _check_workers(self, start: ResumePoint) -> None:
        expected = len(start.places.workers) if start.places is not None else 0
        if start.places is not None and expected != max(1, self.num_workers):
            raise WorkerCountError(
                "the state has one position per worker; load it into a loader with the same num_workers",
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
            stream = WorkerStream(
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
        items = PrefetchingDataset(self.dataset, in_flight=in_flight, batched=batched, findings=self._findings)
        tasks = LookaheadSampler(
            self._source,
            num_workers=self.num_workers,
            num_items_ahead=self._num_items_ahead(),
            batched=batched,
            found=self._findings.bytes,
        )
        served = WorkerDataset(
            items, self.collate_fn, batched=batched, stateful=stateful, numbered=not self._in_known_order
        )
        return ItemParts(served, tasks, arguments)

    def _num_items_ahead(self) -> int:
        if self.in_flight == 1 or not self._in_known_order or isinstance(self.dataset, Stateful):
            return 0
        access = item_access_of(self.dataset)
        by_batch = self.batch_sampler is not None and (access.batch_async or (access.batch and not access.item_async))
        return self.in_flight if by_batch else _AHEAD * self.in_flight

    # -- position --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch that `set_epoch` passed to the sampler last; 0 for a sampler without ``set_epoch``."""
        return self._source.epoch or 0

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a sampler with ``set_epoch``, such as torch's DistributedSampler."""
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last delivered batch, as values that JSON can hold.

        The position has the number of batches and the states of the order's random generators. Samplers, datasets and
        iterators with a ``state_dict`` add their own states, one per worker. Data pipes have no position.
        """
        if isinstance(self.dataset, _PIPES):
            return inexact("data pipes have no positions")
        source = self._source
        if self._progress is not None:
            start = self._progress.position()
        elif self.is_resumed:
            start = self._start
        else:
            start = replace(self._after, at_begin=source.randomness())
        return to_dict(start, epoch=source.epoch)

    @property
    def is_resumed(self) -> bool:
        """Whether the next iteration continues from a loaded state."""
        return self._start != ResumePoint()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue after the last delivered batch.

        Delivered items of a map-style dataset are not read again. An iterable dataset without a state is read again up
        to the position.

        Raises:
            LoaderStateError: The state is damaged, or belongs to another loader.
        """
        start, epoch, why_not = from_dict(state)
        if why_not is not None:
            warnings.warn(f"the epoch starts from its beginning: {why_not}", stacklevel=2)
            return
        source = self._source
        source.check(start)
        if epoch is not None:
            source.set_epoch(epoch)
        self._start, self._progress, self._after = start, None, ResumePoint()
        self._kept = None  # persistent workers are at another position

    @property
    def _is_accelerate_prepared(self) -> bool:
        """False. Accelerate reads this before it silently replaces this loader by one of torch's, so this warns."""
        warnings.warn(
            "accelerator.prepare() replaces this loader by torch's DataLoader, which reads one item after the other; "
            "to keep this loader, call loader = concurrent_loader.take_over(loader, accelerator)",
            stacklevel=3,
        )
        return False

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> LoaderStats:
        """Counters of all iterations so far. Work inside the dataset is not counted."""
        return self._counts.stats()

    def _repr_html_(self) -> str:
        """Shows the loader in a notebook."""
        return loader_html(self)

    def __repr__(self) -> str:
        return (
            f"DropInDataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, in_flight={self.in_flight})"
        )

    def __str__(self) -> str:
        """Describes the loader, and what it has delivered, in five lines."""
        batch = "single items" if self.batch_size is None else f"batches of {format_count(self.batch_size, 'item')}"
        if self._is_stream:
            order = f"{batch} of a stream"
        elif self.batch_size is None and self.batch_sampler is not None:
            order = f"batches of {type(self.batch_sampler).__name__}"
        else:
            order = f"{batch} in the order of {type(self.sampler).__name__}"
        where = format_count(self.num_workers, "worker") if self.num_workers else "this process"
        found = {FINDING_NAMES[known] for known in (self._findings.bytes if self._findings else ())}
        items = ", ".join(sorted(found)) or FINDING_NAMES[UNKNOWN]
        return "\n".join(
            (
                f"{type(self).__name__} of {type(self.dataset).__name__}",
                f"  {order}",
                f"  read in {where}, epoch {self.epoch}",
                f"  up to {format_count(self.in_flight, 'item')} in flight in each process; items: {items}",
                delivered_text(self.stats),
            )
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_kept": None, "_findings": None, "_iterator": None}


def _is_map_style(dataset: object) -> bool:
    return hasattr(dataset, "__getitem__") or hasattr(dataset, "getitem_async")
