"""How many answers a data set's opening waits for, and what becomes of the request that was a guess."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import pytest

from concurrent_loader.storage.errors import FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.shards.manifest.manifest import Manifest, manifest_key
from concurrent_loader.storage.shards.manifest.snapshots import commit, load_manifest
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore, Script, Wait
from concurrent_loader.storage.virtual_time import run_in_virtual_time

ANSWER_S = 0.03


def slowly(call: Call) -> Sequence[Fault]:
    return (Wait(lambda: asyncio.sleep(ANSWER_S)),)


async def a_store(num_snapshots: int, script: Script = slowly) -> FaultStore:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    parent = None
    for number in range(1, num_snapshots + 1):
        manifest = Manifest(snapshot=number, schema={"x": "int64"}, parent=parent)
        await commit(inner, manifest)
        parent = manifest.digest
    return FaultStore(inner, script)


def opening(num_snapshots: int, snapshot: int | None = None) -> tuple[int, float, list[tuple[str, str]]]:
    """Snapshot that was found, seconds that it took, and what was asked."""

    async def open_it() -> tuple[int, float, list[tuple[str, str]]]:
        store = await a_store(num_snapshots)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        manifest = await load_manifest(FetchEngine(store, clock=loop.time), snapshot)
        taken_s = loop.time() - began_s
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return manifest.snapshot, taken_s, [(call.operation, call.key) for call in store.calls]

    return run_in_virtual_time(open_it())


def test_the_only_snapshot_takes_one_answer() -> None:
    found, taken_s, calls = opening(1)
    assert found == 1
    assert taken_s == pytest.approx(ANSWER_S)
    assert sorted(calls) == [("get", manifest_key(1)), ("list", "manifests/")]


def test_the_newest_of_several_takes_two() -> None:
    found, taken_s, calls = opening(3)
    assert found == 3
    assert taken_s == pytest.approx(2 * ANSWER_S)
    assert sorted(calls) == [("get", manifest_key(1)), ("get", manifest_key(3)), ("list", "manifests/")]


def test_a_snapshot_that_is_known_takes_one_and_no_list() -> None:
    assert opening(3, 2) == (2, pytest.approx(ANSWER_S), [("get", manifest_key(2))])


async def test_a_wrong_guess_is_ended_and_its_failure_says_nothing() -> None:
    def script(call: Call) -> Sequence[Fault]:
        if call.key == manifest_key(1):
            return (Wait(asyncio.Event().wait),)
        return ()

    store = await a_store(2, script)
    assert (await load_manifest(store)).snapshot == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await store._inner.delete(manifest_key(1))
    assert (await load_manifest(FaultStore(store._inner, lambda call: ()))).snapshot == 2


async def test_a_first_snapshot_that_is_committed_meanwhile_is_found() -> None:
    # The guess is answered before the commit, the list after it: there is a data set, and it is opened.
    guesses: list[Call] = []

    def script(call: Call) -> Sequence[Fault]:
        if call.key != manifest_key(1):
            return ()
        guesses.append(call)
        return (Fail(NotFound),) if len(guesses) == 1 else ()

    store = await a_store(1, script)
    assert (await load_manifest(store)).snapshot == 1
    assert len(guesses) == 2


async def test_a_list_that_fails_ends_the_guess() -> None:
    def script(call: Call) -> Sequence[Fault]:
        return (Fail(NotFound),) if call.operation == "list" else (Wait(asyncio.Event().wait),)

    with pytest.raises(NotFound):
        await load_manifest(await a_store(1, script))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("operation", ["list", "get"])
async def test_a_cancelled_opening_leaves_nothing(operation: str) -> None:
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    store = await a_store(1, lambda call: (Wait(wait),) if call.operation == operation else ())
    task = asyncio.create_task(load_manifest(store))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_too_large_a_manifest_costs_no_memory_where_bodies_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is known from the answer's headers: there is no other request, and the body is not read."""
    store = await a_store(1, lambda call: ())
    monkeypatch.setattr("concurrent_loader.storage.shards.manifest.snapshots.MAX_MANIFEST_BYTES", 100)
    engine = FetchEngine(store, retry=RetryPolicy(base_delay_s=1e-6, max_delay_s=1e-5))
    with pytest.raises(FormatError, match="too large") as caught:
        await load_manifest(engine, 1)
    assert caught.value.key == manifest_key(1)
    assert [call.operation for call in store.calls] == ["get"]
    assert (engine.stats.num_bytes, engine.stats.in_flight) == (0, 0)
