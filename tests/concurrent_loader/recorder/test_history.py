from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.recorder.history import Span, cover, effective_spans
from concurrent_loader.recorder.log_format import Session

NUM_STEPS = 6


def span(rank: int, world_size: int, start: int, stop: int, *, epoch: int = 0, session: int = 0, **facts: bool) -> Span:
    return Span(
        session=Session(rank, world_size, float(session)), session_number=session, line=10 * session + epoch,
        epoch=epoch, start=start, stop=stop, order="", **{"resumes": False, **facts},
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """Attempts of a run of one epoch: number of ranks, first step, and the step at which each rank was killed."""
    attempts: list[tuple[int, int, list[int]]] = []
    reached = 0
    for _ in range(draw(st.integers(1, 5))):
        world_size = draw(st.sampled_from([1, 2, 4]))
        start = draw(st.integers(0, reached)) if attempts else 0
        stop = draw(st.integers(start, NUM_STEPS))
        stops = [draw(st.sampled_from([stop, min(stop + 1, NUM_STEPS)])) for _ in range(world_size)]
        attempts.append((world_size, start, stops))
        reached = min(stops)
    start = draw(st.integers(0, reached))
    world_size = draw(st.sampled_from([1, 2, 4]))
    return [*attempts, (world_size, start, [NUM_STEPS] * world_size)]


def logs_of(attempts: list[tuple[int, int, list[int]]]) -> list[list[Span]]:
    logs: dict[int, list[Span]] = {}
    for number, (world_size, start, stops) in enumerate(attempts):
        for rank, stop in enumerate(stops):
            own = span(rank, world_size, start, stop, session=number, resumes=number > 0)
            logs.setdefault(rank, []).append(own)
    return list(logs.values())


@given(runs())
def test_a_run_that_ends_covers_every_step_once(attempts: list[tuple[int, int, list[int]]]) -> None:
    spans = effective_spans(logs_of(attempts))
    coverage = cover(spans)
    assert (coverage.start, coverage.stop, coverage.problems, coverage.ahead) == (0, NUM_STEPS, [], [])
    for step in range(NUM_STEPS):
        here = [each for each in spans if each.start <= step < each.stop]
        assert sorted(each.rank for each in here) == list(range(here[0].world_size))
        last = max(number for number, (_, start, stops) in enumerate(attempts) if start <= step < max(stops))
        assert {each.session_number for each in here} == {last}


@given(runs(), st.data())
def test_steps_that_are_missing_or_doubled_are_found(
    attempts: list[tuple[int, int, list[int]]], data: st.DataObject
) -> None:
    spans = [each for each in effective_spans(logs_of(attempts)) if each.start < each.stop]
    at = data.draw(st.integers(0, len(spans) - 1))
    without = cover([each for place, each in enumerate(spans) if place != at])
    assert without.stop < NUM_STEPS or without.start > 0 or without.problems
    assert cover([*spans, spans[at]]).problems


def test_an_epoch_is_superseded_as_a_whole() -> None:
    first = [span(0, 1, 0, 6, ended=True), span(0, 1, 0, 3, epoch=1)]
    again = span(0, 1, 4, 6, session=1, resumes=True, ended=True)
    assert effective_spans([[*first, again]]) == [first[0].before((0, 4)), again]
    later = span(0, 1, 2, 6, epoch=1, session=1, resumes=True)
    assert effective_spans([[*first, later]]) == [first[0], first[1].before((1, 2)), later]


def test_problems_name_ranks_and_steps() -> None:
    assert (
        "rank 1 delivered step 2 twice" in cover([span(0, 2, 0, 3), span(1, 2, 0, 3), span(1, 2, 2, 3)]).problems[0][0]
    )
    assert "different sizes" in cover([span(0, 2, 0, 3), span(0, 1, 0, 3)]).problems[0][0]
    assert "steps 2 to 3 were not recorded" in cover([span(0, 1, 0, 2), span(0, 1, 4, 6)]).problems[0][0]
    assert cover([span(0, 2, 0, 4), span(1, 2, 0, 3)]).ahead == [0]
