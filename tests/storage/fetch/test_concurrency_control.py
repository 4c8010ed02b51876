"""The controller against a simulated store: latency, a processor with one answer at a time, a throttle, noise."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader.storage.fetch.concurrency_control import MAX_AUTO, LimitController, Phase


@dataclass
class World:
    """Latency in seconds, seconds of processor for one answer, in flight beyond which it refuses."""

    latency_s: float
    cpu_s: float
    throttle_above: int = 10**9
    jitter: float = 0.1
    noise: float = 0.0  # the processor's pace changes by so much every 100 ms
    num_bytes: int = 100_000
    demand: int = 10**9  # readers never want more at once
    storm: tuple[float, float] | None = None


@dataclass
class Run:
    """What happened."""

    goodput: list[tuple[float, int]] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)
    num_refused: int = 0

    def rate(self, start_s: float, end_s: float) -> float:
        return sum(num for at_s, num in self.goodput if start_s <= at_s < end_s) / (end_s - start_s)


def simulate(world: World, control: LimitController | int, seconds: float, *, seed: int = 0) -> Run:
    """Keeps as many requests in flight as the controller (or a fixed number) admits."""
    rng = random.Random(seed)
    run = Run()
    now_s = cpu_free_s = 0.0
    pace, pace_until_s = 1.0, 0.0
    active = 0
    events: list[tuple[float, int, int, float, str]] = []
    number = 0

    def limit() -> int:
        return min(world.demand, control if isinstance(control, int) else control.limit)

    def send() -> None:
        nonlocal active, number
        generation = 0 if isinstance(control, int) else control.generation
        active += 1
        number += 1
        in_storm = world.storm is not None and world.storm[0] <= now_s < world.storm[1]
        refused = active > world.throttle_above or (in_storm and rng.random() < 0.5)
        arrives_s = now_s + world.latency_s * rng.lognormvariate(0, world.jitter)
        heapq.heappush(events, (arrives_s, number, generation, now_s, "refused" if refused else "arrived"))

    while now_s < seconds:
        while active < limit():
            send()
        now_s, which, generation, sent_s, what = heapq.heappop(events)
        if what == "arrived":
            if now_s >= pace_until_s:
                pace, pace_until_s = rng.uniform(1 - world.noise, 1 + world.noise), now_s + 0.1
            cpu_free_s = max(now_s, cpu_free_s) + world.cpu_s * pace
            heapq.heappush(events, (cpu_free_s, which, generation, sent_s, "done"))
            continue
        refused = what == "refused"
        bound = not isinstance(control, int) and active >= control.limit
        active -= 1
        num_bytes = 0 if refused else world.num_bytes
        run.num_refused += refused
        run.goodput.append((now_s, num_bytes))
        if not isinstance(control, int):
            if refused:
                control.throttled(now_s)
            control.finished(now_s, generation=generation, num_bytes=num_bytes, answer_s=now_s - sent_s, bound=bound)
            run.limits.append((now_s, control.limit))
    return run


def automatic() -> LimitController:
    control = LimitController()
    control.configure(fixed=0, num_auto=1)
    return control


def best_fixed(world: World, *, seconds: float = 3.0) -> float:
    return max(simulate(world, number, seconds).rate(1, seconds) for number in (1, 2, 4, 8, 16, 32, 64, 128, 256))


@pytest.mark.slow
@pytest.mark.parametrize("latency_ms", [5, 30, 130])
@pytest.mark.parametrize("per_s", [150, 1000, 2500, 8000])
def test_finds_nine_tenths_of_the_best_fixed_number_within_seconds(latency_ms: int, per_s: int) -> None:
    world = World(latency_ms / 1000, 1 / per_s, noise=0.15)
    # A slow store's answers are few: what is to be learned from them takes as much longer.
    warm_s = 4.0 if per_s >= 1000 else 8.0
    reached = simulate(world, automatic(), warm_s + 4).rate(warm_s, warm_s + 4)
    assert reached >= 0.9 * best_fixed(world)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    latency_s=st.floats(0.003, 0.2),
    per_s=st.floats(300, 6000),
    jitter=st.floats(0, 0.5),
    seed=st.integers(0, 10**6),
)
def test_finds_it_in_any_world(latency_s: float, per_s: float, jitter: float, seed: int) -> None:
    world = World(latency_s, 1 / per_s, jitter=jitter, noise=0.15)
    run = simulate(world, automatic(), 9, seed=seed)
    assert run.rate(5, 9) >= 0.8 * best_fixed(world)


@pytest.mark.slow
@pytest.mark.parametrize("above", [3, 20, 100])
def test_stays_below_what_the_store_bears(above: int) -> None:
    run = simulate(World(0.03, 1e-5, throttle_above=above), automatic(), 20)
    # ×0.7 after each time that it is too much, and slowly up again.
    assert run.rate(8, 20) >= 0.6 * above / 0.033 * 100_000
    assert run.num_refused <= 0.05 * len(run.goodput) + 200


def test_a_storm_leaves_no_trace_after_a_few_seconds() -> None:
    world = World(0.03, 1 / 2500, storm=(4.0, 8.0))
    run = simulate(world, automatic(), 24)
    before, after = run.rate(3, 4), run.rate(18, 24)
    assert min(limit for at_s, limit in run.limits if 4 < at_s < 8) <= 4
    assert run.rate(4.5, 8) > 0
    assert after >= 0.85 * before


def test_a_fixed_reader_gets_its_number_at_once_is_cut_and_gets_it_back() -> None:
    control = LimitController()
    control.configure(fixed=40, num_auto=0)
    assert control.limit == 40
    run = simulate(World(0.03, 1e-5, storm=(1.0, 2.0)), control, 20)
    assert min(limit for at_s, limit in run.limits if 1 < at_s < 2) < 10
    assert run.limits[-1][1] == 40
    assert max(limit for _, limit in run.limits) == 40


def test_a_limit_that_nobody_reaches_says_nothing() -> None:
    control = automatic()
    simulate(World(0.03, 1e-5, demand=10), control, 5)
    assert (control.limit, control.phase) == (16, Phase.SLOW_START)


def test_readers_come_and_go() -> None:
    control = automatic()
    control.configure(fixed=100, num_auto=1)
    assert control.limit == 100
    control.configure(fixed=8, num_auto=0)
    assert control.limit == 8
    control.configure(fixed=300, num_auto=1)
    assert control.limit == 300


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "bad", "throttled", "configure"]), st.floats(0, 0.5), st.integers(0, 400)),
        max_size=300,
    )
)
def test_whatever_happens_the_limit_is_at_least_one_and_at_most_the_ceiling(
    steps: list[tuple[str, float, int]],
) -> None:
    control = automatic()
    now_s, ceiling = 0.0, MAX_AUTO
    for what, seconds, number in steps:
        now_s += seconds
        if what == "throttled":
            control.throttled(now_s)
        elif what == "configure":
            control.configure(fixed=number, num_auto=1)
            ceiling = max(MAX_AUTO, number)
        else:
            num_bytes = number if what == "good" else 0
            control.finished(
                now_s, generation=control.generation, num_bytes=num_bytes, answer_s=seconds, bound=number % 2 == 0
            )
        assert 1 <= control.limit <= ceiling
