"""What a worker is told when it is started, and what it says: the words between a loader and its worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from concurrent_loader.augment import Crop
from concurrent_loader.broken import OnError
from concurrent_loader.decode import Decoder
from concurrent_loader.errors import WorkerTraceback
from concurrent_loader.pipeline import END, Failure
from concurrent_loader.plan import PlanOptions
from concurrent_loader.source import LoadableDataset
from concurrent_loader.waiting import Trail, Whereabouts
from storage.cache import CacheStats
from storage.errors import ConfigurationError
from storage.fetch import FetchStats
from storage.secrets import redact

__all__ = ["ANY_RUN", "Job", "Outcome", "Report", "Sealed", "check_job"]

ANY_RUN = 0  # of outcomes that belong to no iteration: the worker could not begin


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a worker needs to know, the same for all workers of a loader.

    Attributes:
        dataset: What to load.
        plan: Of `LoadableDataset.plan`.
        decode: As given to the loader.
        transform: The same.
        collate_fn: The same.
        batch_transform: The same, if workers are to call it.
        worker_init_fn: Called with the worker's number before it does anything else.
        seed: Of the random streams.
        rank: Of the loader.
        world_size: Number of loaders that share each epoch.
        num_workers: Of this loader.
        num_threads: Of each worker, for reading, decoding and transforming.
        prefetch_batches: Of all workers together.
        prefetch_bytes: The same.
        device_codecs: Names of the encodings that the loader's device decodes; their pictures stay as they are.
        on_error: As given to the loader.
        decoding: Arguments of its decoders.
        private_cache: Folder that is deleted with the workers, and its budget in bytes; None where the data set has a
            cache of its own, or none can be had.
    """

    dataset: LoadableDataset
    plan: PlanOptions
    decode: Mapping[str, str | Decoder | Crop]
    transform: Callable[[dict[str, Any]], Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], object] | None
    seed: int
    rank: int
    world_size: int
    num_workers: int
    num_threads: int
    prefetch_batches: int
    prefetch_bytes: int
    device_codecs: tuple[str, ...] = ()
    batch_transform: Callable[[Any], Any] | None = None
    on_error: OnError = "raise"
    decoding: Mapping[str, Any] = field(default_factory=dict)
    private_cache: tuple[str, int] | None = None

    def batches_ahead(self, worker: int) -> int:
        """Returns how many batches a worker may make ahead: its part of the bound, and one at least."""
        return max(1, self.prefetch_batches // self.num_workers + (worker < self.prefetch_batches % self.num_workers))


class Sealed:
    """A job that is unpickled when the worker is ready to say what went wrong with that.

    It is pickled when a process is being started, so that secrets go along then and at no other time.
    """

    def __init__(self, job: Job) -> None:
        self._job: Job | bytes = job

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._job))

    def __setstate__(self, state: bytes) -> None:
        self._job = state

    def open(self) -> Job:
        """Returns the job; in the worker this imports whatever it is made of."""
        if isinstance(self._job, bytes):
            self._job = pickle.loads(self._job)  # noqa: S301 -- of the process that started this one
        assert isinstance(self._job, Job)
        return self._job


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has done.

    Attributes:
        seconds: Stage → thread-seconds since the report before.
        fetch: Requests and bytes since the worker began.
        cache: Hits and misses since then.
        number: Of the report among the worker's; batches are not finished in the order of their delivery.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    fetch: FetchStats = field(default_factory=FetchStats)
    cache: CacheStats = field(default_factory=CacheStats)
    number: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is in a parcel.

    Attributes:
        item: A batch; or None after the last one.
        error: What came instead, the last thing of its iteration.
        cause: What the error's traceback looked like.
        report: What the worker has done until then.
        trail: Where a batch has been on its way.
        whereabouts: Where the next batch is, if that was the question.
    """

    item: Any = None
    error: BaseException | None = None
    cause: str = ""
    report: Report = field(default_factory=Report)
    trail: Trail = ()
    whereabouts: Whereabouts | None = None

    @property
    def last(self) -> bool:
        """Whether nothing follows from this worker in this iteration."""
        return self.error is not None or (self.item is None and self.whereabouts is None)

    def unwrapped(self) -> Any:
        """What `EpochBatches.take` gives: a batch, a `Failure`, or `END`."""
        if self.error is not None:
            self.error.__cause__ = WorkerTraceback(self.cause)
            return Failure(self.error)
        return END if self.item is None else self.item[0]


def check_job(job: Job) -> None:
    """Makes sure that a job can go to a worker, before one is started.

    Raises:
        ConfigurationError: Some part of it cannot.
    """
    for stored in job.dataset.stored:
        if stored.url.startswith("memory://"):
            raise ConfigurationError("a data set in this process's memory cannot be seen by workers", url=stored.url)
    for name in ("transform", "collate_fn", "batch_transform", "decode", "worker_init_fn", "dataset"):
        before = get_spawning_popen()
        set_spawning_popen(_Rehearsal())  # type: ignore[arg-type]  # it does all that pickling asks for
        try:
            ForkingPickler.dumps(getattr(job, name))
        except Exception as error:
            raise ConfigurationError(
                f"{name} cannot go to a worker process, for it cannot be pickled: give a function or an object of a "
                "class that a module defines, no lambda and nothing defined within a function; or num_workers=0",
                got=redact(f"{type(error).__name__}: {error}"),
            ) from error
        finally:
            set_spawning_popen(before)


class _Rehearsal:
    """Stands for the process that is being started, so that what only such a process may get is pickled as well."""

    @staticmethod
    def DupFd(fd: int) -> int:  # noqa: N802 -- multiprocessing's name
        return fd

    def duplicate_for_child(self, fd: int) -> int:
        return fd
