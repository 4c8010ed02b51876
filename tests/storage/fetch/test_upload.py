from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    ServerError,
)
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.stores import MemoryStore
from concurrent_loader.storage.testing.faults.fault_store import Fail, Fault, FaultStore, Wait, in_order


class Clock:
    """Time that passes only by pauses."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


def an_uploader(
    faults: Sequence[Fault | None], retry: RetryPolicy | None = None
) -> tuple[Uploader, MemoryStore, Clock]:
    memory = MemoryStore(f"memory://upload-{uuid4()}")
    clock = Clock()
    store = FaultStore(memory, in_order(faults, operation="put"))
    return (
        Uploader(store=store, retry=retry or RetryPolicy(), clock=clock, sleep=clock.sleep, rng=lambda: 0.5),
        memory,
        clock,
    )


async def test_insists() -> None:
    uploader, memory, clock = an_uploader([Fail(ConnectionFailed), Fail(ServerError)])
    await uploader.put_once("key", b"data")
    assert (await memory.get("key")).data == b"data"
    assert clock.now_s == pytest.approx(0.05 + 0.1)


async def test_put_replaces_and_survives_a_lost_answer() -> None:
    uploader, memory, _ = an_uploader([Fail(ConnectionFailed, after=True), Fail(ServerError)])
    await memory.put("key", b"older")
    await uploader.put("key", b"data")
    assert (await memory.get("key")).data == b"data"


async def test_gives_up_and_says_how_often() -> None:
    uploader, memory, _ = an_uploader([Fail(ServerError)] * 9, RetryPolicy(max_attempts=3))
    with pytest.raises(ServerError) as caught:
        await uploader.put_once("key", b"data")
    assert caught.value.attempts == 3
    assert [meta async for meta in memory.list()] == []


async def test_does_not_insist_where_it_cannot_help() -> None:
    uploader, _, _ = an_uploader([Fail(AccessDenied)])
    with pytest.raises(AccessDenied) as caught:
        await uploader.put_once("key", b"data")
    assert caught.value.attempts == 1


async def test_an_object_of_somebody_else_stays() -> None:
    uploader, memory, _ = an_uploader([])
    await memory.put("key", b"data")
    with pytest.raises(AlreadyExists):
        await uploader.put_once("key", b"data")  # equal bytes do not make it ours


async def test_an_object_whose_answer_was_lost_is_ours() -> None:
    uploader, memory, _ = an_uploader([Fail(ConnectionFailed, after=True)])
    await uploader.put_once("key", b"data")
    assert (await memory.get("key")).data == b"data"


@pytest.mark.parametrize("data", [b"data", b""])
async def test_an_object_of_whose_upload_every_answer_is_an_error_is_ours(data: bytes) -> None:
    faults = [Fail(ServerError, after=True), Fail(ServerError), Fail(ServerError)]
    uploader, memory, _ = an_uploader(faults, RetryPolicy(max_attempts=3))
    await uploader.put_once("key", data)
    assert (await memory.get("key")).data == data


async def test_an_object_of_somebody_else_is_not_ours_because_every_upload_failed() -> None:
    uploader, memory, _ = an_uploader([Fail(ServerError)] * 3, RetryPolicy(max_attempts=3))
    await memory.put("key", b"other")
    with pytest.raises(ServerError) as caught:
        await uploader.put_once("key", b"data")
    assert "unknown" not in str(caught.value)


async def test_says_that_nobody_knows_whether_an_upload_arrived() -> None:
    memory = MemoryStore(f"memory://upload-{uuid4()}")
    clock = Clock()
    store = FaultStore(memory, lambda _: (Fail(ServerError),))
    policy = RetryPolicy(max_attempts=2)
    uploader = Uploader(store=store, retry=policy, clock=clock, sleep=clock.sleep, rng=lambda: 0.5)
    with pytest.raises(ServerError, match="whether the object was written is unknown, because reading it failed"):
        await uploader.put_once("key", b"data")


async def test_somebody_else_was_quicker_while_ours_failed() -> None:
    uploader, memory, _ = an_uploader([Fail(ConnectionFailed)])
    await memory.put("key", b"other")
    with pytest.raises(AlreadyExists):
        await uploader.put_once("key", b"data")
    assert (await memory.get("key")).data == b"other"


async def test_hanging_uploads_end() -> None:
    never = asyncio.Event()
    policy = RetryPolicy(max_attempts=2, first_byte_s=0.01, min_bytes_per_s=1e9)
    uploader, _, _ = an_uploader([Wait(never.wait)] * 2, policy)
    with pytest.raises(DeadlineExceeded) as caught:
        await uploader.put_once("key", b"data")
    assert caught.value.attempts == 2


class TestContentAddressed:
    async def test_what_is_there_stays_untouched(self) -> None:
        uploader, memory, _ = an_uploader([])
        before = await memory.put("shards/x", b"data")
        await uploader.put_content_addressed("shards/x", b"data")
        assert await memory.head("shards/x") == before

    async def test_a_stump_is_replaced(self) -> None:
        uploader, memory, _ = an_uploader([])
        await memory.put("shards/x", b"da")
        await uploader.put_content_addressed("shards/x", b"data")
        assert (await memory.get("shards/x")).data == b"data"

    @pytest.mark.parametrize("piece_bytes", [1, 3, 8 << 20])
    @pytest.mark.parametrize("found", [b"dat\0", b"\0ata", b"data and more"])
    async def test_what_has_decayed_is_replaced(
        self, found: bytes, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("concurrent_loader.storage.fetch.upload._PIECE_BYTES", piece_bytes)
        uploader, memory, _ = an_uploader([])
        await memory.put("shards/x", found)
        await uploader.put_content_addressed("shards/x", b"data")
        assert (await memory.get("shards/x")).data == b"data"

    async def test_what_vanishes_meanwhile_is_written(self) -> None:
        memory = MemoryStore(f"memory://upload-{uuid4()}")
        store = FaultStore(memory, in_order([Fail(NotFound)], operation="get"))
        await memory.put("shards/x", b"dat\0")
        await Uploader(store=store).put_content_addressed("shards/x", b"data")
        assert (await memory.get("shards/x")).data == b"data"

    async def test_insists(self) -> None:
        uploader, memory, _ = an_uploader([Fail(ServerError), Fail(ServerError, after=True)])
        await uploader.put_content_addressed("shards/x", b"data")
        assert (await memory.get("shards/x")).data == b"data"
