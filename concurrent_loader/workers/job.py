"""Job of a worker process, which the loader sends when it starts the process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler

from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.pipeline.sample_processing import ProcessingOptions
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.redaction import redact

__all__ = ["Job", "PickledJob", "check_job"]

_USER_CODE = ("transform", "collate_fn", "batch_transform", "decode")  # fields of `ProcessingOptions`


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes the work of one loader's workers. All workers of a loader get the same job.

    Attributes:
        dataset: Dataset to load.
        plan: Options of `LoadableDataset.plan`.
        processing: Options that say what is done to samples and batches.
        worker_init_fn: Function called with the worker's number before anything else; None for no call.
        rank: Rank of the loader.
        world_size: Number of ranks that share each epoch.
        num_workers: Number of workers of this loader.
        num_threads: Number of threads per worker for reading, decoding and transforming.
        prefetch_batches: Number of batches made ahead by all workers together.
        prefetch_bytes: Bytes of shards fetched ahead by all workers together.
        temp_cache: Path of a cache folder that is deleted with the workers, and its budget in bytes. None if the
            dataset has a cache of its own, or if no folder can be made.
    """

    dataset: LoadableDataset
    plan: PlanOptions
    processing: ProcessingOptions
    worker_init_fn: Callable[[int], object] | None
    rank: int
    world_size: int
    num_workers: int
    num_threads: int
    prefetch_batches: int
    prefetch_bytes: int
    temp_cache: tuple[str, int] | None = None

    def batches_ahead(self, worker: int) -> int:
        """Returns the number of batches that one worker may make ahead: its share of the bound, at least one."""
        return max(1, self.prefetch_batches // self.num_workers + (worker < self.prefetch_batches % self.num_workers))


class PickledJob:
    """Carries a job to a worker, which unpickles the job only when it can report an error of unpickling.

    Args:
        job: Job to carry.
    """

    def __init__(self, job: Job) -> None:
        self._job: Job | bytes = job

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._job))

    def __setstate__(self, state: bytes) -> None:
        self._job = state

    def open(self) -> Job:
        """Returns the job. In the worker, this imports the modules of the user's functions and classes."""
        if isinstance(self._job, bytes):
            self._job = pickle.loads(self._job)  # noqa: S301 -- sent by the process that started this one
        assert isinstance(self._job, Job)
        return self._job


def check_job(job: Job) -> None:
    """Checks that a job can be sent to a worker, before any worker is started.

    Raises:
        ConfigurationError: The dataset is in this process's memory, or an argument cannot be pickled.
    """
    for stored in job.dataset.stored:
        if stored.url.startswith("memory://"):
            raise ConfigurationError(
                "workers cannot read a dataset in this process's memory; pass num_workers=0", url=stored.url
            )
    parts = {name: getattr(job.processing, name) for name in _USER_CODE}
    parts |= {"sampling": job.plan.sampling, "batching": job.plan.batching}
    for name, part in {**parts, "worker_init_fn": job.worker_init_fn, "dataset": job.dataset}.items():
        before = get_spawning_popen()
        set_spawning_popen(_Rehearsal())  # type: ignore[arg-type]  # it does all that pickling asks for
        try:
            ForkingPickler.dumps(part)
        except Exception as error:
            raise ConfigurationError(
                f"{name} cannot be sent to a worker process because it cannot be pickled; pass a function or an "
                "instance of a class defined at the top level of a module (no lambda, no local function), or pass "
                "num_workers=0",
                got=redact(f"{type(error).__name__}: {error}"),
            ) from error
        finally:
            set_spawning_popen(before)


class _Rehearsal:
    """Stands in for the process being started, so that objects that pickle only for a child process are checked too."""

    @staticmethod
    def DupFd(fd: int) -> int:  # noqa: N802 -- multiprocessing's name
        return fd

    def duplicate_for_child(self, fd: int) -> int:
        return fd
