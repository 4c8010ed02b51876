from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.cache.eviction import Resident, choose_victims


def test_unknown_next_use_goes_first_the_oldest_ahead_then_the_farthest() -> None:
    residents = [
        Resident("soon", 10, next_use=5, last_used_s=1),
        Resident("far", 10, next_use=500, last_used_s=9),
        Resident("new", 10, next_use=None, last_used_s=8),
        Resident("old", 10, next_use=None, last_used_s=2),
    ]
    assert choose_victims(residents, need_bytes=40) == ["old", "new", "far", "soon"]
    assert choose_victims(residents, need_bytes=11) == ["old", "new"]
    assert choose_victims(residents, need_bytes=0) == []


@given(
    st.lists(st.tuples(st.integers(0, 100), st.none() | st.integers(0, 9), st.floats(0, 9)), max_size=20),
    st.integers(-10, 1000),
)
def test_frees_enough_or_everything_and_no_victim_is_needless(
    files: list[tuple[int, int | None, float]], need: int
) -> None:
    residents = [Resident(str(n), size, next_use, used) for n, (size, next_use, used) in enumerate(files)]
    sizes = {resident.name: resident.size for resident in residents}
    victims = choose_victims(residents, need_bytes=need)
    freed = sum(sizes[name] for name in victims)
    assert freed >= need or len(victims) == len(residents)
    if victims:
        assert freed - sizes[victims[-1]] < need
