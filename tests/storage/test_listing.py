from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import DeadlineExceeded, FormatError, ServerError, StorageError, StoreError
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest_plan import list_plans
from concurrent_loader.storage.listing import (
    Listing,
    Texts,
    decode_listing,
    encode_listing,
    list_objects,
    load_listing,
    save_listing,
)
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots
from concurrent_loader.storage.shards.manifest.tags import read_tags
from concurrent_loader.storage.shards.writing.records import Records
from concurrent_loader.storage.stores import LocalStore, MemoryStore, ObjectMeta
from concurrent_loader.storage.testing.faults.fault_store import Fail, FaultStore, Wait, in_order
from concurrent_loader.storage.virtual_time import run_in_virtual_time


def texts(values: list[str]) -> Texts:
    encoded = [value.encode() for value in values]
    return Texts(b"".join(encoded), np.cumsum([len(value) for value in encoded], dtype=np.int64))


def make(rows: list[tuple[str, int, str]]) -> Listing:
    return Listing(
        texts([key for key, _, _ in rows]),
        np.array([size for _, size, _ in rows], np.int64),
        texts([etag for _, _, etag in rows]),
    )


rows = st.lists(st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 2**62), st.text(max_size=40)), max_size=20)


@given(rows=rows, question=st.text(max_size=20))
def test_a_listing_comes_back_as_it_was(rows: list[tuple[str, int, str]], question: str) -> None:
    listing = make(rows)
    again = decode_listing(encode_listing(listing, question), question)
    assert again is not None
    assert list(zip(again.keys.tolist(), again.sizes.tolist(), again.etags.tolist(), strict=True)) == rows
    assert [again.keys[at] for at in range(len(again))] == [key for key, _, _ in rows]
    assert again.fingerprint == listing.fingerprint
    assert decode_listing(encode_listing(listing, question), question + "?") is None


@given(rows=rows, data=st.data())
def test_digests_come_back_and_do_not_change_the_fingerprint(
    rows: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    digests = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(rows), max_size=len(rows)))
    listing = replace(make(rows), digests=np.array(digests, np.uint64))
    again = decode_listing(encode_listing(listing, ""), "")
    assert again is not None
    assert again.digests is not None
    assert again.digests.tolist() == digests
    assert again.fingerprint == make(rows).fingerprint
    assert [again.entry(at, "s3://b").content or 0 for at in range(len(rows))] == digests


def test_digests_of_objects_that_have_changed_are_dropped() -> None:
    older = replace(make([("a", 1, "x"), ("b", 2, "y"), ("c", 3, "")]), digests=np.array([7, 8, 9], np.uint64))
    newer = make([("a", 1, "x"), ("aa", 1, "x"), ("b", 2, "z"), ("c", 3, "")])
    assert newer.with_digests_of(older).digests.tolist() == [7, 0, 0, 0]  # type: ignore[union-attr]
    assert newer.with_digests_of(newer) is newer


@given(rows=rows, data=st.data())
def test_a_damaged_listing_is_an_error(rows: list[tuple[str, int, str]], data: st.DataObject) -> None:
    whole = encode_listing(make(rows), "all")
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError):
        decode_listing(whole[:cut], "all")
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        decode_listing(bytes(flipped), "all")


def test_the_fingerprint_covers_keys_sizes_and_etags() -> None:
    base = [("a", 1, "x"), ("b", 2, "y")]
    others = [
        [("a", 1, "x")],
        [("a", 1, "x"), ("c", 2, "y")],
        [("a", 1, "x"), ("b", 3, "y")],
        [("a", 1, "x"), ("b", 2, "z")],
        [("ab", 1, "x"), ("", 2, "y")],
    ]
    prints = {make(each).fingerprint for each in (base, *others)}
    assert len(prints) == 6
    assert all(0 <= fingerprint < 2**63 for fingerprint in prints)


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept"
    assert load_listing(path, "all") is None
    save_listing(path, make([("a", 1, "x")]), "all")
    found = load_listing(path, "all")
    assert found is not None
    assert found.keys.tolist() == ["a"]
    assert load_listing(path, "some") is None
    assert os.listdir(path.parent) == ["kept"]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"something else")
    with pytest.raises(FormatError):
        load_listing(path, "all")


# -- from a store ------------------------------------------------------------------------------------------------------


async def listed(*faults: Fail | Wait | None, max_attempts: int = 3) -> tuple[Listing, FaultStore]:
    store = FaultStore(MemoryStore("memory://listing"), in_order(faults, operation="list"))
    for key in ("b/2.jpg", "a/1.jpg", "a/notes.txt"):
        await store.put(key, key.encode())
    loop = asyncio.get_running_loop()
    policy = RetryPolicy(max_attempts=max_attempts)
    engine = FetchEngine(store, retry=policy, clock=loop.time)
    return await list_objects(engine, lambda key: key.endswith(".jpg")), store


def test_objects_come_in_the_order_of_their_keys() -> None:
    listing, _ = run_in_virtual_time(listed())
    assert listing.keys.tolist() == ["a/1.jpg", "b/2.jpg"]
    assert listing.sizes.tolist() == [7, 7]
    assert all(listing.etags.tolist())
    assert listing.num_bytes == 14


def test_a_listing_that_fails_begins_again() -> None:
    listing, store = run_in_virtual_time(listed(Fail(ServerError), Fail(ServerError, after=True)))
    assert listing.keys.tolist() == ["a/1.jpg", "b/2.jpg"]
    assert [call.operation for call in store.calls].count("list") == 3


def test_a_listing_that_never_succeeds_is_an_error() -> None:
    with pytest.raises(ServerError) as caught:
        run_in_virtual_time(listed(*[Fail(ServerError)] * 3))
    assert caught.value.attempts == 3
    assert caught.value.url == "memory://listing"


def test_a_page_that_does_not_come_is_given_up() -> None:
    never = Wait(lambda: asyncio.get_running_loop().create_future())
    listing, _ = run_in_virtual_time(listed(never))
    assert len(listing) == 2
    with pytest.raises(DeadlineExceeded, match="next page"):
        run_in_virtual_time(listed(*[never] * 3))


async def test_only_wanted_names_that_cannot_be_read_matter(tmp_path: Path) -> None:
    for name in ("1.jpg", "new\nline.txt", ".hid\nden.jpg"):
        (tmp_path / name).write_bytes(b"x")

    def wanted(key: str) -> bool:
        return key.endswith(".jpg") and not key.startswith(".")

    engine = FetchEngine(LocalStore(tmp_path))
    assert len(await list_objects(engine, wanted)) == 1
    (tmp_path / "new\nline.jpg").write_bytes(b"x")
    with pytest.raises(StoreError, match="invalid key"):
        await list_objects(engine, wanted)
    problems: list[StorageError] = []
    assert (await list_objects(engine, wanted, problems)).keys.tolist() == ["1.jpg"]
    assert [problem.key for problem in problems] == ["new\nline.jpg"]


class FarStore(MemoryStore):
    """Lists 20,000 objects in pages of a second each: longer than any single request may take."""

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        return self._pages(prefix)

    async def _pages(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        for number in range(20_000):
            if number % 1000 == 0:
                await asyncio.sleep(1)
            name = f"{number:010}.clm" if prefix == "manifests/" else f"a/{number:05}.jpg"
            yield ObjectMeta(f"{prefix}{name}", 1, None)


def test_a_listing_may_take_longer_than_a_request() -> None:
    async def listed_by_all() -> list[int]:
        store = FarStore("memory://far")
        engine = FetchEngine(store)
        found = [len(await list_metas(engine, "shards/")), (await ImageFolder(store).scan()).num_samples]
        records = Records(engine, "run")
        await records.open()
        found += [len(records.keys) - 1, len(await list_plans(engine))]
        return [*found, len(await list_snapshots(engine)), len(await read_tags(engine))]

    assert run_in_virtual_time(listed_by_all()) == [20_000, 20_000, 20_000, 0, 19_999, 0]


@pytest.mark.parametrize("seconds", [100, 1000])
def test_a_store_that_lists_all_at_once_has_the_time_of_a_call(seconds: int) -> None:
    class AtOnce(MemoryStore):
        lists_at_once = True

        async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
            await asyncio.sleep(seconds)
            yield ObjectMeta(f"{prefix}x", 1, None)

    async def listed() -> int:
        return len(await list_metas(FetchEngine(AtOnce("memory://x"), retry=RetryPolicy(max_attempts=2)), ""))

    if seconds < RetryPolicy().deadline_s:
        assert run_in_virtual_time(listed()) == 1
    else:
        with pytest.raises(DeadlineExceeded):
            run_in_virtual_time(listed())


def test_a_dead_store_is_given_up_at_the_deadline() -> None:
    class Dead(MemoryStore):
        async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
            await asyncio.get_running_loop().create_future()
            yield ObjectMeta(f"{prefix}x", 1, None)

    async def given_up_after_s() -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        with pytest.raises(DeadlineExceeded):
            await list_metas(FetchEngine(Dead("memory://dead")), "")
        return clock() - began

    policy = RetryPolicy()
    page_s = policy.first_byte_s + policy.stall_window_s
    assert policy.deadline_s - page_s < run_in_virtual_time(given_up_after_s()) < policy.deadline_s + page_s
