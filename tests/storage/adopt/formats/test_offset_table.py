"""The table of offsets is read in blocks, and every wrong offset is found, also at the borders of the blocks."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from concurrent_loader.storage.adopt.formats import offset_table
from concurrent_loader.storage.adopt.formats.offset_table import num_samples, sample_ranges
from concurrent_loader.storage.adopt.protocol import BytesReader
from concurrent_loader.storage.errors import FormatError


@pytest.fixture(autouse=True, params=[1, 2, 3, 1000])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_table, "_BLOCK", request.param)


def reader(lengths: list[int], offsets: list[int] | None = None) -> BytesReader:
    if offsets is None:
        offsets = [4 * (len(lengths) + 2)]
        for length in lengths:
            offsets.append(offsets[-1] + length)
    return BytesReader(struct.pack(f"<{len(offsets) + 1}I", len(lengths), *offsets) + bytes(sum(lengths)), "x")


@pytest.mark.parametrize("lengths", [[], [3], [1, 2, 3], [5, 1, 1, 4, 2, 9, 1]])
def test_all_samples_are_found(lengths: list[int]) -> None:
    table = reader(lengths)
    ranges = list(sample_ranges(table, num_samples(table, len(lengths)), 1))
    assert [end - start for start, end in ranges] == lengths
    assert all(end == start for (_, end), (start, _) in pairwise(ranges))
    assert not ranges or ranges[-1][1] == table.size


@pytest.mark.parametrize("sample", range(7))
def test_a_sample_that_is_too_small_is_named(sample: int) -> None:
    lengths = [4] * 7
    lengths[sample] = 3
    with pytest.raises(FormatError, match="offset of a sample") as caught:
        list(sample_ranges(reader(lengths), 7, 4))
    assert caught.value.sample == sample


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("value", [0, 36, 2**32 - 1])
def test_a_descending_or_large_offset_names_its_sample(place: int, value: int) -> None:
    offsets = list(range(36, 36 + 8 * 4, 4))
    offsets[place] = value
    with pytest.raises(FormatError, match="offset of a sample") as caught:
        list(sample_ranges(reader([4] * 7, offsets), 7, 1))
    assert caught.value.sample == place - 1


@pytest.mark.parametrize(("last", "match"), [(63, "bytes follow"), (65, "offset of a sample")])
def test_the_last_offset_is_the_end(last: int, match: str) -> None:
    offsets = [*range(36, 36 + 7 * 4, 4), last]
    with pytest.raises(FormatError, match=match):
        list(sample_ranges(reader([4] * 7, offsets), 7, 1))
