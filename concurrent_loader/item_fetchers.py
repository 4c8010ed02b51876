"""How a torch data set's items are got, many at once: between the data set and the tasks of a worker.

Coroutines run on an event loop in a thread of its own, blocking methods in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from concurrent_loader.inline_heuristic import COMPUTES, SLICE_ITEMS, UNKNOWN, WAIT_S, InlineHeuristic
from concurrent_loader.item_threads import ItemThreads
from concurrent_loader.item_way import ItemWay, way_of
from concurrent_loader.worker_errors import no_stop_iteration
from storage.loop_thread import LoopThread

__all__ = ["ItemFetcher", "Pending", "make_fetcher"]

_END_S = 5.0  # what still runs when a loop has ended gets so long, as torch's workers do


class Pending(Protocol):
    """A batch that is under way."""

    def result(self) -> Any:
        """Waits for its items, in the order of the indices; raises what the first of them that failed raised."""

    def cancel(self) -> Any:
        """Begins no more of them."""


class ItemFetcher(Protocol):
    """Gets batches, and starts early those that are needed later."""

    @property
    def starts_early(self) -> bool:
        """Whether batches that are needed later are worth starting now."""

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        """Gets a batch that was not started.

        Args:
            indices: Of its items.
            start_others: Starts batches that are needed later; called as soon as that is worth while.
        """

    def start(self, indices: Any) -> Pending:
        """Starts a batch. Batches are got in the order in which they were started."""

    def rest(self) -> None:
        """Tells that perhaps nothing more is started."""

    def stop(self) -> None:
        """Ends all that is under way, waits for it for some seconds. Idempotent."""


def make_fetcher(
    dataset: Any, *, in_flight: int, batched: bool, known: int = UNKNOWN, tell: Callable[[int], object] = bool
) -> ItemFetcher:
    """Chooses how a dataset's items are got.

    Args:
        dataset: Map-style.
        in_flight: Items under way at once; with 1 and no coroutines everything happens in the caller's thread, and
            so it does while items compute.
        batched: Whether indices come as batches; otherwise each "batch" is the index of one item.
        known: What an earlier fetcher found out about the items, see `concurrent_loader.inline_heuristic`.
        tell: Called with what this one finds out.
    """
    way = way_of(dataset)
    if way.item_async is not None or (batched and way.batch_async is not None):
        return _Coroutines(way, in_flight=in_flight, batched=batched)
    if in_flight == 1:
        return _InTurn(dataset, way, batched=batched)
    return _Threads(dataset, way, in_flight=in_flight, batched=batched, known=known, tell=tell)


class _InTurn:
    """One after the other when they are asked for, by the very calls that torch makes."""

    starts_early = False

    def __init__(self, dataset: Any, way: ItemWay, *, batched: bool) -> None:
        batch = getattr(dataset, "__getitems__", None)  # torch's own test is the attribute's truth
        self._get: Callable[[Any], Any] = (batch or partial(_get_each, dataset)) if batched else way.item

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        return self._get(indices)

    def start(self, indices: Any) -> Pending:
        raise NotImplementedError("nothing is started early")

    def rest(self) -> None: ...

    def stop(self) -> None: ...


def _get_each(dataset: Any, indices: Any) -> list[Any]:
    items, index = [], None
    try:
        for index in indices:
            items.append(dataset[index])
    except StopIteration as error:
        raise no_stop_iteration(error, f"dataset[{index!r}]") from error
    return items


class _Threads(_InTurn):
    """In threads while items wait: each item, or each batch of a dataset that takes whole batches. Else in turn."""

    def __init__(
        self, dataset: Any, way: ItemWay, *, in_flight: int, batched: bool, known: int, tell: Callable[[int], object]
    ) -> None:
        super().__init__(dataset, way, batched=batched)
        self._way = way
        self._batched = batched
        self._is_whole = not batched or way.batch is not None  # one call gets all of a batch
        self._threads = ItemThreads(in_flight)
        self._heuristic = InlineHeuristic(known)
        self._tell = tell

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
            return self._threads.submit(self._way.item, indices)
        if self._way.batch is not None:
            return self._threads.submit(self._way.batch, indices)
        return _Items([self._threads.submit(self._way.item, index) for index in indices])

    def rest(self) -> None:
        self._threads.rest()

    def stop(self) -> None:
        self._threads.stop(timeout_s=_END_S)

    def _get_parts(self, indices: list[Any], start_others: Callable[[], None]) -> list[Any]:
        """Gets a batch part by part, until one shows that the others had better be got in threads."""
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
                self._threads.rest()
            self._tell(self._heuristic.known)


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
            self._futures = []  # an error's traceback must not keep the items alive

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class _Coroutines:
    """All on one event loop, in a thread of its own."""

    starts_early = True

    def __init__(self, way: ItemWay, *, in_flight: int, batched: bool) -> None:
        self._way = way
        self._batched = batched
        self._places = asyncio.Semaphore(in_flight)
        self._loop = LoopThread(name="dataset-items")

    def get(self, indices: Any, start_others: Callable[[], None]) -> Any:
        pending = self.start(indices)
        start_others()
        return pending.result()

    def start(self, indices: Any) -> Pending:
        if not self._batched:
            return _Outcome(self._loop.submit(self._one(self._way.item_async, indices)))
        if self._way.batch_async is not None:
            return _Outcome(self._loop.submit(self._one(self._way.batch_async, indices)))
        return _Outcomes(self._loop.submit(self._all(indices)))

    def rest(self) -> None: ...

    def stop(self) -> None:
        # A coroutine that does not let itself be cancelled keeps its loop, not the consumer.
        closing = threading.Thread(target=self._loop.close, name="dataset-items-end", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # the interpreter is ending, and the loop's thread, a daemon, with it
            return
        closing.join(_END_S)

    async def _all(self, indices: Iterable[Any]) -> list[Any]:
        return await asyncio.gather(*(self._one(self._way.item_async, index) for index in indices))

    async def _one(self, get: Callable[[Any], Awaitable[Any]] | None, indices: Any) -> Any:
        assert get is not None
        async with self._places:
            try:
                return await get(indices)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - raised where the item is waited for; here it would end the loop
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
