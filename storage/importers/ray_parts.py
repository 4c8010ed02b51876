"""Writes the parts of an import as tasks of a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any

from concurrent_loader.storage.importers.ingest_plan import IngestPart, WrittenPart
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.part_processes import PartTarget

__all__ = ["write_on_ray"]

_AHEAD = 4  # tasks per CPU that wait or run
_MAX_RETRIES = 20  # of a task whose process or machine died; a part may be written any number of times


def write_on_ray(
    parts: Iterable[IngestPart], target: PartTarget, *, num_workers: int | None, address: str | None
) -> Generator[WrittenPart, None, None]:
    """Yields the results of the parts in their order. Ray repeats a task whose process or machine dies.

    Args:
        parts: Parts to write.
        target: Where they go; every machine must reach it.
        num_workers: Upper bound of tasks at once; None for one per CPU of the cluster.
        address: Address of the cluster; None uses the one that the program or the environment has, or starts one.

    Raises:
        ConfigurationError: Ray is not installed.
        StorageError: Error of a part.
    """
    ray = import_library("ray", extra="ray")
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    task = ray.remote(_write).options(num_cpus=1, max_retries=_MAX_RETRIES)
    where = ray.put(target)
    waiting = iter(parts)
    running: deque[Any] = deque()
    try:
        while True:
            num_ahead = num_workers or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(running) < num_ahead and (part := next(waiting, None)) is not None:
                running.append(task.remote(part, where))
            if not running:
                return
            written = _result(ray, running[0])
            running.popleft()
            yield written
    finally:
        # Ray ends the driver's process if a task is cancelled in the moment in which its result arrives (2.60, "Tried
        # to complete task that was not pending"), so what has finished is left alone.
        if running:
            for reference in ray.wait(list(running), num_returns=len(running), timeout=0)[1]:
                ray.cancel(reference, force=True)


def _write(part: IngestPart, target: PartTarget) -> WrittenPart:
    return target.write(part)


def _result(ray: Any, reference: Any) -> WrittenPart:
    try:
        written: WrittenPart = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    return written
