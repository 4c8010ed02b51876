"""Whatever fsspec can reach: the lane for everything that the faster stores do not speak.

fsspec's calls block, so they run on threads of the store's own. A read asks for the object's facts first, because
fsspec's reads do not report them: two requests for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

import fsspec
import fsspec.core
from aiobotocore.session import AioSession

from concurrent_loader.storage.checked_url import check_url
from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    DeadlineExceeded,
    NotFound,
    StorageError,
    StoreError,
    TruncatedBody,
)
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.redaction import silence_secrets
from concurrent_loader.storage.secret import hide, reveal
from concurrent_loader.storage.stores.aws.aiobotocore_credentials import AiobotocoreCredentials
from concurrent_loader.storage.stores.aws.botocore_chain import use_cached_models
from concurrent_loader.storage.stores.aws.credential_provider import ActiveCredentials, CredentialProvider
from concurrent_loader.storage.stores.aws.settings import AwsSettings
from concurrent_loader.storage.stores.backends.fsspec_s3 import s3fs_options
from concurrent_loader.storage.stores.connection_errors import connection_error
from concurrent_loader.storage.stores.error_mapping import NO_BUCKET, may_have_expired, refusal
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, check_etag, quoted_etag
from concurrent_loader.storage.stores.options import S3Options
from concurrent_loader.storage.stores.store import Store

__all__ = ["FsspecStore"]

ResultT = TypeVar("ResultT")
_NUM_THREADS = 32
_S3 = ("s3", "s3a")
_HTTP = ("http", "https")
# Where a write is visible whole or not at all by itself; elsewhere it goes to a second name first.
_ATOMIC = (*_S3, "memory", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "hf")
# Where fsspec's exclusive create is known, by test, to be exclusive; its default is "look first, then overwrite".
_EXCLUSIVE = (*_S3, "memory")
_IDENTITY_OF_S3FS = {"key", "secret", "token", "anon", "session", "username", "password"}
_UNFINISHED = ".unfinished-"
# fsspec's memory file system looks and writes in two steps; this makes them one for all stores of the process.
_memory_lock = threading.Lock()


class FsspecStore(Store):
    """Any fsspec URL, chained ones (``simplecache::https://…``) included.

    ``if_match`` is compared before and after a read with what the file system says of the file: its ETag, or its time
    and size. `put_if_absent` works on S3 and in memory; elsewhere fsspec has no exclusive create to rely on.

    Args:
        url: Anything that ``fsspec.core.url_to_fs`` takes.
        options: For S3 the common names (see `S3Options`) are translated for s3fs; all else goes to fsspec as it is.
    """

    lists_at_once = True  # fsspec's ``find`` is one call

    @hides_secrets
    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._given_url, self._given_options = check_url(url), hide(options or {})
        super().__init__(url.rstrip("/"))
        self._protocol = url.partition("://")[0].rpartition("::")[2].lower()
        self._known: S3Options | None = None
        self._part_bytes: int | None = None
        self._fs_options = self._given_options
        self._provider: CredentialProvider | None = None
        self._profile: str | None = None
        if self._protocol in _S3 and "::" not in url:
            self._fs_options, known = s3fs_options(self._given_options, url=self.url)
            self._known = known
            self._part_bytes, self._profile = known.num_part_bytes, known.profile
            if not known.anonymous and not _IDENTITY_OF_S3FS & set(self._fs_options):
                self._provider = CredentialProvider(known, url=self.url)
        self._making = threading.Lock()
        self._made: tuple[Any, str] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._lingering: dict[str, Future[ObjectMeta]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._given_url, self._given_options)

    # -- protocol --------------------------------------------------------------------------------------------------

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        def read() -> GetResult:
            meta = self._info(key)
            check_etag(meta, if_match, url=self.url)
            # One byte more than there should be: an object that has grown since must not be cut to its old size.
            start, end = (0, meta.size + 1) if span is None else (span[0], min(span[1], meta.size))
            fs, path = self._target(key)
            with self._translate_errors(key):
                data = fs.cat_file(path, start=start, end=end) if start < min(end, meta.size) else b""
            if if_match is not None:
                check_etag(self._info(key), if_match, url=self.url)
            return GetResult(memoryview(data), meta)

        return await asyncio.wrap_future(self._submit(read))

    async def _head(self, key: str) -> ObjectMeta:
        return await asyncio.wrap_future(self._submit(lambda: self._info(key)))

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        if any(segment.startswith(_UNFINISHED) for segment in key.split("/")):
            raise ConfigurationError(f"names that begin with {_UNFINISHED!r} are taken", url=self.url, key=key)
        if if_absent and self._protocol not in _EXCLUSIVE:
            raise ConfigurationError(
                f"put_if_absent needs an exclusive create, which fsspec does not promise for {self._protocol!r}; it "
                "works on s3, gs, az, memory and local stores",
                url=self.url,
                key=key,
            )
        await self._settle(key)
        future = self._submit(lambda: self._write(key, bytes(data), if_absent=if_absent))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # The thread goes on to the end of its request; what is put next under this key must come after it.
            if not future.done():
                self._lingering[key] = future
            raise

    async def _delete(self, key: str) -> None:
        def remove() -> None:
            fs, path = self._target(key)
            with self._translate_errors(key):
                fs.rm_file(path)

        await self._settle(key)
        try:
            await asyncio.wrap_future(self._submit(remove))
        except NotFound as error:
            if error.what == NO_BUCKET:
                raise

    async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        for meta in await asyncio.wrap_future(self._submit(lambda: self._find(prefix))):
            yield meta

    async def _close(self) -> None:
        self._made = None
        if self._threads is not None:
            threads, self._threads = self._threads, None
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)

    # -- on a thread -----------------------------------------------------------------------------------------------

    def _info(self, key: str) -> ObjectMeta:
        fs, path = self._target(key)
        with self._translate_errors(key):
            info = fs.info(path)
        if info.get("type") == "directory":
            raise NotFound("no such key: the path is a folder", url=self.url, key=key)
        return self._meta(key, info)

    def _write(self, key: str, data: bytes, *, if_absent: bool) -> ObjectMeta:
        fs, path = self._target(key)
        how: dict[str, Any] = {"chunksize": self._part_bytes} if self._part_bytes else {}
        with self._translate_errors(key, writing=True, exclusive=if_absent):
            if (self._protocol == "memory" or self._protocol not in _ATOMIC) and fs.isdir(path):
                # A drive's move would put the file into the folder; fsspec's memory would hide the file behind it.
                raise IsADirectoryError(path)
            if self._protocol not in _ATOMIC:
                self._write_then_move(fs, path, data)
            elif self._protocol == "memory":
                with _memory_lock:
                    fs.pipe_file(path, data, mode="create" if if_absent else "overwrite")
            else:
                fs.pipe_file(path, data, **({"mode": "create"} if if_absent else {}), **how)
        return self._info(key)

    @staticmethod
    def _write_then_move(fs: Any, path: str, data: bytes) -> None:
        folder = path.rpartition("/")[0]
        unfinished = f"{folder}/{_UNFINISHED}{secrets.token_hex(8)}"
        fs.makedirs(folder, exist_ok=True)
        try:
            fs.pipe_file(unfinished, data)
            fs.mv(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.rm_file(unfinished)
            raise

    def _find(self, prefix: str) -> list[ObjectMeta]:
        """Everything at once: fsspec has no pages."""
        fs, root = self._filesystem()
        folder, _, stem = prefix.rpartition("/")
        narrower = {"prefix": stem} if stem and self._protocol in _S3 else {}
        if self._protocol in _HTTP:  # fsspec takes a page that cannot be had for one without links
            narrower = {"on_error": "raise"}
        try:
            with self._translate_errors(None):
                found = fs.find(f"{root}/{folder}".rstrip("/"), detail=True, **narrower)
        except NotFound as error:
            if error.what == NO_BUCKET:
                raise
            return []
        start = root.strip("/") + "/" if root.strip("/") else ""
        metas = []
        for name, info in found.items():
            name = name.lstrip("/")
            if not name.startswith(start) or info.get("type") == "directory" or name.endswith("/"):
                continue
            key = name[len(start) :]
            if key.startswith(prefix) and not key.rpartition("/")[2].startswith(_UNFINISHED):
                metas.append(self._meta(key, info))
        return sorted(metas, key=lambda meta: meta.key.encode(errors="surrogateescape"))

    # -- file system -----------------------------------------------------------------------------------------------

    def _target(self, key: str) -> tuple[Any, str]:
        if self._protocol in _S3 and "?versionId=" in key:
            # s3fs takes it for a version of another key, and would answer with that one's bytes.
            raise ConfigurationError("s3fs cannot name a key with '?versionId=' in it", url=self.url, key=key)
        fs, root = self._filesystem()
        return fs, f"{root}/{key}"

    def _filesystem(self) -> tuple[Any, str]:
        with self._making:
            if self._made is None:
                silence_secrets()
                with self._translate_errors(None):
                    if self._known is not None:
                        AwsSettings.resolve(self._known, url=self.url)
                    # No instance and no listing from fsspec's caches: other writers' changes must show.
                    fs, root = fsspec.core.url_to_fs(
                        self._given_url,
                        **{"skip_instance_cache": True, "use_listings_cache": False, **self._session()},
                        **self._guarded(reveal(self._fs_options)),
                    )
                    if self._provider is not None:
                        # What s3fs does not know it hands to the session that it makes, which here it does not make.
                        AioSession(**fs.kwargs)
                if self._protocol in _S3:
                    fs.retries = 1  # `concurrent_loader.storage.fetch` owns retry
                self._made = fs, root.rstrip("/")
            return self._made

    def _guarded(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """For HTTP: the options, with a client that refuses redirects; what the user gives instead counts."""
        if self._protocol not in _HTTP:
            return dict(options)
        from concurrent_loader.storage.stores.backends.fsspec_http import HTTP_OPTIONS

        if "::" not in reveal(self._given_url):
            return {**HTTP_OPTIONS, **options}
        return {**options, self._protocol: {**HTTP_OPTIONS, **options.get(self._protocol, {})}}

    def _session(self) -> dict[str, Any]:
        """For s3fs: a session whose requests are signed with this store's keys, renewed as they are."""
        if self._provider is None:
            return {}
        session = use_cached_models(AioSession(profile=self._profile))
        session._credentials = AiobotocoreCredentials(self._provider)
        return {"session": session}

    async def _active_credentials(self) -> ActiveCredentials | None:
        if self._provider is None:
            return None
        if self._made is None:  # what the file system has against its options comes before the keys
            await asyncio.wrap_future(self._submit(self._filesystem))
        return await self._provider.get_async()

    async def _renew_credentials(self, used: Any, error: StorageError) -> bool:
        return (
            self._provider is not None
            and used is not None
            and may_have_expired(error)
            and await self._provider.renew(used)
        )

    def _submit(self, work: Callable[[], ResultT]) -> Future[ResultT]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="storage-fsspec")
        return self._threads.submit(work)

    async def _settle(self, key: str) -> None:
        """Waits for a cancelled write of this key that is still under way."""
        if (future := self._lingering.get(key)) is not None:
            await asyncio.wait([asyncio.shield(asyncio.wrap_future(future))])
            self._lingering.pop(key, None)

    def _meta(self, key: str, info: Mapping[str, Any]) -> ObjectMeta:
        size = info.get("size")
        if size is None:
            raise StoreError("the file system does not say how large the file is", url=self.url, key=key)
        modified = _modified(info)
        etag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
        if etag is None and modified is not None:
            etag = f'"{modified.timestamp():.6f}-{size}-{info.get("ino", 0)}"'
        return ObjectMeta(key, int(size), quoted_etag(etag), modified)

    @contextlib.contextmanager
    def _translate_errors(self, key: str | None, *, writing: bool = False, exclusive: bool = False) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            error.locate(url=self.url, key=key)
            raise
        except Exception as error:
            # Every file system raises classes of its own, whose packages may not even be installed here.
            raise _translate(error, writing=writing, exclusive=exclusive).locate(url=self.url, key=key) from error


def _modified(info: Mapping[str, Any]) -> datetime | None:
    for name in ("LastModified", "last_modified", "mtime", "updated", "modified", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
    return None


def _translate(error: Exception, *, writing: bool, exclusive: bool) -> StorageError:
    # s3fs, and so everything else on aiobotocore, hides the response one or two causes deep.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StorageError):  # from the source of the keys
            return type(cause)(cause.what, got=cause.got)
        if isinstance(cause, Exception) and type(cause).__module__.split(".")[0] in ("botocore", "aiobotocore"):
            from concurrent_loader.storage.stores.backends.aiobotocore_errors import translate

            return translate(cause, writing=exclusive)
        if type(cause).__module__.split(".")[0] == "aiohttp":
            return _translate_http(cause)
        if cause is not error and isinstance(cause, TimeoutError | ConnectionError):
            error = cause  # an unreachable server makes fsspec say that the file is not there
        cause = cause.__cause__ or cause.__context__
    match error:
        case FileExistsError():
            return (
                AlreadyExists("the key exists") if exclusive else StoreError("a file stands where a folder is needed")
            )
        case FileNotFoundError():
            return NotFound("no such key")
        case IsADirectoryError() | NotADirectoryError() if not writing:
            return NotFound("no such key")
        case PermissionError():
            return AccessDenied("access denied")
        case IsADirectoryError() | NotADirectoryError():
            return StoreError("one key cannot be a folder of another here")
        case TimeoutError():
            return DeadlineExceeded("the file system did not answer in time")
        case ConnectionError():
            return connection_error(error)
        case NotImplementedError():
            return ConfigurationError("this file system cannot do that")
        case ImportError():
            return ConfigurationError(str(error))
        case TypeError():
            return ConfigurationError("the file system does not take these options", got=str(error))
        case _:
            return StoreError("the file system failed", got=type(error).__name__)


def _translate_http(error: BaseException) -> StorageError:
    import aiohttp

    match error:
        case aiohttp.ClientResponseError() if error.status >= 300:
            return refusal(error.status, "", writing=False)
        case aiohttp.InvalidURL():
            return ConfigurationError("this is no URL")
        case TimeoutError():
            return DeadlineExceeded("the server did not answer in time")
        case aiohttp.ClientPayloadError():
            return TruncatedBody("the body ended early")
        case _:
            return connection_error(error)
