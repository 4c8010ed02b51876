"""Where bytes live, as seen by everything above: the one async protocol that all stores speak.

A store is rooted at a URL (a bucket, a prefix in it, a folder); keys are relative to that root. Public methods check
arguments and results once, here; a backend implements the underscored ones and translates its vendor's errors into
`storage.errors`, ``from`` the original. No store retries, coalesces or sets deadlines: `storage.fetch` owns those.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from storage.errors import (
    ConfigurationError,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    StorageError,
    StoreClosed,
    StoreError,
    TruncatedBody,
)
from storage.secrets import presentable
from storage.stores.pieces import PIECE_BYTES, OpenRange, Pieces

__all__ = ["Buffer", "GetResult", "ObjectMeta", "Store", "check_key", "check_match"]

# Every backend hands out something that supports the buffer protocol and is contiguous bytes. (PEP 688's
# collections.abc.Buffer needs Python 3.12.)
Buffer = bytes | bytearray | memoryview

T = TypeVar("T")
_MAX_KEY_BYTES = 1024  # S3's limit
_MAX_SIZE = 2**63 - 1  # of an object, in bytes


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store says about an object without its bytes.

    Attributes:
        key: Relative to the store's root.
        size: In bytes.
        etag: Changes whenever the bytes do; opaque; None where the backend has nothing of the kind.
        last_modified: With a time zone; None where unknown.
    """

    key: str
    size: int
    etag: str | None = None
    last_modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class GetResult:
    """The bytes of an object or of a range of it.

    Attributes:
        data: Contiguous, read-only by convention, of exactly the length asked for.
        meta: Of the whole object (``meta.size`` is the object's size, not the range's).
    """

    data: memoryview
    meta: ObjectMeta


def check_key(key: str, *, url: str | None = None) -> str:
    """Returns the key if every backend can hold it.

    Raises:
        ConfigurationError: Empty, longer than 1,024 bytes, with a leading or trailing slash, an empty, ``.`` or ``..``
            segment, a control character, or not encodable as UTF-8.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError("a key must be valid Unicode", url=url, key=repr(key)) from error
    if not 0 < size <= _MAX_KEY_BYTES:
        raise ConfigurationError("a key has 1 to 1024 bytes", url=url, key=key[:80], got=size)
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise ConfigurationError("a key has no empty, '.' or '..' segment", url=url, key=key)
    if re.search(r"[\x00-\x1f\x7f]", key):
        raise ConfigurationError("a key has no control characters", url=url, key=key)
    return key


def check_match(meta: ObjectMeta, if_match: str | None, *, url: str) -> None:
    """Compares an object with the ETag that its reader pinned; for stores whose backend cannot do it.

    Raises:
        ObjectChanged: The object has an ETag, and it is another one.
    """
    if if_match is not None and meta.etag is not None and meta.etag != if_match:
        raise ObjectChanged("the object is another one now", url=url, key=meta.key, expected=if_match, got=meta.etag)


class Store(ABC):
    """Bytes under keys below one URL.

    Usable from one event loop at a time; clients are made lazily, in the process and loop that first use them. A store
    pickles as its options (see `storage.open_store`), never with a live client. Any number of calls may run
    concurrently. Cancelling a call releases its connection; a cancelled put leaves the old object or the new one,
    never a part. A server may carry out a cancelled put later, even after another put of the same key: who cancels
    writes on under a new key.

    What a store refuses because its credentials have expired is repeated once with new ones, where the backend can get
    new ones; that is not an attempt of the caller's. Errors, their causes included, show no secret.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._closed = False
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """The root, without credentials and without a trailing slash."""
        return self._url

    @property
    def endpoint(self) -> str:
        """What stores share that wear out the same server's patience: by default the URL's scheme and host (bucket)."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def streams(self) -> bool:
        """Whether `open_range` returns before the body is there; a range of any other store comes in one piece."""
        return type(self)._stream is not Store._stream

    def on_fresh_connections(self) -> Store:
        """The same store over connections of which each is made for one request: for those that a failure made suspect.

        It is closed together with this one. A store without connections returns itself.

        Raises:
            StoreClosed: This one is closed.
        """
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"{type(self).__name__} does not say how it is opened again, so it cannot be pickled")

    # -- public protocol -------------------------------------------------------------------------------------------

    async def get(self, key: str, *, if_match: str | None = None) -> GetResult:
        """Fetches a whole object.

        Raises:
            NotFound: No such key.
            ObjectChanged: ``if_match`` is given and is not the object's ETag (backends without ETags ignore it).
            TransientError: Worth another attempt.
        """
        self._check(key)
        result = await self._renewing(lambda: self._get(key, None, if_match))
        self._check_meta(result.meta)
        if len(result.data) != result.meta.size:
            raise TruncatedBody(
                "the body is not as long as the object",
                url=self.url,
                key=key,
                expected=result.meta.size,
                got=len(result.data),
            )
        return result

    async def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> GetResult:
        """Fetches exactly the bytes ``start`` (included) to ``end`` (excluded).

        A zero-length range gives no bytes; it is answered from the object's head, so a missing key is still an error.

        Raises:
            InvalidRange: ``0 <= start <= end`` does not hold, or the object ends before ``end``: never fewer bytes.
            NotFound, ObjectChanged, TransientError: As for `get`.
        """
        self._check(key)
        if not 0 <= start <= end:
            raise InvalidRange("a range needs 0 <= start <= end", url=self.url, key=key, start=start, end=end)
        if start == end:
            meta = self._check_meta(await self._renewing(lambda: self._head(key)))
            check_match(meta, if_match, url=self.url)
            if start > meta.size:
                raise InvalidRange("the object is shorter", url=self.url, key=key, start=start, end=end, got=meta.size)
            return GetResult(memoryview(b""), meta)
        result = await self._renewing(lambda: self._get(key, (start, end), if_match))
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
        """Asks for a range as `get_range` does, and returns when the answer begins instead of when it is whole.

        Args:
            key: The object.
            start: First byte; 0 without ``end``.
            end: One past the last byte, after ``start``; None for the whole object, however long it is.
            if_match: As for `get_range`.
            piece_bytes: How large the pieces are, roughly; a backend that cannot stream hands out a single one.

        Returns:
            The answer; close it in every case.

        Raises:
            As `get_range`; what goes wrong in the body is raised where its pieces are read.
        """
        self._check(key)
        if not 0 <= start < (start + 1 if end is None else end) or (end is None and start):
            raise InvalidRange("an open range needs 0 <= start < end", url=self.url, key=key, start=start, end=end)
        span = None if end is None else (start, end)
        meta, pieces = await self._renewing(lambda: self._stream(key, span, if_match, piece_bytes))
        opened = OpenRange(meta, pieces, url=self.url, start=start, end=meta.size if end is None else end)
        try:
            self._check_long_enough(self._check_meta(meta), start, opened.end)
        except BaseException:
            await opened.aclose()
            raise
        return opened

    def _check_meta(self, meta: ObjectMeta) -> ObjectMeta:
        if not 0 <= meta.size <= _MAX_SIZE:
            raise ProtocolViolation("no object has this size", url=self.url, key=meta.key, got=meta.size)
        return meta

    def _check_long_enough(self, meta: ObjectMeta, start: int, end: int) -> None:
        if meta.size < end:
            raise InvalidRange("the object is shorter", url=self.url, key=meta.key, start=start, end=end, got=meta.size)

    def _check_body(self, got: int, key: str, start: int, end: int) -> None:
        if got != end - start:
            error = TruncatedBody if got < end - start else ProtocolViolation
            raise error(
                "the body is not as long as the range",
                url=self.url,
                key=key,
                start=start,
                end=end,
                expected=end - start,
                got=got,
            )

    async def put(self, key: str, data: Buffer) -> ObjectMeta:
        """Writes an object, replacing what was there; visible whole or not at all. Large ones go up in parts."""
        self._check(key)
        view = memoryview(data).cast("B")
        return await self._renewing(lambda: self._put(key, view, if_absent=False))

    async def put_if_absent(self, key: str, data: Buffer) -> ObjectMeta:
        """Writes an object unless the key exists: of any number of concurrent callers exactly one succeeds.

        Raises:
            AlreadyExists: The key exists.

        Note:
            A `ConnectionFailed` leaves open whether the bytes arrived: whoever tries again and is told `AlreadyExists`
            must look whose bytes they are.
        """
        self._check(key)
        view = memoryview(data).cast("B")
        return await self._renewing(lambda: self._put(key, view, if_absent=True))

    async def head(self, key: str) -> ObjectMeta:
        """Says what is under a key, without its bytes.

        Raises:
            NotFound: No such key.
        """
        self._check(key)
        return self._check_meta(await self._renewing(lambda: self._head(key)))

    async def list(
        self, prefix: str = "", *, on_error: Callable[[StorageError], None] | None = None
    ) -> AsyncIterator[ObjectMeta]:
        """Yields every object whose key starts with a prefix, in ascending order of the key's UTF-8 bytes.

        A prefix is plain text, not a folder: ``"a"`` lists ``"a/b"`` and ``"ab"``. No match is no error. Folder markers
        (empty objects whose key ends with a slash, as S3 consoles make them) are left out.

        Args:
            prefix: Start of the keys.
            on_error: Function that is called with one error for each entry that cannot be listed; the listing then goes
                on. ``error.key`` is the entry's name as it is, and ends with a slash for a folder. `NotFound` stands
                for a symbolic link that leads nowhere. Without a function such links are left out, and any other
                entry of this kind is raised.

        Raises:
            StoreError: An object has a key that no call can name (``"a//b"``), and ``on_error`` is not given.
        """
        self._check_open()
        async for found in self._list_renewing(prefix):
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
            reason = StoreError(f"an object has a key that this store cannot name: {error.what}", url=self.url, key=key)
            reason.__cause__ = error
            return reason
        return None

    async def delete(self, key: str) -> None:
        """Removes an object; a missing key is no error (as in S3)."""
        self._check(key)
        await self._renewing(lambda: self._delete(key))

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

    async def _renewing(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls, and once more with new credentials if the first were refused and there are others."""
        try:
            used = await self._sign_with()
            try:
                return await call()
            except StorageError as error:
                if not await self._renew(used, error):
                    raise
            return await call()
        except StorageError as error:
            presentable(error)
            raise

    async def _list_renewing(self, prefix: str) -> AsyncGenerator[ObjectMeta | StorageError, None]:
        """Lists; where credentials end in the middle, lists again with new ones, and goes on behind the last key."""
        last = b""
        renewed = False
        while True:
            used = None
            try:
                used = await self._sign_with()
                async for found in self._list(prefix):
                    place = (found.key or "").encode(errors="surrogateescape")
                    if not renewed or place > last:
                        last = place
                        yield found
                return
            except StorageError as error:
                if renewed or not await self._renew(used, error):
                    presentable(error)
                    raise
                renewed = True

    # -- for backends ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        """Fetches a whole object, or a non-empty span of it; may return fewer bytes where the object or body ends."""

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        """Begins to fetch an object or a non-empty span of it piece by piece; by default it is one piece."""
        result = await self._get(key, span, if_match)
        return result.meta, _one_piece(result.data)

    @abstractmethod
    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta: ...

    @abstractmethod
    async def _head(self, key: str) -> ObjectMeta: ...

    @abstractmethod
    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        """Yields objects; and in its place an error, located by its key, for each entry that cannot be listed."""

    @abstractmethod
    async def _delete(self, key: str) -> None: ...

    async def _sign_with(self) -> Any:
        """Makes sure of credentials that hold; what it returns for them comes back in `_renew`."""
        return None

    async def _renew(self, used: Any, error: StorageError) -> bool:
        """Says whether a refused request is worth repeating: there are other credentials now than those it used."""
        return False

    async def _close(self) -> None:
        """Releases what the backend holds; nothing by default."""

    def _check(self, key: str) -> None:
        self._check_open()
        check_key(key, url=self.url)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed", url=self.url)
        # Neither obstore's runtime nor aiohttp's connections survive a fork: refuse instead of hanging.
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise StoreClosed(
                "this store was first used before a fork; open it again in the child, or start workers by 'spawn' or "
                "'forkserver'",
                url=self.url,
            )


async def _one_piece(data: memoryview) -> AsyncGenerator[memoryview, None]:
    yield data
