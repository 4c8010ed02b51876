from __future__ import annotations

from collections.abc import Iterator

from concurrent_loader.pipeline.lookahead import Lookahead


def endless(asked: list[int]) -> Iterator[tuple[int, int | None]]:
    """One shard at the beginning, and no other ever."""
    yield 0, 7
    step = 0
    while True:
        asked.append(step)
        yield step, None
        step += 10


async def test_it_looks_no_further_than_asked() -> None:
    asked: list[int] = []
    lookahead = Lookahead(endless(asked), global_batch_size=256)
    assert await lookahead.peek(0) == (0, 7)
    lookahead.take()
    assert await lookahead.peek(100) is None
    assert asked == list(range(0, 101, 10))
    assert await lookahead.peek(95) is None
    assert await lookahead.peek(111) is None
    assert asked == list(range(0, 121, 10))


async def test_what_is_found_stays_at_hand() -> None:
    lookahead = Lookahead(iter([(0, None), (50, 3), (60, None), (61, 4)]), global_batch_size=1)
    assert await lookahead.peek(0) is None
    assert await lookahead.peek(1) == (50, 3)  # of a later step: it may be fetched ahead
    assert await lookahead.peek(0) == (50, 3)
    lookahead.take()
    assert await lookahead.peek(60) is None
    assert await lookahead.peek(61) == (61, 4)
    lookahead.take()
    assert await lookahead.peek(10**9) is None
    assert lookahead.max_steps == 16_384
    assert Lookahead(iter(()), global_batch_size=2**30).max_steps == 1
