from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.cache.eviction import Resident, choose_victims


def names(victims: list[Resident] | None) -> list[str] | None:
    return None if victims is None else [victim.name for victim in victims]


RESIDENTS = [
    Resident("soon", 10, next_use=5, last_used_s=1),
    Resident("far", 10, next_use=500, last_used_s=9),
    Resident("new", 10, next_use=None, last_used_s=8),
    Resident("old", 10, next_use=None, last_used_s=2),
]


def test_unknown_next_use_goes_first_the_oldest_ahead_then_the_farthest() -> None:
    assert names(choose_victims(RESIDENTS, need_bytes=40)) == ["old", "new", "far", "soon"]
    assert choose_victims(RESIDENTS, need_bytes=41) is None


def test_nothing_makes_room_for_what_is_wanted_later() -> None:
    assert names(choose_victims(RESIDENTS, need_bytes=30, newcomer=100)) == ["old", "new", "far"]
    assert choose_victims(RESIDENTS, need_bytes=31, newcomer=100) is None
    assert names(choose_victims(RESIDENTS, need_bytes=20, newcomer=500)) == ["old", "new"]


def test_ties_are_broken_by_age_then_by_name() -> None:
    ties = [Resident(name, 1, next_use=7, last_used_s=age) for name, age in (("b", 2), ("a", 2), ("c", 1))]
    assert names(choose_victims(ties, need_bytes=1)) == ["c", "a", "b"]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.none() | st.integers(0, 9), st.floats(0, 9)), max_size=20),
    st.integers(-10, 1000),
    st.none() | st.integers(0, 9),
)
def test_enough_or_nothing_and_never_the_sooner_one(
    files: list[tuple[int, int | None, float]], need: int, newcomer: int | None
) -> None:
    residents = [Resident(str(n), size, next_use, used) for n, (size, next_use, used) in enumerate(files)]
    victims = choose_victims(residents, need_bytes=need, newcomer=newcomer)
    if victims is None:
        assert need > sum(r.size for r in residents if r.next_use is None or newcomer is None or r.next_use > newcomer)
        return
    assert sum(victim.size for victim in victims) >= need
    for victim in victims:
        assert victim.next_use is None or newcomer is None or victim.next_use > newcomer
    kept = [victim.next_use for victim in victims if victim.next_use is not None]
    assert kept == sorted(kept, reverse=True)
