"""The loader: an iterable of batches, from a bucket, at the pace of a local drive."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from concurrent_loader.augment import Crop
from concurrent_loader.batch import Batch
from concurrent_loader.broken import OnError
from concurrent_loader.choosing import MISSING, choose_class, has_native_loader, not_native
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Decoder
from concurrent_loader.decode_argument import warn_of_companions
from concurrent_loader.device import check_pinning, device_codecs, has_stage, resolve_device
from concurrent_loader.device_batches import DeviceBatches
from concurrent_loader.epoch_batches import EpochBatches, Iteration, ThreadedBatches
from concurrent_loader.epoch_setter import EpochSetter
from concurrent_loader.errors import LoaderError, LoaderTimeout
from concurrent_loader.grouping import say_if_ranks_share_shards
from concurrent_loader.loader_iterator import LoaderIterator
from concurrent_loader.patience import Patience, describe
from concurrent_loader.pipeline import END, STOP_S, Failure
from concurrent_loader.plan import DEFAULT_GROUPS, DEFAULT_SHUFFLE_WINDOW, LastBatch, PlanOptions, PlanState
from concurrent_loader.recipe import make_recipe
from concurrent_loader.signatures import LoaderArguments, joint_signature
from concurrent_loader.source import LoadableDataset, Plan
from concurrent_loader.stats import LoaderStats, StageClock, WallTime
from concurrent_loader.tolerance import ErrorPolicy, Tolerance
from concurrent_loader.transforms import transform_batch
from concurrent_loader.waiting import always
from concurrent_loader.worker_job import Job
from concurrent_loader.worker_processes import WorkerProcesses, check_worker_arguments
from storage.cache import CacheStats
from storage.errors import ConfigurationError, StorageError
from storage.fetch import FetchStats
from storage.secrets import shortened
from storage.sizes import Size, parse_size

__all__ = ["ConcurrentDataLoader"]

_HUNG_S = 1.0  # after a time-out: what has hung for so long is not waited for again


class ConcurrentDataLoader(LoaderArguments):
    """Iterates over a data set in batches, epoch after epoch.

    Shards are fetched with many requests in flight on the data set's event loop, kept in its cache, read, verified,
    decoded and transformed by threads, and delivered in an order that is a pure function of the data set, the seed,
    the epoch and the global batch size: not of ranks, threads, timing or cache.

    Args:
        dataset: What to load: a `ShardDataset` or an `ObjectDataset`, a view of one, or a `Mixture`.
        batch_size: Samples a batch and rank. The global batch has ``batch_size * world_size``.
        shuffle: A new order each epoch; otherwise the order of writing.
        seed: Of the order.
        decode: Image column → ``"rgb"``, ``"gray"``, ``"unchanged"``, a `RandomResizedCrop` or `CenterCrop` (one size,
            (N, 3, H, W) uint8; the fastest way, see docs/decoding.md), an `Augment` that begins with one of them (see
            docs/augmentation.md), or a callable (bytes → tensor). Columns that are not named stay encoded: lists of
            bytes.
        decoder: The library that decodes: ``"torchcodec"``, ``"torchvision"``, ``"simplejpeg"``, ``"pillow"``; by
            default the best one that is installed. Crops of JPEGs take the native module in any case, where it was
            built.
        max_pixels: A larger picture is refused before memory is allocated for it.
        on_error: What becomes of a sample whose picture cannot be decoded: ``"raise"``, ``"skip"`` (its batch is
            shorter) or ``"replace"`` (the nearest sound sample of its batch stands in). Of nothing else: bytes that do
            not arrive and transforms that fail are raised. See docs/decoding.md.
        max_errors: How many samples of an epoch may be skipped or replaced, as a number or, as a float, a share of this
            rank's; with one more, `TooManyDecodeErrors` is raised.
        transform: Called with each sample (a dict of this data set's columns; images (C, H, W) uint8), in a thread;
            what it returns is collated.
        collate_fn: Called with the list of a batch's samples instead of `collate`; the batch is what it returns.
        batch_transform: Called with each batch, last of all: `MixUp`, `CutMix`, or a function of yours. It gets batches
            on the CPU where they are made, in a thread or worker process; those for a device when they are there.
        drop_last: Leave out the last batch where it would be smaller; short for ``last_batch="drop"``.
        last_batch: ``"short"`` (the default), ``"drop"``, or ``"pad"`` with the epoch's first samples. With each,
            all ranks have the same number of steps; see docs/training.md.
        device: Batches are made there: on ``"cuda"`` or ``"cuda:1"`` by the device stage, which also decodes there what
            ``decode`` names (see docs/device.md). ``"cpu"`` and None leave them on the CPU, and touch no GPU.
        pin_memory: Put batches into page-locked memory; the default when ``device`` is a CUDA device.
        rank: Of this process; torch.distributed's when it is initialised, else 0.
        world_size: Number of processes that share each epoch; torch.distributed's when it is initialised, else 1.
        groups: Into how many parts an epoch's shards are divided, each for some of the ranks; 8 by default when
            shuffling, else 1. The order depends on it, so keep it when the number of nodes changes. A multiple of the
            number of nodes is best; with more of them than the default has groups, a warning says so.
        shuffle_window: How far a sample may move from its shard's place, as a size or a number of samples. It bounds
            what must be at hand at once.
        num_threads: For reading, decoding and transforming; the number of usable cores by default. With workers: of
            all of them together, one each by default.
        prefetch_batches: Batches made ahead of the consumer, by all workers together.
        prefetch_bytes: Shards fetched ahead of their first use, by all workers together.
        num_workers: Processes that make the batches, for transforms in pure Python; 0, the default, is threads in this
            process. The batches and their order are the same. See docs/workers.md for these four.
        worker_init_fn: Called with the worker's number in each worker process when it begins.
        multiprocessing_context: How workers are started: ``"forkserver"`` (the default), ``"spawn"``, or a context.
        persistent_workers: Keep the workers for the next epoch.
        timeout: Seconds to wait for one batch; after that `LoaderTimeout` says on what it waited. 0 or None: for ever.
        slow_batch_warning_s: After so many seconds of waiting for one batch, one warning in the log says on what. None:
            never.

    Raises:
        ConfigurationError: An argument that cannot work, before anything is fetched.

    Iterating raises what went wrong, with sample and stage named: `storage.errors.StorageError` or
    `concurrent_loader.errors.LoaderError`. A ``break`` or an exception in the loop's body leaves no thread or task
    behind.

    Thread-safety: Use a loader from one thread. Several iterators at once work and do not disturb each other; the
    state is that of the newest.
    """

    __class_getitem__: Any = classmethod(GenericAlias)  # as torch's loader may be written in annotations

    def _set_up(
        self,
        dataset: LoadableDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        decode: Mapping[str, str | Decoder | Crop] | None = None,
        decoder: Backend = "auto",
        max_pixels: int = DEFAULT_MAX_PIXELS,
        on_error: OnError = "raise",
        max_errors: float = 0.01,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        last_batch: LastBatch | None = None,
        device: str | torch.device | None = None,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        groups: int | None = None,
        shuffle_window: Size = DEFAULT_SHUFFLE_WINDOW,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        prefetch_bytes: Size = "128MiB",
        num_workers: int = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        persistent_workers: bool = False,
        timeout: float | None = 600.0,
        slow_batch_warning_s: float | None = 10.0,
    ) -> None:
        if not has_native_loader(dataset):
            raise not_native(type(self), dataset)
        self.dataset = dataset
        self.batch_size = _positive("batch_size", batch_size)
        self.rank, self.world_size = _place(rank, world_size)
        self._place_is_given = rank is not None
        self.device = resolve_device(device)
        if pin_memory:
            check_pinning(self.device)
        self._pin_memory = pin_memory if pin_memory is not None else self._on_cuda
        check_worker_arguments(num_workers, multiprocessing_context, persistent_workers)
        usual_threads, usual_batches = (num_workers, 2 * num_workers) if num_workers else (_num_cores(), None)
        self._num_threads = _positive("num_threads", usual_threads if num_threads is None else num_threads)
        self._prefetch_batches = _positive(
            "prefetch_batches",
            (usual_batches or self._num_threads + 2) if prefetch_batches is None else prefetch_batches,
        )
        self._prefetch_bytes = parse_size(prefetch_bytes, name="prefetch_bytes")
        if drop_last and last_batch not in (None, "drop"):
            raise ConfigurationError("drop_last contradicts last_batch", got=last_batch)
        self._seed = seed
        self._plan_options = PlanOptions(
            seed=seed,
            global_batch_size=self.batch_size * self.world_size,
            groups=groups if groups is not None else DEFAULT_GROUPS if shuffle else 1,
            shuffle=bool(shuffle),
            shuffle_window=shuffle_window,
            last_batch="drop" if drop_last else last_batch or "short",
        )
        self._clock = StageClock()
        on_cpu = self.device is None or self.device.type == "cpu"
        self._batch_transform = None if on_cpu else batch_transform
        self._tolerance = Tolerance(ErrorPolicy(on_error, max_errors))
        decoding = {"backend": decoder, "max_pixels": _positive("max_pixels", max_pixels)}
        codecs = device_codecs(self.device)
        self._recipe = make_recipe(
            dataset,
            decode={} if decode is None else decode,
            seed=seed,
            transform=transform,
            collate_fn=collate_fn,
            batch_transform=batch_transform if on_cpu else None,
            clock=self._clock,
            device_codecs=codecs,
            on_error=on_error,
            decoding=decoding,
        )
        self._epoch, self._step, self._started = 0, 0, False
        self._num_batches = self._num_samples = 0
        self._first_batch_s = 0.0
        self._newest: object = None
        plan = self._plan(0)  # complains now about what cannot work
        warn_of_companions(dataset, decode or {})
        if self._plan_options.last_batch == "drop" and not plan.num_steps(self.rank, self.world_size):
            warnings.warn(
                f"drop_last leaves no batch at all: the dataset has fewer samples than the global batch size, "
                f"{self._plan_options.global_batch_size}. Pass a smaller batch_size, or last_batch='short' or 'pad'",
                stacklevel=2,
            )
        if groups is None:
            say_if_ranks_share_shards(dataset, plan, rank=self.rank, world_size=self.world_size)
        self._workers: WorkerProcesses | None = None
        if num_workers:
            job = Job(
                dataset=dataset,
                plan=self._plan_options,
                decode=decode or {},
                transform=transform,
                collate_fn=collate_fn,
                batch_transform=batch_transform if on_cpu else None,
                worker_init_fn=worker_init_fn,
                seed=seed,
                rank=self.rank,
                world_size=self.world_size,
                num_workers=num_workers,
                num_threads=max(1, self._num_threads // num_workers),
                prefetch_batches=self._prefetch_batches,
                prefetch_bytes=self._prefetch_bytes,
                device_codecs=codecs,
                on_error=on_error,
                decoding=decoding,
            )
            self._workers = WorkerProcesses(
                job, context=multiprocessing_context, persistent=persistent_workers, clock=self._clock
            )
        workers = self._workers  # and not self: the loader goes when nobody has it, without the garbage collector
        self._patience = Patience(
            warn_s=slow_batch_warning_s,
            timeout_s=timeout,
            clock=self._clock.now,
            facts=lambda: describe(*_fetched(dataset, workers)),
        )

    if not TYPE_CHECKING:  # type checkers see the two constructors of `LoaderArguments`

        def __new__(cls, dataset=MISSING, *args, **kwargs):
            """Chooses a `DropInDataLoader` for other datasets, and where the dataset is asked item by item."""
            return object.__new__(choose_class(cls, ConcurrentDataLoader, dataset, args, kwargs))

        __init__ = _set_up
        __init__.__name__, __init__.__qualname__ = "__init__", "ConcurrentDataLoader.__init__"

    # -- iteration -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches that this rank gets in a whole epoch."""
        return self._plan(self._epoch).num_steps(self.rank, self.world_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the rest of an epoch.

        The first iteration after `set_epoch` or `load_state_dict` is of the epoch named there, from the step restored;
        every further one is of the next epoch. An iteration begins with its first batch: frameworks that ask for an
        iterator only to see whether there is one do not use up an epoch.

        Raises:
            ConfigurationError: torch.distributed has been initialised after the loader was built.
        """
        if not self._place_is_given and torch.distributed.is_available() and torch.distributed.is_initialized():
            _check_place((self.rank, self.world_size), _place(None, None))
        return LoaderIterator(self._iterate(), self._workers)

    def _iterate(self) -> Generator[Any, None, None]:
        if self._started:
            self._epoch, self._step = self._epoch + 1, 0
        self._started = True
        epoch, start_step = self._epoch, self._step
        me = self._newest = object()
        wall = WallTime(self._clock)
        began = self._clock.now()
        batches = self._batches(epoch, start_step)
        iteration = Iteration(batches)
        step, patience_s = start_step, STOP_S
        try:
            batches.start()
            while True:
                try:
                    item = self._patience.take(batches, name=f"batch {step} of epoch {epoch}")
                except LoaderTimeout as error:
                    wall.spend_waiting(always(error.stage or "other"))
                    patience_s = _HUNG_S
                    raise
                except BaseException:
                    wall.spend_waiting(())
                    raise
                wall.spend_waiting(batches.trail)
                if item is END:
                    break
                if isinstance(item, Failure):
                    is_ours = isinstance(item.error, StorageError | LoaderError)  # a defect keeps its traceback
                    raise shortened(item.error) if is_ours else item.error
                if step == start_step:
                    self._first_batch_s = self._clock.now() - began
                given = transform_batch(self._batch_transform, self._to_device(item))
                wall.spend("device")
                step += 1  # what failed has not been delivered: the state stays before it, as where a worker fails
                if self._newest is me:
                    self._step = step
                self._num_batches += 1
                self._num_samples += _num_samples(item)
                iteration.consumed()
                try:
                    yield given
                finally:
                    wall.spend("consumer")
            if self._newest is me:
                self._epoch, self._step, self._started = epoch + 1, 0, False
        finally:
            iteration.end(patience_s)

    def _batches(self, epoch: int, start_step: int) -> EpochBatches:
        made = self._host_batches(epoch, start_step)
        if self.device is not None and has_stage(self.device):
            made = DeviceBatches(
                made, self.device, pinned=self._pin_memory, clock=self._clock, on_error=self._tolerance.policy.on_error
            )
        num_samples = self.batch_size * self._plan(epoch).num_steps(self.rank, self.world_size)
        return self._tolerance.watch(made, num_samples)

    def _host_batches(self, epoch: int, start_step: int) -> EpochBatches:
        if self._workers is not None:
            return self._workers.batches(epoch, start_step)
        return ThreadedBatches(
            self.dataset.loop,
            source=self.dataset.source,
            plan=self._plan(epoch),
            recipe=self._recipe,
            start_step=start_step,
            rank=self.rank,
            world_size=self.world_size,
            num_threads=self._num_threads,
            prefetch_batches=self._prefetch_batches,
            prefetch_bytes=self._prefetch_bytes,
        )

    def _to_device(self, batch: Any) -> Any:
        if not isinstance(batch, Batch) or (self.device is not None and has_stage(self.device)):
            return batch  # or it is there
        if self._pin_memory:
            batch = batch.pin_memory()
        return batch if self.device is None else batch.to(self.device, non_blocking=self._pin_memory)

    # -- position --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated over, or that the next iteration is of."""
        return self._epoch

    @property
    def sampler(self) -> EpochSetter:
        """Sampler that passes ``set_epoch`` on to the loader: scripts and frameworks call it there."""
        return EpochSetter(self)

    @property
    def batch_sampler(self) -> None:
        """None, as in a torch loader without one: the order is the loader's own."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration one of this epoch, from its start, or from the step that was restored for it."""
        if epoch < 0:
            raise ConfigurationError("an epoch is a number from 0", got=epoch)
        if self._started or epoch != self._epoch:
            self._step = 0
        self._epoch, self._started = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """A few integers that name the position after the batch delivered last; the same on every rank."""
        return PlanState.of(self._plan(self._epoch), step=self._step).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where a state was taken; costs no replay.

        It delivers the rest of that epoch, which is nothing where the state was taken after the epoch's last batch.
        The number of ranks and threads, caches and batch sizes a rank may differ; what the order depends on may not.

        Raises:
            LoaderStateError: The state is of another data set, seed, global batch size, window or grouping.
        """
        restored = PlanState.from_dict(dict(state))
        plan = self._plan(restored.epoch)
        restored.check(plan)
        self._epoch, self._step, self._started = restored.epoch, restored.step, False

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> LoaderStats:
        """Counters so far."""
        clock = self._clock
        fetch, cache = _fetched(self.dataset, self._workers)
        return LoaderStats(
            num_batches=self._num_batches,
            num_samples=self._num_samples,
            num_skipped=self._tolerance.num_broken if self._tolerance.policy.on_error == "skip" else 0,
            num_replaced=self._tolerance.num_broken if self._tolerance.policy.on_error == "replace" else 0,
            first_batch_s=self._first_batch_s,
            **clock.wall(),
            read_s=clock["read"],
            decode_s=clock["decode"],
            transform_s=clock["transform"],
            collate_s=clock["collate"],
            fill_s=clock["fill"],
            device_decode_s=clock["device decode"],
            device_augment_s=clock["device augment"],
            num_device_decoded=int(clock["pictures decoded by the device"]),
            num_cpu_decoded=int(clock["pictures decoded by the CPU"]),
            device_bytes=int(clock["device bytes"]),
            fetch=fetch,
            cache=cache,
        )

    def __repr__(self) -> str:
        return (
            f"ConcurrentDataLoader({self.dataset!r}, batch_size={self.batch_size}, rank={self.rank}/{self.world_size})"
        )

    @property
    def _on_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def _plan(self, epoch: int) -> Plan:
        return self.dataset.plan(self._plan_options, epoch)


ConcurrentDataLoader.__signature__ = joint_signature()  # type: ignore[attr-defined]


def _fetched(dataset: LoadableDataset, workers: WorkerProcesses | None) -> tuple[FetchStats, CacheStats]:
    """What all processes of a loader have fetched and found."""
    fetch, cache = dataset.fetch_stats, dataset.cache_stats
    return (fetch, cache) if workers is None else (workers.reports.fetch(fetch), workers.reports.cache(cache))


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Says which of how many processes this is."""
    if (rank is None) != (world_size is None):
        raise ConfigurationError("give rank and world_size, or neither", got=(rank, world_size))
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise ConfigurationError("rank must lie in 0 … world_size - 1", got=(rank, world_size))
    return rank, world_size


def _check_place(built: tuple[int, int], now: tuple[int, int]) -> None:
    """Makes sure that no rank reads what is meant for another."""
    if built != now:
        raise ConfigurationError(
            "the loader was built before torch.distributed was initialised, for one process alone; build it after, "
            "or give it rank and world_size",
            expected=f"rank {now[0]} of {now[1]}", got=f"rank {built[0]} of {built[1]}",
        )  # fmt: skip


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a positive integer", got=value)
    return value


def _num_samples(item: Any) -> int:
    return len(item.sample_ids) - item.num_padded if isinstance(item, Batch) else 0
