"""Says when: one epoch's batches, fetched ahead, made by threads, delivered in order, within bounds.

One coroutine on the data set's loop schedules; the plan says which shards and samples come next. Bounds:

- at most ``prefetch_batches`` batches are being made or wait for the consumer;
- shards are fetched ahead of their first use up to ``prefetch_bytes``, and 1,024 of them; one that is needed now is
  always fetched, so a shard larger than the budget works;
- a shard is let go of when all of its samples are delivered, or after the step that the plan names as its last use.

Of several worker processes that share a rank's steps each has a pipeline of its own, which fetches and makes what its
own steps need, and counts what passes in the others' steps. It lets go of shards when the consumer has taken a batch,
not before: then the others have made their steps until there, so nobody evicts what one of them still needs.

A failure is delivered in its place: the batches before it arrive first, whatever the timing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from concurrent_loader.arrivals import Arrivals
from concurrent_loader.assembly import Gathering
from concurrent_loader.batch_memory import BatchMemory
from concurrent_loader.decode_threads import DecodeThreads
from concurrent_loader.errors import LoaderError
from concurrent_loader.lookahead import Lookahead
from concurrent_loader.plan import BatchIndex
from concurrent_loader.recipe import Recipe
from concurrent_loader.slices import Slice, cut
from concurrent_loader.source import OpenUnit, Plan, Source
from concurrent_loader.waiting import Journey, Trail, Whereabouts, whereabouts
from concurrent_loader.work import make_samples
from storage.errors import CorruptData, StorageError, StoreClosed
from storage.loop_thread import LoopThread, hold

__all__ = ["END", "STOP_S", "Failure", "Pipeline"]

_log = logging.getLogger(__name__)

_MAX_AHEAD = 1024  # shards or objects fetched ahead, however small

_HEAD_START_S = 1.0  # at most, of the first batch's shards before those fetched ahead

STOP_S = 30.0  # for threads to end what they are doing
_UNWIND_S = 10.0  # for everything else, on top of it


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of a batch; the last thing that is delivered."""

    error: BaseException


class _End:
    """Delivered after the last batch."""


END = _End()


class Pipeline:
    """Makes the batches of one epoch for one rank.

    Args:
        source: Brings the data set's units, which are called shards here.
        plan: The epoch's order.
        recipe: What is done to samples.
        start_step: The first batch.
        rank: Of this process.
        world_size: Number of processes that share the epoch.
        num_threads: Decode threads.
        prefetch_batches: Bound on batches made ahead.
        prefetch_bytes: Bound on shards fetched ahead of their first use.
        worker: Makes the steps s with ``s % num_workers == worker``.
        num_workers: Among how many pipelines the rank's steps are dealt out.
        deliver: Called on the loop with each batch in order and its trail, up to a `Failure`; at last `END`. Must not
            block.
    """

    def __init__(
        self,
        *,
        source: Source,
        plan: Plan,
        recipe: Recipe,
        start_step: int,
        rank: int,
        world_size: int,
        num_threads: int,
        prefetch_batches: int,
        prefetch_bytes: int,
        deliver: Callable[[Any, Trail], None],
        worker: int = 0,
        num_workers: int = 1,
    ) -> None:
        self._source = source
        self._plan = plan
        self._recipe = recipe
        self._start_step = start_step
        self._rank = rank
        self._world_size = world_size
        self._num_threads = num_threads
        self._prefetch_bytes = prefetch_bytes
        self._deliver = deliver
        self._worker = worker
        self._num_workers = num_workers
        self._task: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(prefetch_batches)
        self._arrivals = Arrivals(source)
        self._ahead: list[tuple[int, int]] = []  # (step of first use, bytes) of shards fetched ahead; a heap
        self._ahead_bytes = 0
        self._leaving: list[tuple[int, int]] = []  # (step of last use, shard); a heap
        self._left: dict[int, tuple[int, int]] = {}  # shard → samples that may still be needed, and all that may be
        self._journeys: dict[int, Journey] = {}  # step → where that batch is
        self._patience_s = STOP_S
        self._delivered: deque[list[BatchIndex]] = deque()  # whose shards are still held; each with the steps before it

    def consumed(self) -> None:
        """Tells that the consumer has taken a batch; call it on the loop."""
        self._slots.release()
        if self._num_workers > 1 and self._delivered:
            self._let_go_of_oldest()

    async def start(self) -> None:
        """Starts making batches; whatever ends it, the consumer is told."""
        self._task = asyncio.create_task(self.run())
        hold(self._task)
        self._task.add_done_callback(self._tell_end)

    def whereabouts(self) -> Whereabouts:
        """Says where the batch is that is delivered next; call it from any thread."""
        return whereabouts(list(self._journeys.values()), self._recipe.clock.now())

    def stop(self, loop: LoopThread, patience_s: float = STOP_S) -> None:
        """Ends the pipeline and waits until its tasks and threads are gone; call it from the consumer's thread.

        Args:
            loop: That it runs on.
            patience_s: For how long threads may go on with what they are doing. One that takes longer (a transform that
                never returns) is left behind, with a warning: it ends when it returns, and what it holds is released
                then. It keeps neither this call nor the process from ending.
        """
        self._patience_s = patience_s
        try:
            loop.run(self._cancel(patience_s + _UNWIND_S), timeout_s=patience_s + 2 * _UNWIND_S)
        except TimeoutError:
            _log.warning("a loader's event loop does not answer; its tasks are left behind")
        except (StoreClosed, CancelledError):
            # The data set is being closed, and that ends the pipeline.
            return

    async def _cancel(self, patience_s: float) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            _, late = await asyncio.wait({self._task}, timeout=patience_s)
            if late:
                _log.warning("a loader is still waiting for the local drive %.0f s after it was stopped", patience_s)

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._deliver(Failure(LoaderError("the data set was closed while a loader was reading it")), ())
        elif (error := task.exception()) is not None:
            self._deliver(Failure(error), ())
        else:
            self._deliver(END, ())

    async def run(self) -> None:
        """Makes and delivers everything from the first step to the last, or up to the first failure."""
        await self._source.follow(self._plan, self._world_size, shared=self._num_workers > 1)
        self._source.at(self._start_step)
        threads = DecodeThreads(self._num_threads)
        try:
            async with asyncio.TaskGroup() as group:
                await self._run(group, threads)
        finally:
            # Threads first: none may read from a shard that is being let go of.
            try:
                await threads.leave(self._patience_s)
            finally:
                if threads.gone:
                    self._arrivals.release_all()
                    await self._source.end()
                else:
                    self._leave_behind(threads)

    def _leave_behind(self, threads: DecodeThreads) -> None:
        """Says that threads do not end, and lets go of what they read from when they do."""
        stages = [stage for journey in self._journeys.values() for stage, _ in journey.busy()]
        _log.warning("%d decode threads do not end and are left behind, in: %s", len(stages), ", ".join(stages))
        loop = asyncio.get_running_loop()

        def release() -> None:
            # A loop that has closed meanwhile has taken the cache along.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._arrivals.release_all)

        threads.when_gone(release)

    async def _run(self, group: asyncio.TaskGroup, threads: DecodeThreads) -> None:
        order: asyncio.Queue[tuple[list[BatchIndex], asyncio.Task[Any]] | None]
        order = asyncio.Queue()  # bounded by the slots
        tasks: set[asyncio.Task[Any]] = set()

        def start(coroutine: Any) -> asyncio.Task[Any]:
            task = group.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        async def schedule() -> None:
            lookahead = Lookahead(
                self._plan.upcoming(
                    self._start_step, self._rank, self._world_size, worker=self._worker, num_workers=self._num_workers
                ),
                global_batch_size=self._plan.global_batch_size,
            )
            passed: list[BatchIndex] = []
            is_first = True
            for index in self._plan.batches(self._start_step, self._rank, self._world_size):
                passed.append(index)
                if not self._is_own(index):
                    continue
                await self._slots.acquire()
                await self._fetch_ahead(
                    index.step, lookahead, start, ahead_bytes=0 if is_first else self._prefetch_bytes
                )
                journey = self._journeys[index.step] = Journey(index.step, self._recipe.clock.now)
                order.put_nowait((passed, start(self._make(index, threads, journey))))
                passed = []
                if is_first:
                    is_first = False
                    await self._head_start()
                    await self._fetch_ahead(index.step, lookahead, start, ahead_bytes=self._prefetch_bytes)
            order.put_nowait(None)

        start(schedule())
        while (entry := await order.get()) is not None:
            passed, making = entry
            outcome = await making
            self._deliver(outcome, self._journeys.pop(passed[-1].step).trail)
            if isinstance(outcome, Failure):
                for task in tasks:
                    task.cancel()
                return
            self._delivered.append(passed)
            if self._num_workers == 1:
                self._let_go_of_oldest()

    def _is_own(self, index: BatchIndex) -> bool:
        return index.step % self._num_workers == self._worker

    # -- shards ----------------------------------------------------------------------------------------------------

    async def _head_start(self) -> None:
        """Waits for the first shard: until it has arrived, those of the first batch share the way with no others.

        The first batch needs less than what is fetched ahead. Where processors or the network are the limit, it comes
        so much earlier; where they are not, the rest begins one shard's transfer later.
        """
        if arriving := self._arrivals.all():
            await asyncio.wait(arriving, timeout=_HEAD_START_S, return_when=asyncio.FIRST_COMPLETED)

    async def _fetch_ahead(
        self, step: int, lookahead: Lookahead, start: Callable[[Any], asyncio.Task[Any]], *, ahead_bytes: int
    ) -> None:
        """Starts fetching what step ``step`` needs, and what comes after it as far as ``ahead_bytes`` go."""
        while self._ahead and self._ahead[0][0] <= step:
            self._ahead_bytes -= heapq.heappop(self._ahead)[1]
        last_step = step + lookahead.max_steps if ahead_bytes else step
        while (upcoming := await lookahead.peek(last_step)) is not None:
            first_use, shard = upcoming
            size = self._source.num_bytes(shard)
            if first_use > step and (self._ahead_bytes + size > ahead_bytes or len(self._ahead) >= _MAX_AHEAD):
                return
            lookahead.take()
            if first_use > step:
                heapq.heappush(self._ahead, (first_use, size))
                self._ahead_bytes += size
            self._arrivals.expect(shard, start)
            last_use = self._plan.last_use_step(shard, self._rank, self._world_size)
            heapq.heappush(self._leaving, (last_use, shard))

    def _let_go_of_oldest(self) -> None:
        for index in self._delivered.popleft():
            self._let_go(index)

    def _let_go(self, index: BatchIndex) -> None:
        """Releases the shards that no batch after this one needs."""
        used = index.shard[: len(index) - index.num_padded]
        for shard, count in zip(*(numbers.tolist() for numbers in np.unique(used, return_counts=True)), strict=True):
            left, uses = self._left.get(shard) or (self._plan.max_uses(shard, self._rank, self._world_size),) * 2
            self._left[shard] = left - count, uses
            if left == count:
                self._release(shard, spent=uses == self._source.num_samples(shard))
        self._source.at(index.step + 1)
        while self._leaving and self._leaving[0][0] <= index.step:
            self._release(heapq.heappop(self._leaving)[1])

    def _release(self, shard: int, *, spent: bool = False) -> None:
        self._left.pop(shard, None)
        self._arrivals.release(shard, spent=spent)

    # -- batches ---------------------------------------------------------------------------------------------------

    async def _make(self, index: BatchIndex, threads: DecodeThreads, journey: Journey) -> Any:
        """Makes one batch; errors become a `Failure`, so that they wait for their turn."""
        extra: list[int] = []
        try:
            shards: dict[int, OpenUnit] = {}
            resolved = self._source.resolve(index)
            counted = set(index.shard[: len(index) - index.num_padded].tolist())
            for shard in dict.fromkeys(index.shard.tolist()):
                if shard not in counted:
                    # Padding comes back to shards that were let go of, or may be at any moment.
                    with self._waiting(journey, shard):
                        shards[shard] = await self._source.acquire(shard)
                    extra.append(shard)
                    continue
                arriving = self._arrivals[shard]
                if not arriving.done():
                    with self._waiting(journey, shard):
                        await asyncio.wait({arriving})
                arrived = arriving.result()
                if isinstance(arrived, Exception):
                    if isinstance(arrived, StorageError):
                        sample = int(resolved.sample[resolved.shard == shard][0])
                        arrived.locate(sample=sample, url=self._source.url(shard))
                    raise arrived
                shards[shard] = arrived
            with journey.in_threads():
                return await self._make_from(resolved, shards, threads, journey)
        except Exception as error:  # noqa: BLE001 - delivered to the consumer, in order
            urls = {self._source.url(shard) for shard in index.shard.tolist()}
            if isinstance(error, StorageError) and len(urls) == 1:
                error.locate(url=urls.pop())
            return Failure(error)
        finally:
            for shard in extra:
                self._source.release(shard)

    def _waiting(self, journey: Journey, shard: int) -> AbstractContextManager[None]:
        return journey.waiting(self._source.key(shard), partial(self._source.fetched, shard))

    async def _make_from(
        self, index: BatchIndex, shards: dict[int, OpenUnit], threads: DecodeThreads, journey: Journey
    ) -> Any:
        memory = self._recipe.memory(len(index))
        try:
            return await self._make_in(memory, index, shards, threads, journey)
        finally:
            memory.close()

    async def _make_in(
        self,
        memory: BatchMemory,
        index: BatchIndex,
        shards: dict[int, OpenUnit],
        threads: DecodeThreads,
        journey: Journey,
    ) -> Any:
        recipe = self._recipe.of(index)
        parts = cut(index, shards, num_threads=self._num_threads, epoch=self._plan.epoch, memory=memory)
        gathering = Gathering(recipe, index, self._plan.epoch, num_slices=len(parts))

        async def make_part(number: int, part: Slice) -> None:
            def work() -> None:
                gathering.put(number, part, make_samples(recipe, part))

            for _ in range(len(part.shards)):
                try:
                    await self._in_thread(threads, journey, work)
                    return
                except CorruptData as error:
                    part = await self._healed(part, error)
            await self._in_thread(threads, journey, work)

        outcomes = await asyncio.gather(*map(make_part, itertools.count(), parts), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return gathering.batch

    async def _in_thread(self, threads: DecodeThreads, journey: Journey, work: Callable[[], None]) -> None:
        """Has a thread do something for a batch, before what it would do for batches that come later."""

        def serve() -> None:
            with self._recipe.clock.serving(journey):
                try:
                    work()
                except BaseException as error:
                    if isinstance(error, Exception) and not isinstance(error, StopIteration):
                        raise
                    # Coroutines cannot raise these: StopIteration would never arrive, SystemExit would end the loop.
                    what = f"the user's code raised {type(error).__name__}: {error}; no batch can be made of that"
                    raise LoaderError(what) from error

        await asyncio.wrap_future(threads.submit_at(journey.step, serve))

    async def _healed(self, part: Slice, error: CorruptData) -> Slice:
        """Replaces the one shard of a slice whose local bytes have decayed, or raises the error again."""
        damaged = next((at for at, shard in enumerate(part.shards) if shard.key == error.shard), None)
        if damaged is None or not part.shards[damaged].cached:
            if damaged is not None:
                error.locate(url=self._source.url(part.units[damaged]))
            raise error
        fresh = await self._source.replace(part.units[damaged], part.shards[damaged])
        return replace(part, shards=(*part.shards[:damaged], fresh, *part.shards[damaged + 1 :]))
