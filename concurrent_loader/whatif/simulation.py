"""Replays a recorded run in virtual time, with the loader's own rules for what is fetched when.

The shards ahead (`ShardLeases`), the requests in flight (`InFlightGate`, `Endpoint` with its controller) and the
attribution of waits are the code of real runs. Simulated are what they wait for: the store, the cores, the threads and
the consumer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from concurrent_loader.order.protocol import Plan
from concurrent_loader.pipeline.shard_leases import ShardLeases
from concurrent_loader.pipeline.slices import count_slices
from concurrent_loader.stats.wait_attribution import Span, attribute_wait
from concurrent_loader.storage.fetch.concurrency_control import MAX_AUTO
from concurrent_loader.storage.fetch.endpoint import Endpoint
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate
from concurrent_loader.storage.virtual_time import run_in_virtual_time
from concurrent_loader.whatif.cores import Cores
from concurrent_loader.whatif.run_trace import RunTrace

__all__ = ["Prediction", "Scenario", "predict"]

_MAX_USES = 20_000  # of units, in one replay
_FETCH_THREADS = 2  # the event loop's, and one that writes files
_BYTES_IN_FLIGHT = 128 << 20
_SPARE = 8  # objects requested beyond the limit
_QUANTILES = (0.0, 0.5, 0.95, 0.99, 1.0)  # that the distribution of times to the first byte is drawn from


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is asked.

    Attributes:
        cores: Number of cores.
        num_threads: Number of decode threads.
        prefetch_batches: Number of batches made ahead.
        prefetch_bytes: Bytes of units fetched ahead.
        in_flight: Number of requests in flight; None for ``"auto"``.
        latency_s: Median seconds to the first byte.
        cached: Share of the units on the local drive, 0 … 1.
        accelerators: Number of accelerators that take a batch each in every step.
        step_s: Seconds that they compute in a step; None for as long as the recorded consumer took.
    """

    cores: int
    num_threads: int
    prefetch_batches: int
    prefetch_bytes: int
    in_flight: int | None
    latency_s: float
    cached: float = 0.0
    accelerators: int = 1
    step_s: float | None = None

    @classmethod
    def of(cls, trace: RunTrace) -> Scenario:
        """Returns the scenario of the recorded run itself."""
        return cls(
            cores=trace.cores, num_threads=trace.num_threads, prefetch_batches=trace.prefetch_batches,
            prefetch_bytes=trace.prefetch_bytes, in_flight=trace.in_flight, latency_s=trace.first_byte_s[0],
            cached=_cached_share(trace),
        )  # fmt: skip

    def with_cores(self, cores: int) -> Scenario:
        """Returns the scenario with other cores; threads and batches ahead follow them as they do by default."""
        follows = self.num_threads == self.cores
        num_threads = cores if follows else self.num_threads
        batches = num_threads + 2 if self.prefetch_batches == self.num_threads + 2 else self.prefetch_batches
        return replace(self, cores=cores, num_threads=num_threads, prefetch_batches=batches)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What would happen.

    Attributes:
        samples_s: Samples per second, of all accelerators.
        utilisation: Share of the time from the first step on that the accelerators compute, 0 … 1.
        wait_s: Seconds that they wait for ``store`` and ``threads``, the decode threads and their cores, from the first
            step on.
        cores_busy: Share of the cores in use, 0 … 1.
        bound_by: ``"accelerators"``, ``"store"``, ``"threads"`` or ``"cores"``.
        num_gets: Number of requests.
        seconds: Duration of what was replayed.
    """

    samples_s: float
    utilisation: float
    wait_s: dict[str, float]
    cores_busy: float
    bound_by: str
    num_gets: int
    seconds: float


def predict(trace: RunTrace, scenario: Scenario) -> Prediction:
    """Replays a recording.

    Args:
        trace: Recording of a run.
        scenario: What is different.

    Returns:
        The same result for the same arguments.
    """
    return run_in_virtual_time(_Replay(trace, scenario).run())


def _cached_share(trace: RunTrace) -> float:
    """Returns the share of the bytes that was not fetched, of the shards that the recorded batches used."""
    used = {unit for units in trace.step_units for unit in units}
    return min(1.0, max(0.0, 1 - trace.num_bytes / max(1, sum(trace.unit_bytes[unit] for unit in used))))


class _Costs:
    """What a sample, a byte and a batch cost, from the counters of a recording."""

    def __init__(self, trace: RunTrace) -> None:
        thread_cpu_s = min(trace.thread_cpu_s, trace.process_cpu_s)
        self.consumer_cpu_s = min(trace.consumer_cpu_s, trace.consumer_s) / trace.num_batches
        self.consumer_s = trace.consumer_s / trace.num_batches
        rest_s = max(0.0, trace.process_cpu_s - thread_cpu_s - trace.consumer_cpu_s)
        self.sample_cpu_s = thread_cpu_s / trace.num_samples
        self.fetch_cpu_s = rest_s / trace.num_bytes if trace.num_bytes else 0.0  # per byte
        self.batch_cpu_s = 0.0 if trace.num_bytes else rest_s / trace.num_batches
        # Threads that had to wait for a core waited, too: only where cores were free did they wait for anything else.
        is_busy = trace.process_cpu_s >= 0.75 * trace.cores * trace.wall_s
        self.sample_idle_s = 0.0 if is_busy else max(0.0, trace.thread_s - thread_cpu_s) / trace.num_samples
        gets = max(1, trace.num_gets)
        self.request_bytes = max(1, trace.num_bytes // gets)
        # Requests take as long as recorded, on average. What is left beside the time to the first byte is the body's.
        # If nothing is, as with small objects, more of the first bytes came early than the percentiles say.
        p50, p95, p99 = trace.first_byte_s
        earliest = max(0.0, 2 * p50 - p95)
        times = np.array((earliest, p50, p95, p99, p99))
        mean_s = float(np.diff(_QUANTILES) @ (times[1:] + times[:-1]) / 2)
        body_s = trace.request_s / gets - mean_s - self.fetch_cpu_s * self.request_bytes
        self.byte_s = max(0.0, body_s) / self.request_bytes
        earliest = max(0.0, earliest + min(0.0, body_s) / (_QUANTILES[1] / 2))
        self.first_byte_s = (earliest, p50, p95, p99, p99)


class _Units:
    """Stands for a `Source` and a `Plan`: the recorded units, and their requests."""

    def __init__(self, trace: RunTrace, scenario: Scenario, costs: _Costs, cores: Cores, steps: int) -> None:
        self._trace, self._scenario, self._costs, self._cores, self._steps = trace, scenario, costs, cores, steps
        self._now = asyncio.get_running_loop().time
        self._rng = random.Random(0)  # noqa: S311 - the same prediction every time
        bound = scenario.in_flight
        self._gate = InFlightGate(max_requests=bound or MAX_AUTO, max_bytes=_BYTES_IN_FLIGHT)
        self._endpoint = Endpoint()
        self._member = self._endpoint.join(bound)
        self._fetch_threads = asyncio.Semaphore(_FETCH_THREADS)
        self.num_gets = 0
        self.global_batch_size = max(trace.step_samples)

    @property
    def max_concurrent(self) -> int | None:
        limit = min(self._endpoint.limit, self._scenario.in_flight or MAX_AUTO)
        return limit + max(_SPARE, limit // 4) if self._trace.by_object else None

    def num_bytes(self, unit: int) -> int:
        return self._trace.unit_bytes[unit]

    def upcoming(self, *args: int, **kwargs: int) -> Iterator[tuple[int, int | None]]:
        seen: set[int] = set()
        for step in range(self._steps):
            for unit in self._trace.step_units[step]:
                if unit not in seen:
                    seen.add(unit)
                    yield step, unit
            yield step, None

    def last_use_step(self, *args: int) -> int:
        return self._steps

    async def acquire(self, unit: int) -> object:
        size = self.num_bytes(unit)
        if unit * 0x9E3779B1 % 2**32 >= self._scenario.cached * 2**32:
            parts = max(1, round(size / self._costs.request_bytes))
            await asyncio.gather(*(self._request(size // parts) for _ in range(parts)))
        return unit

    async def _request(self, num_bytes: int) -> None:
        self.num_gets += 1
        await self._gate.enter(num_bytes)
        place = await self._endpoint.enter()
        sent_s = self._now()
        await asyncio.sleep(self._latency_s() + num_bytes * self._costs.byte_s)
        async with self._fetch_threads:
            await self._cores.work(num_bytes * self._costs.fetch_cpu_s)
        now_s = self._now()
        self._endpoint.leave(place, now_s=now_s, num_bytes=num_bytes, answer_s=now_s - sent_s)
        self._gate.leave(num_bytes)

    def _latency_s(self) -> float:
        """Draws a time to the first byte: the recorded distribution, moved to the median of the scenario."""
        p50 = self._trace.first_byte_s[0]
        if not p50:
            return self._scenario.latency_s
        drawn = np.interp(self._rng.random(), _QUANTILES, self._costs.first_byte_s)
        return float(drawn) * self._scenario.latency_s / p50


class _Threads:
    """Decode threads; earlier steps go first."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def run(self, step: int, work: Callable[[], Awaitable[None]]) -> None:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (step, next(self._numbers), turn))
            await turn
        await work()
        if self._waiting:
            heapq.heappop(self._waiting)[2].set_result(None)
        else:
            self._free += 1


class _Replay:
    """One replay; the tasks are those of `concurrent_loader.pipeline.pipeline.Pipeline`."""

    def __init__(self, trace: RunTrace, scenario: Scenario) -> None:
        self._trace, self._scenario, self._costs = trace, scenario, _Costs(trace)
        uses = itertools.accumulate(len(units) for units in trace.step_units)
        steps = max(1, sum(used <= _MAX_USES for used in uses))
        self._steps = max(steps - steps % scenario.accelerators, 1)

    async def run(self) -> Prediction:
        scenario, loop = self._scenario, asyncio.get_running_loop()
        self._cores = cores = Cores(scenario.cores)
        self._units = units = _Units(self._trace, scenario, self._costs, cores, self._steps)
        self._threads = _Threads(scenario.num_threads)
        plan = cast("Plan", units)
        self._leases = ShardLeases(
            cast("Any", units), plan, start_step=0, rank=0, world_size=1, worker=0, num_workers=1
        )
        order: asyncio.Queue[asyncio.Task[tuple[Span, Span]]] = asyncio.Queue()
        slots = asyncio.Semaphore(scenario.prefetch_batches)
        began_s = loop.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._schedule(group, order, slots))
            computed_s, first_s, waits = await self._consume(order, slots)
        seconds = loop.time() - began_s
        samples = sum(self._trace.step_samples[: self._steps])
        busy = cores.busy_s / max(seconds * scenario.cores, 1e-9)
        utilisation = computed_s / max(loop.time() - first_s, 1e-9)
        bound_by = max(waits, key=lambda cause: waits[cause])
        if sum(waits.values()) < 0.05 * seconds:
            bound_by = "accelerators"
        elif bound_by == "threads" and busy >= 0.9:
            bound_by = "cores"
        return Prediction(
            samples_s=samples / max(seconds, 1e-9), utilisation=min(1.0, utilisation), wait_s=waits, cores_busy=busy,
            bound_by=bound_by, num_gets=units.num_gets, seconds=seconds,
        )  # fmt: skip

    async def _schedule(
        self,
        group: asyncio.TaskGroup,
        order: asyncio.Queue[asyncio.Task[tuple[Span, Span]]],
        slots: asyncio.Semaphore,
    ) -> None:
        for step in range(self._steps):
            await slots.acquire()
            ahead_bytes = self._scenario.prefetch_bytes
            await self._leases.prefetch(step, group.create_task, ahead_bytes=ahead_bytes if step else 0)
            order.put_nowait(group.create_task(self._make(step)))
            if not step:
                await self._leases.wait_for_first()
                await self._leases.prefetch(step, group.create_task, ahead_bytes=ahead_bytes)

    async def _make(self, step: int) -> tuple[Span, Span]:
        now = asyncio.get_running_loop().time
        began_s = now()
        for unit in self._trace.step_units[step]:
            await asyncio.wait({self._leases[unit]})
        arrived_s = now()
        await self._cores.work(self._costs.batch_cpu_s)
        samples = self._trace.step_samples[step]
        num_bytes = samples * self._trace.sample_bytes or None
        parts = count_slices(samples, num_threads=self._scenario.num_threads, num_bytes=num_bytes)

        async def work() -> None:
            await self._cores.work(samples / parts * self._costs.sample_cpu_s)
            await asyncio.sleep(samples / parts * self._costs.sample_idle_s)

        await asyncio.gather(*(self._threads.run(step, work) for _ in range(parts)))
        return Span(began_s, arrived_s, {"store": 1.0}), Span(arrived_s, now(), {"decode": 1.0})

    async def _consume(
        self, order: asyncio.Queue[asyncio.Task[tuple[Span, Span]]], slots: asyncio.Semaphore
    ) -> tuple[float, float, dict[str, float]]:
        """Returns the seconds computed, the time of the first step, and the causes of the waits."""
        now, scenario, costs = asyncio.get_running_loop().time, self._scenario, self._costs
        computed_s, waits = 0.0, {"store": 0.0, "threads": 0.0}
        first_s: float | None = None
        for step in range(self._steps):
            asked_s = now()
            spans = await (await order.get())
            slots.release()
            found = attribute_wait(spans, asked_s, now())
            if first_s is not None:  # the wait for the first step is the start
                waits["store"] += found["store"]
                waits["threads"] += found["decode"]
            if (step + 1) % scenario.accelerators and step + 1 < self._steps:
                continue
            if first_s is None:
                first_s = now()
            step_s = costs.consumer_s if scenario.step_s is None else scenario.step_s
            cpu_s = costs.consumer_cpu_s if scenario.step_s is None else 0.0
            began_s = now()
            await self._cores.work(cpu_s)
            await asyncio.sleep(max(0.0, step_s - cpu_s))
            computed_s += now() - began_s if scenario.step_s is None else step_s
        assert first_s is not None
        return computed_s, first_s, waits
