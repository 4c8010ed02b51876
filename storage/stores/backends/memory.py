"""Stores objects in this process's memory: the reference for tests of other stores, and the store for examples."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from concurrent_loader.storage.errors import AlreadyExists, NotFound
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, check_etag
from concurrent_loader.storage.stores.store import Store

__all__ = ["MemoryStore"]

_LIST_PAGE_KEYS = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    last_modified: datetime


# One dictionary per name and process. Single dictionary operations are atomic, so threads need no lock.
_buckets: dict[str, dict[str, _Object]] = {}
_versions = itertools.count(1)


class MemoryStore(Store):
    """``memory://name/prefix``: all stores with the same name in a process share objects.

    Objects live until they are deleted or the process ends. An unpickled store uses the dictionary of its
    new process.
    """

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)
        super().__init__(self._location.url)
        self._bucket = _buckets.setdefault(self._location.bucket, {})

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url,)

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        found = await self._find(key)
        meta = _meta(key, found)
        check_etag(meta, if_match, url=self.url)
        data = memoryview(found.data)
        return GetResult(data if span is None else data[slice(*span)], meta)

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        await asyncio.sleep(0)
        written = _Object(bytes(data), f'"{next(_versions)}"', datetime.now(UTC))
        full = self._location.full_key(key)
        if not if_absent:
            self._bucket[full] = written
        elif self._bucket.setdefault(full, written) is not written:
            raise AlreadyExists("the key exists", url=self.url, key=key)
        return _meta(key, written)

    async def _head(self, key: str) -> ObjectMeta:
        return _meta(key, await self._find(key))

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        return self._list_after(prefix, "")

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta]:
        full_prefix = self._location.full_key(prefix)
        last = self._location.full_key(after).encode() if after else b""
        while True:
            await asyncio.sleep(0)
            # Sorted again for every page, so that changes between pages are visible, as in S3.
            keys = sorted(key.encode() for key in tuple(self._bucket) if key.startswith(full_prefix))
            page = keys[bisect.bisect_right(keys, last) :][:_LIST_PAGE_KEYS]
            for encoded in page:
                full = encoded.decode()
                if (found := self._bucket.get(full)) is not None:
                    yield _meta(self._location.relative_key(full), found)
            if len(page) < _LIST_PAGE_KEYS:
                return
            last = page[-1]

    async def _delete(self, key: str) -> None:
        await asyncio.sleep(0)
        self._bucket.pop(self._location.full_key(key), None)

    async def _find(self, key: str) -> _Object:
        await asyncio.sleep(0)  # a cancellation point, as in every other store
        found = self._bucket.get(self._location.full_key(key))
        if found is None:
            raise NotFound("no such key", url=self.url, key=key)
        return found


def _meta(key: str, found: _Object) -> ObjectMeta:
    return ObjectMeta(key, len(found.data), found.etag, found.last_modified)
