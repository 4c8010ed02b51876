from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.device.staging_buffer import Layout, lay_out

sizes = st.lists(st.integers(0, 5000), max_size=20)


@given(sizes, sizes, st.sampled_from([1, 16, 256]))
def test_pieces_are_aligned_disjoint_and_all_there(copied: list[int], kept: list[int], alignment: int) -> None:
    layout = lay_out(copied, kept, alignment_bytes=alignment)
    assert [len(place) for place in (*layout.copied, *layout.kept)] == copied + kept
    end = 0
    for place in (*layout.copied, *layout.kept):
        assert place.start % alignment == 0
        assert place.start >= end
        assert place.start - end < alignment
        end = place.end
    assert all(place.end <= layout.copied_bytes for place in layout.copied)
    assert all(place.start >= layout.copied_bytes for place in layout.kept)
    assert end <= layout.num_bytes < end + alignment


def test_nothing_takes_nothing() -> None:
    assert lay_out([], []) == Layout((), (), 0, 0)
    assert lay_out([], [1]).copied_bytes == 0
