"""Fetchers: read the items of a torch dataset, many at once, for the tasks of a worker.

Coroutines run on an event loop in one thread, blocking methods in a pool of threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from concurrent_loader.map_style.inline_heuristic import COMPUTES, SLICE_ITEMS, UNKNOWN, WAIT_S, InlineHeuristic
from concurrent_loader.map_style.item_access import ItemAccess, item_access_of
from concurrent_loader.map_style.thread_pool import ItemThreads
from concurrent_loader.map_style.worker_errors import replace_stop_iteration
from concurrent_loader.storage.loop_thread import LoopThread

__all__ = ["ItemFetcher", "Pending", "make_fetcher"]

_END_S = 5.0  # time for running reads to finish when the loader ends, as for torch's workers


class Pending(Protocol):
    """A batch in flight."""

    def result(self) -> Any:
        """Waits for the items, in the order of the indices; raises the error of the first one that failed."""

    def cancel(self) -> Any:
        """Cancels items that have not been started."""


class ItemFetcher(Protocol):
    """Reads batches, and starts later batches ahead."""

    @property
    def starts_early(self) -> bool:
        """Whether later batches are worth starting now."""

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        """Reads a batch that was not started.

        Args:
            indices: Indices of its items.
            start_others: Function that starts later batches, called as soon as that is worthwhile.
        """

    def start(self, indices: Any) -> Pending:
        """Starts a batch. Batches are read in the order in which they are started."""

    def release_idle(self) -> None:
        """Lets idle threads exit; the next `start` creates new ones."""

    def stop(self) -> None:
        """Cancels everything in flight and waits for it, a few seconds at most. Idempotent."""


def make_fetcher(
    dataset: Any, *, in_flight: int, batched: bool, known: int = UNKNOWN, report: Callable[[int], object] = bool
) -> ItemFetcher:
    """Chooses how to read a dataset's items.

    Args:
        dataset: Map-style dataset.
        in_flight: Number of items read at once. With 1 and no coroutines, and while items compute, items are read in
            the caller's thread.
        batched: Whether indices come as batches; otherwise each "batch" is the index of one item.
        known: Finding of an earlier fetcher about the items, see `concurrent_loader.map_style.inline_heuristic`.
        report: Function called with each finding of this fetcher.
    """
    access = item_access_of(dataset)
    if access.item_async is not None or (batched and access.batch_async is not None):
        return _Coroutines(access, in_flight=in_flight, batched=batched)
    if in_flight == 1:
        return _Sequential(dataset, access, batched=batched)
    return _Threads(dataset, access, in_flight=in_flight, batched=batched, known=known, report=report)


class _Sequential:
    """Reads items one after the other when they are needed, by the same calls as torch."""

    starts_early = False

    def __init__(self, dataset: Any, access: ItemAccess, *, batched: bool) -> None:
        batch = getattr(dataset, "__getitems__", None)  # torch's own test is the attribute's truth
        self._get: Callable[[Any], Any] = (batch or partial(_get_each, dataset)) if batched else access.item

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        return self._get(indices)

    def start(self, indices: Any) -> Pending:
        raise NotImplementedError("a sequential fetcher starts nothing ahead")

    def release_idle(self) -> None: ...

    def stop(self) -> None: ...


def _get_each(dataset: Any, indices: Any) -> list[Any]:
    items, index = [], None
    try:
        for index in indices:
            items.append(dataset[index])
    except StopIteration as error:
        raise replace_stop_iteration(error, f"dataset[{index!r}]") from error
    return items


class _Threads(_Sequential):
    """Reads in threads while items wait, one call per item, or per batch if the dataset reads whole batches."""

    def __init__(
        self,
        dataset: Any,
        access: ItemAccess,
        *,
        in_flight: int,
        batched: bool,
        known: int,
        report: Callable[[int], object],
    ) -> None:
        super().__init__(dataset, access, batched=batched)
        self._access = access
        self._batched = batched
        self._is_whole = not batched or access.batch is not None  # one call reads a whole batch
        self._threads = ItemThreads(in_flight)
        self._heuristic = InlineHeuristic(known)
        self._report = report

    @property
    def starts_early(self) -> bool:  # type: ignore[override]
        return self._heuristic.uses_threads()

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        heuristic = self._heuristic
        if not (self._is_whole or isinstance(indices, list)):
            indices = list(indices)
        num_items = len(indices) if isinstance(indices, list) else 1
        if heuristic.is_quick and (self._is_whole or num_items <= SLICE_ITEMS):
            began = heuristic.clock()
            items = self._get(indices)
            if heuristic.clock() - began >= WAIT_S * num_items:
                heuristic.suspect()
            return items
        if heuristic.uses_threads():
            pending = self.start(indices)
            start_others()
            return pending.result()
        if not self._is_whole:
            return self._get_parts(indices, start_others)
        heuristic.begin()
        items = self._get(indices)
        self._ended(num_items)
        if heuristic.uses_threads():
            start_others()
        return items

    def start(self, indices: Any) -> Pending:
        if not self._batched:
            return self._threads.submit(self._access.item, indices)
        if self._access.batch is not None:
            return self._threads.submit(self._access.batch, indices)
        return _Items([self._threads.submit(self._access.item, index) for index in indices])

    def release_idle(self) -> None:
        self._threads.release_idle()

    def stop(self) -> None:
        self._threads.stop(timeout_s=_END_S)

    def _get_parts(self, indices: list[Any], start_others: Callable[[], None]) -> list[Any]:
        """Reads a batch part by part, until a part shows that threads are better for the rest."""
        heuristic, start = self._heuristic, 0
        items: list[Any] = []
        while start < len(indices):
            part = indices[start : start + heuristic.part_items]
            heuristic.begin()
            items += self._get(part)
            self._ended(len(part))
            start += len(part)
            if heuristic.uses_threads():
                rest = self.start(indices[start:])
                start_others()
                items += rest.result()
                break
        return items

    def _ended(self, num_items: int) -> None:
        if self._heuristic.end(num_items):
            if self._heuristic.known == COMPUTES:
                self._threads.release_idle()
            self._report(self._heuristic.known)


class _Items:
    def __init__(self, futures: list[Future[Any]]) -> None:
        self._futures = futures

    def result(self) -> list[Any]:
        try:
            return [future.result() for future in self._futures]
        except BaseException:
            self.cancel()
            raise
        finally:
            self._futures = []  # the traceback of an error must not keep the items alive

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class _Coroutines:
    """Reads by coroutines on one event loop, in a thread of its own."""

    starts_early = True

    def __init__(self, access: ItemAccess, *, in_flight: int, batched: bool) -> None:
        self._access = access
        self._batched = batched
        self._places = asyncio.Semaphore(in_flight)
        self._loop = LoopThread(name="dataset-items")

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        pending = self.start(indices)
        start_others()
        return pending.result()

    def start(self, indices: Any) -> Pending:
        if not self._batched:
            return _Outcome(self._loop.submit(self._one(self._access.item_async, indices)))
        if self._access.batch_async is not None:
            return _Outcome(self._loop.submit(self._one(self._access.batch_async, indices)))
        return _Outcomes(self._loop.submit(self._all(indices)))

    def release_idle(self) -> None: ...

    def stop(self) -> None:
        # A coroutine that ignores its cancellation holds up its loop, not the consumer.
        closing = threading.Thread(target=self._loop.close, name="dataset-items-end", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # the interpreter is exiting, and the loop's daemon thread with it
            return
        closing.join(_END_S)

    async def _all(self, indices: Iterable[Any]) -> list[Any]:
        return await asyncio.gather(*(self._one(self._access.item_async, index) for index in indices))

    async def _one(self, get: Callable[[Any], Awaitable[Any]] | None, indices: Any) -> Any:
        assert get is not None
        async with self._places:
            try:
                return await get(indices)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - raised where the item is awaited; here it would end the loop
                return _Raised(error)


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Outcome:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self) -> Any:
        return _value(self._future.result())

    def cancel(self) -> bool:
        return self._future.cancel()


class _Outcomes(_Outcome):
    def result(self) -> list[Any]:
        return [_value(outcome) for outcome in super().result()]


def _value(outcome: Any) -> Any:
    if isinstance(outcome, _Raised):
        raise outcome.error
    return outcome
