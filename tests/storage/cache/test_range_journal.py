from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.cache import range_journal
from concurrent_loader.storage.cache.range_journal import (
    RECORD_BYTES,
    PresentRanges,
    RangeRecord,
    encode_record,
    find_size,
    parse_records,
)

SIZE = 1000
RECORDS = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE), st.integers(0, 2**64 - 1)).map(
    lambda t: RangeRecord(min(t[0], t[1] - 1), t[1], t[2])
)


def encoded(record: RangeRecord) -> bytes:
    return encode_record(record, size=SIZE, salt=7)


@given(st.lists(RECORDS, max_size=20))
def test_what_was_appended_is_read(records: list[RangeRecord]) -> None:
    journal = b"".join(map(encoded, records))
    assert parse_records(journal, size=SIZE) == (records, len(journal))


@given(st.lists(RECORDS, min_size=1, max_size=8), st.data())
def test_a_torn_record_is_skipped_and_those_behind_it_count(records: list[RangeRecord], data: st.DataObject) -> None:
    torn = data.draw(st.integers(0, len(records) - 1))
    length = data.draw(st.integers(0, RECORD_BYTES - 1))
    pieces = [encoded(record) for record in records]
    pieces[torn] = pieces[torn][:length]
    found, done = parse_records(b"".join(pieces), size=SIZE)
    assert found == [record for number, record in enumerate(records) if number != torn]
    assert len(b"".join(pieces)) - done < RECORD_BYTES


@given(st.lists(RECORDS, min_size=1, max_size=8), st.data())
def test_a_damaged_record_is_skipped(records: list[RangeRecord], data: st.DataObject) -> None:
    journal = bytearray(b"".join(map(encoded, records)))
    at = data.draw(st.integers(0, len(journal) - 1))
    journal[at] ^= 1 << data.draw(st.integers(0, 7))
    found, _ = parse_records(bytes(journal), size=SIZE)
    assert found == [record for number, record in enumerate(records) if number != at // RECORD_BYTES]


@given(st.binary(max_size=300))
def test_noise_is_no_record(noise: bytes) -> None:
    assert parse_records(noise, size=SIZE)[0] == []


def test_what_reaches_beyond_the_shard_is_no_record() -> None:
    assert parse_records(encoded(RangeRecord(0, SIZE + 1, 0)), size=SIZE)[0] == []


@given(st.lists(RECORDS, max_size=30), RECORDS)
def test_the_set_is_that_of_its_bytes(records: list[RangeRecord], asked: RangeRecord) -> None:
    present, model = PresentRanges(), set[int]()
    for record in records:
        present.add(record.start, record.end)
        model |= set(range(record.start, record.end))
    runs = list(present)
    assert {byte for start, end in runs for byte in range(start, end)} == model
    assert all(end < start for (_, end), (start, _) in pairwise(runs))
    assert present.covers(asked.start, asked.end) == set(range(asked.start, asked.end)).issubset(model)


@given(st.lists(RECORDS, max_size=30), st.lists(RECORDS, max_size=30))
def test_many_at_once_are_the_same_as_one_by_one(before: list[RangeRecord], more: list[RangeRecord]) -> None:
    one_by_one, at_once = PresentRanges(), PresentRanges()
    for record in before + more:
        one_by_one.add(record.start, record.end)
    with patch.object(range_journal, "_FEW", 0):
        at_once.update((record.start, record.end) for record in before)
        at_once.update((record.start, record.end) for record in more)
    assert list(at_once) == list(one_by_one)


def test_noise_is_not_digested_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    monkeypatch.setattr(range_journal, "_digest", lambda journal, at: places.append(at) or 0)
    record = encoded(RangeRecord(0, SIZE - 1, 1))
    found, done = parse_records(bytes(100_000) + record + b"\xff" * 100_000, size=SIZE)
    assert found == []
    assert places == [100_000]
    assert done == len(record) + 200_000 - RECORD_BYTES + 1


@given(st.lists(RECORDS, min_size=1, max_size=4), st.binary(max_size=47))
def test_a_journal_names_its_shards_size(records: list[RangeRecord], torn: bytes) -> None:
    journal = b"".join(map(encoded, records))
    assert find_size(bytes(500) + journal + torn) == SIZE
    assert find_size(torn) is None
    assert parse_records(journal, size=SIZE + 1)[0] == []
