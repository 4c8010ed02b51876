"""Defines the async protocol that all stores implement.

A store is rooted at a URL (a bucket, a prefix in it, a folder); keys are relative to that root. Public methods check
arguments and results here, once. A backend implements the underscored methods, and translates its client's errors into
`concurrent_loader.storage.errors`, ``from`` the original. Stores do not retry, coalesce or set deadlines, because
`concurrent_loader.storage.fetch` does.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from concurrent_loader.storage.errors import (
    ConfigurationError,
    InvalidRange,
    NotFound,
    ProtocolViolation,
    StorageError,
    StoreClosed,
    StoreError,
    TruncatedBody,
)
from concurrent_loader.storage.redaction import redact_error
from concurrent_loader.storage.stores.body_stream import PIECE_BYTES, OpenRange, Pieces
from concurrent_loader.storage.stores.objects import Buffer, GetResult, ObjectMeta, check_etag, check_key

__all__ = ["Store"]

T = TypeVar("T")
_MAX_SIZE = 2**63 - 1  # largest possible object, in bytes


class Store(ABC):
    """Async store of objects by key, below one URL.

    Use a store from one event loop at a time. Clients are created lazily, in the process and event loop that first use
    them. Any number of calls may run concurrently. A store pickles as its options (see `open_store`), without a client.

    Cancelling a call releases its connection. A cancelled put leaves the old object or the new one, never a part. The
    server may still complete it later, even after another put of the same key, so write under a new key then.

    A request that fails because credentials have expired is repeated once with new credentials, if the backend can get
    them. This is not counted as a retry. Errors and their causes never show secrets.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import Store, open_store
        >>> async def write_and_list(store: Store):
        ...     async with store:
        ...         await store.put("cat/0.txt", b"a cat")
        ...         return [(meta.key, meta.size) async for meta in store.list("cat/")]
        >>> asyncio.run(write_and_list(open_store("memory://store-example")))
        [('cat/0.txt', 5)]
    """

    lists_at_once = False  # whether the first object of a listing comes only when all are known

    def __init__(self, url: str) -> None:
        self._url = url
        self._closed = False
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """URL of the root, without credentials and without a trailing slash."""
        return self._url

    @property
    def endpoint(self) -> str:
        """Identity of the server for shared request limits. Default: the URL's scheme and host (bucket)."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def streams(self) -> bool:
        """Whether `open_range` returns before the whole body has arrived. If false, a range is a single piece."""
        return type(self)._stream is not Store._stream

    @property
    def skips(self) -> bool:
        """Whether ``list(after=…)`` saves requests. If false, the store lists from the beginning."""
        return type(self)._list_after is not Store._list_after

    def on_fresh_connections(self) -> Store:
        """Returns the same store with a new connection for each request, for retries after a connection failure.

        Closing this store closes the returned store as well. A store without connections returns itself.

        Raises:
            StoreClosed: This store is closed.
        """
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it does not define __reduce__")

    # -- public protocol -------------------------------------------------------------------------------------------

    async def get(self, key: str, *, if_match: str | None = None) -> GetResult:
        """Fetches a whole object.

        Args:
            key: Key of the object.
            if_match: Expected ETag. Backends without ETags ignore it. Default: any ETag.

        Raises:
            NotFound: The key does not exist.
            ObjectChanged: The object's ETag is not ``if_match``.
            TransientError: The request failed, and a retry may succeed.
        """
        self._check(key)
        result = await self._call_with_renewal(lambda: self._get(key, None, if_match))
        self._check_meta(result.meta)
        if len(result.data) != result.meta.size:
            raise TruncatedBody(
                "the body is not as long as the object", url=self.url, key=key, expected=result.meta.size,
                got=len(result.data),
            )  # fmt: skip
        return result

    async def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> GetResult:
        """Fetches exactly the bytes ``start`` (included) to ``end`` (excluded).

        A zero-length range returns no bytes. It still requests the metadata, so a missing key is an error.

        Raises:
            InvalidRange: ``0 <= start <= end`` does not hold, or the object ends before ``end``.
            NotFound, ObjectChanged, TransientError: As for `get`.
        """
        self._check(key)
        if not 0 <= start <= end:
            raise InvalidRange("a range needs 0 <= start <= end", url=self.url, key=key, start=start, end=end)
        if start == end:
            meta = self._check_meta(await self._call_with_renewal(lambda: self._head(key)))
            check_etag(meta, if_match, url=self.url)
            if start > meta.size:
                raise InvalidRange(
                    "the object is shorter than the range", url=self.url, key=key, start=start, end=end, got=meta.size
                )
            return GetResult(memoryview(b""), meta)
        result = await self._call_with_renewal(lambda: self._get(key, (start, end), if_match))
        self._check_long_enough(self._check_meta(result.meta), start, end)
        self._check_body(len(result.data), key, start, end)
        return result

    async def open_range(
        self,
        key: str,
        start: int,
        end: int | None,
        *,
        if_match: str | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> OpenRange:
        """Requests a range, and returns as soon as the response begins.

        Args:
            key: Key of the object.
            start: Offset of the first byte. Must be 0 if ``end`` is None.
            end: Offset one past the last byte, greater than ``start``. None for the whole object.
            if_match: Expected ETag, as for `get`.
            piece_bytes: Approximate size of a piece in bytes. Default: 1 MiB. Without streaming, there is one piece.

        Returns:
            The response; close it in every case.

        Raises:
            StorageError: As for `get_range`. Failures in the body are raised while its pieces are read.
        """
        self._check(key)
        if not 0 <= start < (start + 1 if end is None else end) or (end is None and start):
            raise InvalidRange("an open range needs 0 <= start < end", url=self.url, key=key, start=start, end=end)
        span = None if end is None else (start, end)
        meta, pieces = await self._call_with_renewal(lambda: self._stream(key, span, if_match, piece_bytes))
        opened = OpenRange(meta, pieces, url=self.url, start=start, end=meta.size if end is None else end)
        try:
            self._check_long_enough(self._check_meta(meta), start, opened.end)
        except BaseException:
            await opened.aclose()
            raise
        return opened

    def _check_meta(self, meta: ObjectMeta) -> ObjectMeta:
        if not 0 <= meta.size <= _MAX_SIZE:
            raise ProtocolViolation("the object's size is impossible", url=self.url, key=meta.key, got=meta.size)
        return meta

    def _check_long_enough(self, meta: ObjectMeta, start: int, end: int) -> None:
        if meta.size < end:
            raise InvalidRange(
                "the object is shorter than the range", url=self.url, key=meta.key, start=start, end=end, got=meta.size
            )

    def _check_body(self, got: int, key: str, start: int, end: int) -> None:
        if got != end - start:
            error = TruncatedBody if got < end - start else ProtocolViolation
            raise error(
                "the body is not as long as the range", url=self.url, key=key, start=start, end=end,
                expected=end - start, got=got,
            )  # fmt: skip

    async def put(self, key: str, data: Buffer) -> ObjectMeta:
        """Writes an object atomically, and replaces an existing one. Large objects are uploaded in parts."""
        self._check(key)
        view = memoryview(data).cast("B")
        return await self._call_with_renewal(lambda: self._put(key, view, if_absent=False))

    async def put_if_absent(self, key: str, data: Buffer) -> ObjectMeta:
        """Writes an object unless the key exists. Of any number of concurrent callers, exactly one succeeds.

        Raises:
            AlreadyExists: The key exists.

        Note:
            After `ConnectionFailed`, the object may have been written. If a retry then raises `AlreadyExists`, compare
            the bytes to find out which caller wrote them.
        """
        self._check(key)
        view = memoryview(data).cast("B")
        return await self._call_with_renewal(lambda: self._put(key, view, if_absent=True))

    async def copy_from(self, source: Store, source_key: str, key: str) -> bool:
        """Copies an object of another store on the server; returns False if this store cannot do that.

        Raises:
            NotFound: The source's key does not exist.
        """
        return False

    async def head(self, key: str) -> ObjectMeta:
        """Returns the metadata of an object.

        Raises:
            NotFound: The key does not exist.
        """
        self._check(key)
        return self._check_meta(await self._call_with_renewal(lambda: self._head(key)))

    async def list(
        self, prefix: str = "", *, after: str = "", on_error: Callable[[StorageError], None] | None = None
    ) -> AsyncIterator[ObjectMeta]:
        """Yields every object whose key starts with a prefix, in ascending order of the key's UTF-8 bytes.

        A prefix is plain text, not a folder: ``"a"`` lists ``"a/b"`` and ``"ab"``. Without a match, nothing is yielded.
        Folder markers (empty objects whose key ends with a slash, as S3 consoles create them) are omitted.

        Args:
            prefix: Start of the keys.
            after: Text, not necessarily a key: only greater keys are yielded. Default: all keys.
            on_error: Callback that receives one error for each entry that cannot be listed; the listing then continues.
                ``error.key`` is the entry's unmodified name, with a trailing slash for a folder. `NotFound` means a
                broken symbolic link. By default, broken links are omitted, and any other error is raised.

        Raises:
            StoreError: An object has an invalid key (``"a//b"``), and ``on_error`` is not given.
        """
        self._check_open()
        async for found in self._list_with_renewal(prefix, after):
            problem = found if isinstance(found, StorageError) else self._unnameable(found.key)
            if problem is None:
                yield self._check_meta(cast("ObjectMeta", found))
            elif on_error is not None:
                on_error(problem)
            elif not isinstance(problem, NotFound):
                raise problem

    def _unnameable(self, key: str) -> StorageError | None:
        try:
            check_key(key)
        except ConfigurationError as error:
            reason = StoreError(f"an object has an invalid key: {error.what}", url=self.url, key=key)
            reason.__cause__ = error
            return reason
        return None

    async def delete(self, key: str) -> None:
        """Deletes an object. A missing key is not an error, as in S3."""
        self._check(key)
        await self._call_with_renewal(lambda: self._delete(key))

    async def close(self) -> None:
        """Releases connections; further calls raise `StoreClosed`. Idempotent."""
        if not self._closed:
            self._closed = True
            # After a fork the connections belong to the parent.
            if self._pid in (None, os.getpid()):
                await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call_with_renewal(self, call: Callable[[], Awaitable[T]]) -> T:
        """Awaits ``call``; repeats it once if its credentials were rejected and new ones are available."""
        try:
            used = await self._active_credentials()
            try:
                return await call()
            except StorageError as error:
                if not await self._renew_credentials(used, error):
                    raise
            return await call()
        except StorageError as error:
            redact_error(error)
            raise

    async def _list_with_renewal(self, prefix: str, after: str) -> AsyncGenerator[ObjectMeta | StorageError, None]:
        """Lists; if credentials expire, lists again with new ones and continues after the last key."""
        last = b""
        renewed = False
        while True:
            used = None
            try:
                used = await self._active_credentials()
                async for found in self._list_after(prefix, after) if after else self._list(prefix):
                    place = (found.key or "").encode(errors="surrogateescape")
                    if not renewed or place > last:
                        last = place
                        yield found
                return
            except StorageError as error:
                if renewed or not await self._renew_credentials(used, error):
                    redact_error(error)
                    raise
                renewed = True

    # -- for backends ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        """Fetches a whole object or a non-empty span. May return fewer bytes if the object or body ends early."""

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        """Starts to fetch an object or a non-empty span in pieces. Default: a single piece."""
        result = await self._get(key, span, if_match)
        return result.meta, _one_piece(result.data)

    @abstractmethod
    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta: ...

    @abstractmethod
    async def _head(self, key: str) -> ObjectMeta: ...

    @abstractmethod
    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        """Yields objects in order; yields an error with its key for each entry that cannot be listed."""

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta | StorageError]:
        """Yields what `_list` yields after a text. Default: lists from the beginning."""
        start = after.encode(errors="surrogateescape")
        async for found in self._list(prefix):
            if (found.key or "").encode(errors="surrogateescape") > start:
                yield found

    @abstractmethod
    async def _delete(self, key: str) -> None: ...

    async def _active_credentials(self) -> Any:
        """Returns valid credentials, which are passed to `_renew_credentials` if a request is rejected."""
        return None

    async def _renew_credentials(self, used: Any, error: StorageError) -> bool:
        """Returns whether a rejected request should be repeated, because newer credentials are available."""
        return False

    async def _close(self) -> None:
        """Releases the backend's resources. Default: nothing."""

    def _check(self, key: str) -> None:
        self._check_open()
        check_key(key, url=self.url)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed", url=self.url)
        # Neither obstore's runtime nor aiohttp's connections survive a fork. Raise instead of hanging.
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise StoreClosed(
                "this store was first used before a fork; open it again in the child, or start workers by 'spawn' or "
                "'forkserver'", url=self.url,
            )  # fmt: skip


async def _one_piece(data: memoryview) -> AsyncGenerator[memoryview, None]:
    yield data
