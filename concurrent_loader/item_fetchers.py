"""How a torch data set's items are got, many at once: between the data set and the tasks of a worker.

Coroutines run on an event loop in a thread of its own, blocking methods in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from time import perf_counter
from typing import Any, Protocol

from concurrent_loader.item_pace import ItemPace
from concurrent_loader.item_threads import ItemThreads
from concurrent_loader.item_way import ItemWay, way_of
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
    """Starts batches; they are got in the order in which they were started, as many items at once as it may."""

    def start(self, indices: Any) -> Pending:
        """Starts a batch."""

    def rest(self) -> None:
        """Tells that perhaps nothing more is started."""

    def stop(self) -> None:
        """Ends all that is under way, waits for it for some seconds. Idempotent."""


def make_fetcher(dataset: Any, *, in_flight: int, batched: bool) -> ItemFetcher:
    """Chooses how a data set's items are got.

    Args:
        dataset: Map-style.
        in_flight: Items under way at once; with 1 and no coroutines everything happens in the caller's thread, and
            so it does where items are so quick that a thread costs more.
        batched: Whether indices come as batches; otherwise each "batch" is the index of one item.
    """
    way = way_of(dataset)
    if way.item_async is not None or (batched and way.batch_async is not None):
        return _Coroutines(way, in_flight=in_flight, batched=batched)
    if in_flight == 1:
        return _InTurn(way, batched=batched)
    return _Threads(way, in_flight=in_flight, batched=batched)


class _InTurn:
    """One after the other when they are asked for: as torch does it."""

    def __init__(self, way: ItemWay, *, batched: bool) -> None:
        self._way = way
        self._batched = batched

    def start(self, indices: Any) -> Pending:
        return _Later(self._get, indices)

    def rest(self) -> None: ...

    def stop(self) -> None: ...

    def _get(self, indices: Any) -> Any:
        if not self._batched:
            return self._way.item(indices)
        if self._way.batch is not None:
            return self._way.batch(indices)
        return [self._way.item(index) for index in indices]


class _Later:
    def __init__(self, get: Callable[[Any], Any], indices: Any) -> None:
        self._get = get
        self._indices = indices

    def result(self) -> Any:
        return self._get(self._indices)

    def cancel(self) -> None: ...


class _Threads(_InTurn):
    """Each item in a thread, or each batch where the data set takes whole batches; in turn where items are quick."""

    def __init__(self, way: ItemWay, *, in_flight: int, batched: bool) -> None:
        super().__init__(way, batched=batched)
        self._threads = ItemThreads(in_flight)
        self._pace = ItemPace()
        self._later: deque[_Quickly] = deque()  # bounded as all batches that are under way

    def start(self, indices: Any) -> Pending:
        if self._batched and self._way.batch is not None:
            return self._threads.submit(self._way.batch, indices)
        if self._pace.is_quick:
            self._later.append(_Quickly(self, indices))
            return self._later[-1]
        return self._start(indices)

    def rest(self) -> None:
        self._threads.rest()

    def stop(self) -> None:
        self._threads.stop(timeout_s=_END_S)

    def _start(self, indices: Any) -> Pending:
        if not self._batched:
            return self._threads.submit(self._item, indices)
        return _Items([self._threads.submit(self._item, index) for index in indices])

    def _item(self, index: Any) -> Any:
        began = perf_counter()
        item = self._way.item(index)
        self._pace.took(perf_counter() - began)
        return item

    def get_quickly(self, batch: _Quickly) -> Any:
        """Gets a batch's items in turn, up to one that is not quick; from there on threads do it."""
        self._later.remove(batch)
        left = deque(batch.indices if self._batched else [batch.indices])
        items = []
        while left and self._pace.is_quick:
            began = perf_counter()
            items.append(self._way.item(left.popleft()))
            self._pace.took_in_turn(perf_counter() - began)
        rest = self._start(left) if left else None
        if not self._pace.is_quick:
            while self._later:
                other = self._later.popleft()
                other.in_threads = self._start(other.indices)
        if not self._batched:
            return items[0]
        return items if rest is None else items + rest.result()

    def forget(self, batch: _Quickly) -> None:
        """Takes a batch off the list of those that may be started yet."""
        if batch in self._later:
            self._later.remove(batch)


class _Quickly:
    """A batch that is got in turn when it is asked for, or was given to threads before that after all."""

    def __init__(self, fetcher: _Threads, indices: Any) -> None:
        self.indices = indices
        self.in_threads: Pending | None = None
        self._fetcher = fetcher

    def result(self) -> Any:
        return self._fetcher.get_quickly(self) if self.in_threads is None else self.in_threads.result()

    def cancel(self) -> None:
        if self.in_threads is None:
            self._fetcher.forget(self)
        else:
            self.in_threads.cancel()


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

    def __init__(self, way: ItemWay, *, in_flight: int, batched: bool) -> None:
        self._way = way
        self._batched = batched
        self._places = asyncio.Semaphore(in_flight)
        self._loop = LoopThread(name="dataset-items")

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
