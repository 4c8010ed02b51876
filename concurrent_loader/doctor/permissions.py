"""Checks what the credentials may do with the bucket, by trying each operation once under a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionFailed,
    CredentialsExpired,
    DeadlineExceeded,
    NotFound,
    StorageError,
)
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["PROBE_KEY", "Permissions", "advice_for", "check_permissions"]

# One key for all runs, so that credentials that may write but not delete leave only one small object.
PROBE_KEY = "doctor-probe"
_MAX_LISTED = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Permissions:
    """Stores the results of the checks.

    Attributes:
        findings: Results of list, get and, if requested, put.
        objects: Up to a thousand objects of the dataset, in key order.
    """

    findings: tuple[Finding, ...]
    objects: tuple[ObjectMeta, ...]


async def check_permissions(store: Store, *, put: bool, deadline_s: float) -> Permissions:
    """Lists objects, gets one byte and, if ``put`` is set, puts and deletes a small object.

    Args:
        store: Store with the credentials to check.
        put: Whether to check writing.
        deadline_s: Deadline for each request in seconds.

    Cancellation: At any await; the small object may remain.
    """
    objects: list[ObjectMeta] = []

    async def fill() -> None:
        async for meta in store.list():
            objects.append(meta)
            if len(objects) >= _MAX_LISTED:
                return

    findings = [await _try("list", fill, "s3:ListBucket on the bucket, for this prefix", deadline_s)]
    if findings[0].level is Level.OK and not objects:
        findings[0] = Finding(
            "list", Level.WARN, "allowed, but there are no objects", "ingest a dataset, or check the prefix"
        )
    findings.append(await _try_get(store, objects, deadline_s))
    if put:
        findings.append(await _try_put(store, deadline_s))
    return Permissions(tuple(findings), tuple(objects))


async def _try_get(store: Store, objects: list[ObjectMeta], deadline_s: float) -> Finding:
    readable = next((meta for meta in objects if meta.size > 0), None)
    if readable is None:
        return Finding("get", Level.WARN, "not tried, because no object was listed", "see the advice for list")

    async def get() -> None:
        await store.get_range(readable.key, 0, 1)

    return await _try("get", get, "s3:GetObject on the objects, and kms:Decrypt if a key encrypts them", deadline_s)


async def _try_put(store: Store, deadline_s: float) -> Finding:
    async def put() -> None:
        await store.put(PROBE_KEY, b"written by concurrent-loader doctor; it may be deleted\n")

    async def delete() -> None:
        await store.delete(PROBE_KEY)

    tried = await _try("put", put, "s3:PutObject on the objects", deadline_s)
    if tried.level is not Level.OK:
        return tried
    deleted = await _try("delete", delete, "s3:DeleteObject", deadline_s)
    if deleted.level is not Level.OK:
        return Finding(
            "put",
            Level.OK,
            f"allowed; {PROBE_KEY} stays there, because deleting is not allowed",
            facts={"deleted": False},
        )
    return Finding("put", Level.OK, "allowed", facts={"deleted": True})


async def _try(name: str, call: Callable[[], Awaitable[None]], right: str, deadline_s: float) -> Finding:
    try:
        async with asyncio.timeout(deadline_s):
            await call()
    except TimeoutError:
        error: StorageError = DeadlineExceeded(f"no complete response within {deadline_s:.3g} s")
    except StorageError as refused:
        error = refused
    else:
        return Finding(name, Level.OK, "allowed")
    return Finding(name, Level.FAIL, error.what, advice_for(error, right=right), {"error": type(error).__name__})


def advice_for(error: StorageError, *, right: str) -> str:
    """Returns the next step after a request failed.

    Args:
        error: Error of the request.
        right: Permission that the request needs.
    """
    match error:
        case CredentialsExpired():
            return "get new keys: these keys have expired"
        case AccessDenied() if "does not know the access key" in error.what:
            return "check the access key and the endpoint, or get new keys"
        case AccessDenied() if "clock" in error.what or "secret key" in error.what:
            return "see the advice for clock" if "clock" in error.what else "check the secret key"
        case AccessDenied():
            return f"grant {right}"
        case NotFound():
            return "check the name of the bucket and the region"
        case ConfigurationError():
            return "see the advice for region and endpoint"
        case ConnectionFailed() | DeadlineExceeded():
            return "see the advice for endpoint"
        case _:
            return f"check that {right} is granted" + ("" if error.got is None else f"; the store returned {error.got}")
