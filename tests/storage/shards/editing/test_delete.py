"""`delete`: which rows, which snapshot, and what happens beside other writers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.storage import FetchEngine, Manifest, ShardWriter, delete, load_manifest, open_store
from concurrent_loader.storage.errors import (
    CommitConflict,
    ConfigurationError,
    NotFound,
    SchemaError,
    ServerError,
    StorageError,
)
from concurrent_loader.storage.shards.editing import commit_edit as committing
from concurrent_loader.storage.shards.editing.delete import _Deletion
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore

COLUMNS = {"data": "bytes", "label": "int64", "name": "str"}


def write(url: str, numbers: Any, **options: Any) -> None:
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", **options) as writer:
        for number in numbers:
            writer.write({"data": bytes([number % 256]) * 300, "label": number, "name": f"n{number % 3}"})


@pytest.fixture
def url() -> str:
    url = f"memory://delete-{uuid4().hex}"
    write(url, range(60))
    return url


def newest(url: str, snapshot: int | None = None) -> Manifest:
    return asyncio.run(load_manifest(open_store(url), snapshot))


def deleted(url: str) -> list[int]:
    rows = newest(url).deleted
    return [] if rows is None else np.flatnonzero(rows.contains(np.arange(1000))).tolist()


def keys(url: str) -> list[str]:
    async def listed() -> list[str]:
        return sorted([meta.key async for meta in open_store(url).list("")])

    return asyncio.run(listed())


def test_a_condition(url: str) -> None:
    before = keys(url)
    report = delete(url, where="label < 10 and name != 'n0'")
    assert (report.num_deleted, report.num_samples, report.snapshot) == (6, 54, 2)
    assert deleted(url) == [number for number in range(10) if number % 3]
    assert set(keys(url)) - set(before) == {"manifests/0000000002.clm"}
    assert newest(url).parent == newest(url, 1).digest
    assert newest(url).shards == newest(url, 1).shards


def test_numbers_are_those_of_the_snapshot(url: str) -> None:
    delete(url, ids=[0, 1])
    assert delete(url, ids=np.array([0, 57], np.uint8)).num_deleted == 2
    assert deleted(url) == [0, 1, 2, 59]
    assert delete(url, ids=range(2, 5), snapshot=1).num_deleted == 2
    assert deleted(url) == [0, 1, 2, 3, 4, 59]


def test_nothing_to_delete_commits_nothing(url: str) -> None:
    for _ in range(2):
        report = delete(url, ids=[5], snapshot=1)
        assert report.snapshot == 2
    assert report.num_deleted == 0
    assert delete(url, where="label > 1000").snapshot == 2
    assert delete(url, ids=[]).snapshot == 2


def test_a_dry_run_only_counts(url: str) -> None:
    report = delete(url, where="label < 10", dry_run=True)
    assert (report.num_deleted, report.num_samples, report.snapshot) == (10, 50, 1)
    assert deleted(url) == []


def test_a_repeated_token_does_nothing(url: str) -> None:
    assert delete(url, ids=[0], token="run 7").num_deleted == 1
    again = delete(url, ids=[0], token="run 7")
    assert (again.num_deleted, again.num_samples) == (0, 59)
    assert deleted(url) == [0]
    assert delete(url, ids=[0], token="run 8").num_deleted == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ConfigurationError),
        ({"where": "label == 1", "ids": [1]}, ConfigurationError),
        ({"where": "label == 1", "snapshot": 1}, ConfigurationError),
        ({"where": "label"}, ConfigurationError),
        ({"where": "data == 'x'"}, SchemaError),
        ({"ids": [60]}, ConfigurationError),
        ({"ids": [-1]}, ConfigurationError),
        ({"ids": [1.5]}, ConfigurationError),
        ({"ids": [[1]]}, ConfigurationError),
        ({"ids": [1], "snapshot": 9}, NotFound),
        ({"ids": [1], "token": ""}, ConfigurationError),
    ],
)
def test_wrong_arguments(url: str, arguments: dict[str, Any], error: type[StorageError]) -> None:
    with pytest.raises(error):
        delete(url, **arguments)
    assert newest(url).snapshot == 1


def test_no_dataset() -> None:
    with pytest.raises(NotFound, match="no dataset"):
        delete(f"memory://{uuid4().hex}", where="label == 1")
    with pytest.raises(NotFound):
        delete("/nowhere/at/all", where="label == 1")


def test_numbers_of_a_snapshot_with_other_shards_are_refused(url: str) -> None:
    write(url, range(5), overwrite=True)
    with pytest.raises(CommitConflict, match="look their numbers up again"):
        delete(url, ids=[1], snapshot=1)


def interrupted(url: str, times: int, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets something else commit between reading the newest snapshot and committing on top of it."""
    real = committing.commit
    left = [times]

    async def late(*args: Any, **options: Any) -> None:
        if left[0]:
            left[0] -= 1
            await asyncio.to_thread(meanwhile)
        await real(*args, **options)

    monkeypatch.setattr(committing, "commit", late)


@pytest.mark.parametrize("arguments", [{"where": "label == 7"}, {"ids": [7]}])
def test_a_conflict_is_resolved(url: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(url, 3, lambda: write(url, [7, 70], append=True), monkeypatch)
    report = delete(url, **arguments)
    assert report.snapshot == 5
    assert deleted(url) == ([7, 60, 62, 64] if "where" in arguments else [7])
    assert report.num_samples == newest(url).num_samples


def test_conflicts_without_end_are_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(url, 99, lambda: write(url, [1], append=True), monkeypatch)
    with pytest.raises(CommitConflict, match="20 times"):
        delete(url, ids=[0])


def test_a_lost_answer_of_the_commit(url: str) -> None:
    """The store applied the commit and failed: the repetition finds its own bytes."""

    seen: list[Call] = []

    def lost_commit(call: Call) -> list[Fault]:
        if call.operation != "put" or seen:
            return []
        seen.append(call)
        return [Fail(ServerError, after=True)]

    async def run() -> int:
        engine = FetchEngine(FaultStore(open_store(url), lost_commit))
        return (await _Deletion(engine, None, np.array([3]), None).run(token=None, dry_run=False)).num_deleted

    assert asyncio.run(run()) == 1
    assert seen
    assert deleted(url) == [3]


@pytest.mark.slow
def test_writers_and_deletions_at_once(url: str) -> None:
    """Two threads delete and one appends: nothing is lost, and the numbers of bundles and rows fit."""

    def appends() -> None:
        for number in range(6):
            writer = ShardWriter(url, columns=COLUMNS, shard_size="4KiB", append=True)
            writer.write({"data": b"x", "label": 100 + number, "name": "new"})
            while True:
                try:
                    writer.commit(rebase=True)
                    break
                except CommitConflict:
                    continue

    def deletes(numbers: range) -> None:
        for number in numbers:
            delete(url, where=f"label == {number}")

    calls: list[Callable[[], None]] = [appends, lambda: deletes(range(8)), lambda: deletes(range(30, 38))]
    with ThreadPoolExecutor() as threads:
        for running in [threads.submit(call) for call in calls]:
            running.result()
    assert deleted(url) == [*range(8), *range(30, 38)]
    manifest = newest(url)
    assert manifest.num_samples == 60 - 16 + 6
    report = asyncio.run(verify_dataset(FetchEngine(open_store(url)), manifest))
    assert (report.problems, report.num_samples) == ((), 50)
