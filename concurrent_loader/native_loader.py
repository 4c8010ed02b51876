"""Loader for datasets of this package: arguments, iteration, position, counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import Any

import torch

from concurrent_loader.augment import Crop, Linked
from concurrent_loader.batch.batch import Batch, as_tuple
from concurrent_loader.batch.decode_failures import OnError
from concurrent_loader.batch.ragged import RaggedOption
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Decoder
from concurrent_loader.device import check_pinning, device_codecs, has_stage, resolve_device
from concurrent_loader.epoch_setter import EpochSetter
from concurrent_loader.errors import LoaderTimeout
from concurrent_loader.loader_arguments import (
    Batching,
    check_batching,
    check_native_dataset,
    last_batch_policy,
    num_threads_and_batches,
    positive,
    warn_if_empty,
)
from concurrent_loader.loader_iterator import LoaderIterator, num_samples, receive_batches
from concurrent_loader.media import PartOf
from concurrent_loader.metrics.live_server import track, untrack
from concurrent_loader.metrics.running import Place
from concurrent_loader.metrics.shown_loader import Resources, ShownLoader
from concurrent_loader.order.options import DEFAULT_SHUFFLE_WINDOW, LastBatch, PlanOptions, default_groups
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.protocol import Plan
from concurrent_loader.order.sampling import Sampling
from concurrent_loader.order.state import PlanState
from concurrent_loader.pipeline.batch_iterator import STOP_S, EpochBatches, Iteration
from concurrent_loader.pipeline.batch_timeout import BatchTimeout, describe
from concurrent_loader.pipeline.decode_argument import check_as_tuple, warn_of_companions
from concurrent_loader.pipeline.device_batches import DeviceBatches
from concurrent_loader.pipeline.error_limit import ErrorLimit, ErrorPolicy
from concurrent_loader.pipeline.pipeline import PipelineConfig
from concurrent_loader.pipeline.sample_processing import ProcessingOptions, make_sample_processing, transform_batch
from concurrent_loader.pipeline.threaded_batches import ThreadedBatches
from concurrent_loader.ranks import check_rank, rank_of_process, warn_if_ranks_share_shards
from concurrent_loader.recorder import FlightRecorder, start_record
from concurrent_loader.stats.loader_stats import LoaderStats, StageClock, WallTime
from concurrent_loader.stats.trace import Traceable
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.whatif.recorder import Recordable
from concurrent_loader.workers.job import Job
from concurrent_loader.workers.workers import WorkerProcesses, check_worker_arguments, fetched

__all__ = ["NativeDataLoader"]

_HUNG_S = 1.0  # after a timeout, a hung call gets this long to return


class NativeDataLoader(Recordable, Traceable, ShownLoader):
    """Loads a dataset of this package in batches, epoch after epoch.

    Shards are fetched with many requests in flight and kept in the dataset's cache. Threads read, verify, decode and
    transform the samples. The order is a pure function of the dataset, the seed, the epoch and the global batch size.
    It does not depend on ranks, threads, timing or the cache.

    Args:
        dataset: `ShardDataset` or `ObjectDataset`, a view of one, or a `Mixture`.
        batch_size: Number of samples per batch on each rank; default 1. The global batch has
            ``batch_size * world_size``.
        shuffle: Whether each epoch has a new order; default False, the order of writing.
        seed: Seed of the order and of random augmentation; default 0.
        sampling: `Weighted` or `Balanced`: how often each sample comes in an epoch; default None, once.
        batching: `ByLength`, `Packed` or a torch (batch) sampler; default None. See docs/how-to/sampling.md, text.md.
        decode: Column → ``"rgb"``, ``"gray"``, ``"unchanged"``, a crop, an `Augment`, `Audio`, `Clips`, or a callable
            (bytes → tensor); see docs/how-to/decoding.md. Columns that it does not name stay encoded: lists of bytes.
        decoder: Library that decodes: ``"torchcodec"``, ``"torchvision"``, ``"simplejpeg"`` or ``"pillow"``; default
            ``"auto"``, the best one installed. Crops of JPEGs use the native module wherever it was built.
        max_pixels: Largest number of pixels of an image. A larger one is refused before memory is allocated for it.
        on_error: Policy for a sample whose image cannot be decoded: ``"raise"`` (default), ``"skip"`` (the batch is
            shorter) or ``"replace"`` (the nearest sound sample of the batch takes its place). Bytes that do not arrive
            and transforms that fail are always raised. See docs/how-to/decoding.md.
        max_errors: Largest number of samples skipped or replaced per epoch, as an integer, or as a share of this rank's
            samples; default 0.01. One more raises `TooManyDecodeErrors`.
        transform: Function from a sample (a dict, images as (C, H, W) uint8) to a sample, called in a thread. With a
            second parameter, ``context``, it also gets a `SampleContext`.
        ragged: Column → ``"list"``, ``"pad"``, ``"nested"``, ``"packed"`` or `Pad`; see docs/how-to/ragged.md.
        collate_fn: Function from the list of a batch's samples to the batch; default `collate`.
        batch_transform: Function called with each finished batch: `MixUp`, `CutMix`, or one of your own. It runs in a
            thread or worker process if batches stay on the CPU, and otherwise after the transfer to the device.
        as_tuple: Columns of a batch to deliver as a tuple, ``("image", "label")`` for ``for x, y in loader``.
        drop_last: Whether to leave out a smaller last batch; short for ``last_batch="drop"``.
        last_batch: ``"short"`` (default), ``"drop"``, or ``"pad"`` with the epoch's first samples. All ranks always
            have the same number of steps; see docs/how-to/training.md.
        device: Device of the batches: ``"cuda"`` or ``"cuda:1"``, where images are decoded too (see
            docs/how-to/device.md). ``"cpu"`` and None (default) touch no GPU.
        pin_memory: Whether batches are put into page-locked memory; default True for a CUDA device, else False.
        rank: Rank of this process; default torch.distributed's if it is initialized, else 0.
        world_size: Number of ranks that share each epoch; default torch.distributed's if it is initialized, else 1.
        groups: Number of parts into which an epoch's shards are divided, each for some of the ranks; default when
            shuffling 8, or one per 64 samples of a larger global batch; else 1. The order depends on it. Best is a
            multiple of the number of nodes; a warning is logged if the default is smaller.
        shuffle_window: Largest distance of a sample from its shard's place, as a size or a number of samples.
        num_threads: Number of threads for reading, decoding and transforming, of all workers together; default the
            number of usable cores, or one per worker.
        prefetch_batches: Number of batches made ahead of the consumer, by all workers together.
        prefetch_bytes: Bytes of shards fetched ahead of their first use, by all workers together; default 128 MiB.
        num_workers: Number of processes that make the batches, for transforms in pure Python; default 0, threads in
            this process. Batches and order are the same. See docs/how-to/workers.md for this and the next three.
        worker_init_fn: Function called with the worker's number when a worker process starts.
        multiprocessing_context: Start method of the workers: ``"forkserver"`` (default), ``"spawn"``, or a context.
        persistent_workers: Whether workers are kept for the next epoch; default False.
        recorder: Folder in which each rank logs what every step delivered; default None. See docs/how-to/prove.md.
        timeout: Seconds to wait for one batch before `LoaderTimeout` is raised, which names the stage waited for;
            default 600. 0 or None: no limit.
        slow_batch_warning_s: Seconds of waiting for one batch before a warning names the stage waited for; default 10.
            None: no warning.

    Raises:
        ConfigurationError: An argument cannot work. Nothing has been fetched yet.

    Iterating raises `concurrent_loader.StorageError` or `concurrent_loader.LoaderError`, which name the sample and the
    stage. A ``break`` or an exception in the loop's body leaves no thread or task behind.

    Thread-safety: Use a loader from one thread. Several iterators at once do not disturb each other; the state is that
    of the newest one.

    Example:
        >>> from concurrent_loader import NativeDataLoader, ShardDataset
        >>> loader = NativeDataLoader(ShardDataset("photos"), batch_size=8, decode={"image": "rgb"}, last_batch="drop")
        >>> [tuple(batch["label"].shape) for batch in loader]
        [(8,), (8,)]
    """

    __class_getitem__: Any = classmethod(GenericAlias)  # NativeDataLoader[int] in annotations, as with torch

    def __init__(
        self,
        dataset: LoadableDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        sampling: Sampling | None = None,
        batching: Batching | None = None,
        decode: Mapping[str, str | Decoder | Crop | Linked | PartOf] | None = None,
        decoder: Backend = "auto",
        max_pixels: int = DEFAULT_MAX_PIXELS,
        on_error: OnError = "raise",
        max_errors: float = 0.01,
        transform: Callable[..., Any] | None = None,
        ragged: Mapping[str, RaggedOption] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        as_tuple: Sequence[str] | None = None,
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
        recorder: str | os.PathLike[str] | None = None,
        timeout: float | None = 600.0,
        slow_batch_warning_s: float | None = 10.0,
    ) -> None:
        check_native_dataset(type(self), dataset)
        self.dataset = dataset
        self.batch_size = positive("batch_size", batch_size)
        self.rank, self.world_size = rank_of_process(rank, world_size)
        self._rank_is_given = rank is not None
        self.device = resolve_device(device)
        if pin_memory:
            check_pinning(self.device)
        self._pin_memory = pin_memory if pin_memory is not None else has_stage(self.device)
        check_worker_arguments(num_workers, multiprocessing_context, persistent_workers)
        self._num_threads, self._prefetch_batches = num_threads_and_batches(num_workers, num_threads, prefetch_batches)
        self._prefetch_bytes = parse_size(prefetch_bytes, name="prefetch_bytes")
        global_batch_size = self.batch_size * self.world_size
        num_units = min(len(each.unit_sizes) for each in dataset.stored)
        usual = default_groups(global_batch_size, num_units) if shuffle else 1
        self._plan_options = PlanOptions(
            seed=seed, global_batch_size=global_batch_size, groups=usual if groups is None else groups,
            shuffle=bool(shuffle), shuffle_window=shuffle_window, last_batch=last_batch_policy(drop_last, last_batch),
            sampling=sampling, batching=check_batching(batching, batch_size, is_sampled=sampling is not None),
        )  # fmt: skip
        self._clock = StageClock()
        on_cpu = self.device is None or self.device.type == "cpu"
        self._batch_transform = None if on_cpu else batch_transform
        self._as_tuple = check_as_tuple(as_tuple, dataset, ragged, (transform, collate_fn, batch_transform))
        self._error_limit = ErrorLimit(ErrorPolicy(on_error, max_errors))
        processing = ProcessingOptions(
            decode={} if decode is None else decode, decoder=decoder, max_pixels=positive("max_pixels", max_pixels),
            on_error=on_error, transform=transform, collate_fn=collate_fn,
            batch_transform=batch_transform if on_cpu else None, seed=seed,
            device_codecs=tuple(device_codecs(self.device)), ragged={} if ragged is None else ragged,
            staged=has_stage(self.device), packed=batching if isinstance(batching, Packed) else None,
        )  # fmt: skip
        self._processing = make_sample_processing(dataset, processing, clock=self._clock)
        self._epoch, self._step, self._started = 0, 0, False
        self._recorder = None if recorder is None else FlightRecorder(recorder, self.rank, self.world_size)
        self._num_batches = self._num_samples = 0
        self._first_batch_s = 0.0
        self._newest: object = None
        plan = self._plan(0)  # raises now for options that cannot work
        warn_of_companions(dataset, decode or {})
        warn_if_empty(self._plan_options, plan.num_steps(self.rank, self.world_size))
        if groups is None:
            warn_if_ranks_share_shards(dataset, plan, rank=self.rank, world_size=self.world_size)
        self._workers: WorkerProcesses | None = None
        if num_workers:
            job = Job(
                dataset=dataset, plan=self._plan_options, processing=processing, worker_init_fn=worker_init_fn,
                rank=self.rank, world_size=self.world_size,
                num_workers=num_workers, num_threads=max(1, self._num_threads // num_workers),
                prefetch_batches=self._prefetch_batches, prefetch_bytes=self._prefetch_bytes,
            )  # fmt: skip
            self._workers = WorkerProcesses(
                job, context=multiprocessing_context, persistent=persistent_workers, clock=self._clock
            )
        workers = self._workers  # a reference to self would keep the loader until garbage is collected
        self._batch_timeout = BatchTimeout(
            warn_s=slow_batch_warning_s,
            timeout_s=timeout,
            clock=self._clock.now,
            facts=lambda: describe(*fetched(dataset, workers)),
        )

    # -- iteration -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch on this rank; see `LoaderIterator` for those still to come."""
        return self._num_steps(self._epoch)

    def _num_steps(self, epoch: int) -> int:
        return self._plan(epoch).num_steps(self.rank, self.world_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the rest of an epoch.

        The first iteration after `set_epoch` or `load_state_dict` covers the epoch given there, from the restored step.
        Each further iteration covers the next epoch. An iteration starts with its first batch, so an iterator that a
        framework creates and drops does not use up an epoch.

        Raises:
            ConfigurationError: torch.distributed was initialized after the loader was built.
        """
        if not self._rank_is_given:
            check_rank(self.rank, self.world_size)
        return LoaderIterator(self._iterate(), self._workers, begins_at=self._begins_at, num_steps=self._num_steps)

    def _begins_at(self) -> tuple[int, int]:
        return (self._epoch + 1, 0) if self._started else (self._epoch, self._step)

    def _iterate(self) -> Generator[Any, None, None]:
        epoch, start_step = self._epoch, self._step = self._begins_at()
        self._started = True
        me = self._newest = object()
        wall, began = WallTime(self._clock), self._clock.now()
        record = start_record(self._recorder, self.dataset, self._plan_options, epoch, start_step)
        batches = self._batches(epoch, start_step)
        iteration = Iteration(batches)
        step, num_steps, grace_period_s = start_step, self._num_steps(epoch), STOP_S
        place, status = (lambda: Place(epoch, step, num_steps)), batches.pipeline_status
        live = track(self, place=place, status=status, pending=lambda: wall.pending)
        try:
            batches.start()
            for item in receive_batches(batches, self._batch_timeout, wall, epoch=epoch, start_step=start_step):
                if step == start_step:
                    self._first_batch_s = self._clock.now() - began
                given = as_tuple(transform_batch(self._batch_transform, self._to_device(item)), self._as_tuple)
                if record is not None:
                    record.deliver(item, self._error_limit.last_failed)
                wall.count("device")
                step += 1  # a batch that fails above is not delivered: the state stays before it, as with workers
                if self._newest is me:
                    self._step = step
                self._num_batches += 1
                self._num_samples += num_samples(item)
                iteration.consumed()
                try:
                    yield given
                finally:
                    wall.count("consumer")
            if record is not None:
                record.end()
            if self._newest is me:
                self._epoch, self._step, self._started = epoch + 1, 0, False
        except LoaderTimeout:
            grace_period_s = _HUNG_S
            raise
        finally:
            untrack(live)
            try:
                iteration.end(grace_period_s)
            finally:
                self._end_trace()

    def _batches(self, epoch: int, start_step: int) -> EpochBatches:
        made = self._host_batches(epoch, start_step)
        if self.device is not None and has_stage(self.device):
            on_error = self._error_limit.policy.on_error
            made = DeviceBatches(made, self.device, pinned=self._pin_memory, clock=self._clock, on_error=on_error)
        plan = self._plan(epoch)
        return self._error_limit.watch(made, plan.global_batch_size // self.world_size * plan.max_steps)

    def _host_batches(self, epoch: int, start_step: int) -> EpochBatches:
        if self._workers is not None:
            return self._workers.batches(epoch, start_step)
        config = PipelineConfig(
            source=self.dataset.source_for(self._plan_options, epoch), plan=self._plan(epoch),
            processing=self._processing, start_step=start_step, rank=self.rank, world_size=self.world_size,
            num_threads=self._num_threads, prefetch_batches=self._prefetch_batches,
            prefetch_bytes=self._prefetch_bytes,
        )  # fmt: skip
        return ThreadedBatches(self.dataset.loop, config)

    def _to_device(self, batch: Any) -> Any:
        if not isinstance(batch, Batch) or (self.device is not None and has_stage(self.device)):
            return batch  # no `Batch`, or already on the device
        batch = batch.pin_memory() if self._pin_memory else batch
        return batch if self.device is None else batch.to(self.device, non_blocking=self._pin_memory)

    # -- position --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch of the current iteration, or of the next one if none is running."""
        return self._epoch

    @property
    def sampler(self) -> EpochSetter:
        """Sampler that passes ``set_epoch`` on to the loader, for scripts and frameworks that call it there."""
        return EpochSetter(self)

    @property
    def batch_sampler(self) -> None:
        """None, as in a torch loader without one: the loader determines the order itself."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. It starts at the epoch's first step, or at the step restored for it."""
        if epoch < 0:
            raise ConfigurationError("epoch must be an integer from 0", got=epoch)
        if self._started or epoch != self._epoch:
            self._step = 0
        self._epoch, self._started = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last delivered batch: integers, and the head of this rank's ``recorder=``."""
        head = None if self._recorder is None else self._recorder.saved_head()
        return PlanState.of(self._plan(self._epoch), self._step, head).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where a state was taken. No sample is read again.

        The next iteration delivers the rest of that epoch, which is empty if the state was taken after the last batch.
        The number of ranks, threads and caches and the batch size per rank may differ from those of the state. The
        global batch size and everything else that the order depends on must be the same.

        Raises:
            LoaderStateError: The state belongs to another dataset, seed, global batch size, window or grouping.
        """
        restored = PlanState.from_dict(dict(state))
        restored.check(self._plan(restored.epoch))
        if self._recorder is not None:
            self._recorder.restored(restored.recorder_head)
        self._epoch, self._step, self._started = restored.epoch, restored.step, False

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> LoaderStats:
        """Counters of all iterations so far."""
        fetch, cache = fetched(self.dataset, self._workers)
        failed = {self._error_limit.policy.on_error: self._error_limit.num_failed}
        return self._clock.stats(
            num_batches=self._num_batches, num_samples=self._num_samples, num_skipped=failed.get("skip", 0),
            num_replaced=failed.get("replace", 0), first_batch_s=self._first_batch_s, fetch=fetch, cache=cache,
        )  # fmt: skip

    def _resources(self) -> Resources:
        return Resources(
            getattr(self._workers, "num_workers", 0), self._num_threads, self._prefetch_batches, self._prefetch_bytes
        )

    def _plan(self, epoch: int) -> Plan:
        return self.dataset.plan(self._plan_options, epoch)
