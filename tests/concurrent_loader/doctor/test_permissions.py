from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from concurrent_loader.doctor.finding import Level
from concurrent_loader.doctor.permissions import PROBE_KEY, Permissions, advice_for, check_permissions
from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionFailed,
    CredentialsExpired,
    DeadlineExceeded,
    NotFound,
    ServerError,
    StorageError,
)
from concurrent_loader.storage.stores import MemoryStore, ObjectMeta


class Refusing(MemoryStore):
    """A store that refuses some calls, or never answers them."""

    def __init__(self, *, refused: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> None:
        super().__init__(f"memory://{uuid4().hex}")
        self.refused, self.silent = refused, silent

    async def meet(self, call: str) -> None:
        if call in self.silent:
            await asyncio.Event().wait()
        if call in self.refused:
            raise AccessDenied("access denied")

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectMeta]:
        await self.meet("list")
        async for meta in super().list(prefix):
            yield meta

    async def get_range(self, key, start, end, *, if_match=None):  # type: ignore[no-untyped-def]
        await self.meet("get")
        return await super().get_range(key, start, end, if_match=if_match)

    async def put(self, key, data):  # type: ignore[no-untyped-def]
        await self.meet("put")
        return await super().put(key, data)

    async def delete(self, key: str) -> None:
        await self.meet("delete")
        await super().delete(key)


async def tried(store: Refusing, *, num_objects: int = 1, put: bool = True, deadline_s: float = 5.0) -> Permissions:
    for number in range(num_objects):
        await MemoryStore.put(store, f"shards/{number}", b"x" * (number + 1))
    return await check_permissions(store, put=put, deadline_s=deadline_s)


def levels(found: Permissions) -> dict[str, str]:
    return {finding.name: finding.level.value for finding in found.findings}


async def test_all_is_allowed() -> None:
    store = Refusing()
    found = await tried(store, num_objects=3)
    assert levels(found) == {"list": "ok", "get": "ok", "put": "ok"}
    assert [meta.key for meta in found.objects] == ["shards/0", "shards/1", "shards/2"]
    assert PROBE_KEY not in [meta.key async for meta in MemoryStore.list(store)]


async def test_writing_is_tried_only_if_asked_for() -> None:
    store = Refusing(refused=("put", "delete"))
    assert levels(await tried(store, put=False)) == {"list": "ok", "get": "ok"}


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("list", {"list": "fail", "get": "warn", "put": "ok"}),
        ("get", {"list": "ok", "get": "fail", "put": "ok"}),
        ("put", {"list": "ok", "get": "ok", "put": "fail"}),
    ],
)
async def test_one_right_is_missing(refused: str, expected: dict[str, str]) -> None:
    found = await tried(Refusing(refused=(refused,)))
    assert levels(found) == expected
    (missing,) = [finding for finding in found.findings if finding.level is Level.FAIL]
    assert "grant s3:" in missing.advice


async def test_who_may_not_delete_leaves_one_object_behind() -> None:
    store = Refusing(refused=("delete",))
    for _ in range(2):
        found = await tried(store)
        assert levels(found)["put"] == "ok"
        assert "stays there" in found.findings[-1].message
    assert [meta.key async for meta in MemoryStore.list(store, "doctor")] == [PROBE_KEY]


async def test_an_empty_place_is_a_warning() -> None:
    assert levels(await tried(Refusing(), num_objects=0)) == {"list": "warn", "get": "warn", "put": "ok"}


@pytest.mark.parametrize("silent", ["list", "get", "put"])
async def test_a_silent_store_is_left_at_the_deadline(silent: str) -> None:
    found = await tried(Refusing(silent=(silent,)), deadline_s=0.05)
    assert levels(found)[silent] == "fail"
    assert next(f for f in found.findings if f.name == silent).facts == {"error": "DeadlineExceeded"}


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (CredentialsExpired("the session token has expired"), "new keys"),
        (AccessDenied("the store does not know the access key"), "check the access key"),
        (AccessDenied("this machine's clock is off"), "advice for clock"),
        (AccessDenied("the secret key does not fit the access key"), "secret key"),
        (AccessDenied("access denied"), "grant a:Right"),
        (NotFound("no such bucket"), "name of the bucket"),
        (ConfigurationError("the region is wrong"), "advice for region"),
        (ConnectionFailed("reset"), "advice for endpoint"),
        (DeadlineExceeded("late"), "advice for endpoint"),
        (ServerError("failed", got=500), "returned 500"),
    ],
)
def test_advice(error: StorageError, advice: str) -> None:
    assert advice in advice_for(error, right="a:Right")
