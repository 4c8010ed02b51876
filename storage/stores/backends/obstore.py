"""Google Cloud Storage and Azure by obstore, whose requests run outside the interpreter's lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import obstore
import obstore.store
from obstore.exceptions import BaseError

from concurrent_loader.storage.errors import ConfigurationError, NotFound, StorageError, StoreClosed
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.redaction import silence_secrets
from concurrent_loader.storage.secret import reveal
from concurrent_loader.storage.stores.backends.obstore_errors import is_panic, translate
from concurrent_loader.storage.stores.backends.obstore_redirects import (
    credential_hosts,
    environment_proxy,
    redirect_guard,
)
from concurrent_loader.storage.stores.body_stream import Pieces
from concurrent_loader.storage.stores.error_mapping import NO_BUCKET
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, quoted_etag
from concurrent_loader.storage.stores.options import AzureOptions, CloudOptions, GoogleOptions, parse_options
from concurrent_loader.storage.stores.store import Store

if TYPE_CHECKING:
    from obstore import GetOptions

__all__ = ["ObstoreStore", "options_for", "survives_fork"]

_OPTIONS: dict[str, type[CloudOptions]] = {
    "gs": GoogleOptions,
    "gcs": GoogleOptions,
    "az": AzureOptions,
    "azure": AzureOptions,
}
_LIST_PAGE_KEYS = 1000
# The process that started obstore's runtime. Its threads do not survive a fork: in the child every call would hang.
_runtime_pid: int | None = None


def survives_fork() -> bool:
    """Whether obstore can work in this process: not if a parent had used it before the fork."""
    return _runtime_pid in (None, os.getpid())


def options_for(scheme: str) -> type[CloudOptions] | None:
    """The options of a URL's scheme, or None where obstore does not speak it."""
    return _OPTIONS.get(scheme)


class ObstoreStore(Store):
    """``gs://bucket/prefix`` or ``az://container/prefix`` by obstore.

    Bytes come without a copy: the result's memoryview lies on obstore's own buffer. Not bound to an event loop.
    """

    @hides_secrets
    def __init__(self, url: str, options: CloudOptions | None = None) -> None:
        self._location = Location.parse(url)
        super().__init__(self._location.url)
        kind = options_for(self._location.scheme)
        if kind is None:
            raise ConfigurationError(f"obstore speaks {', '.join(_OPTIONS)}", url=self.url)
        self._options = options or parse_options(kind, {}, url=self.url)
        if not isinstance(self._options, kind):
            raise ConfigurationError("these options are another cloud's", url=self.url, expected=kind.__name__)
        self._made: Any = None
        self._idle_connections = self._options.max_connections
        self._fresh: ObstoreStore | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url, self._options)

    @property
    def endpoint(self) -> str:
        return f"{self._options.endpoint_url or self._location.scheme}/{self._location.bucket}"

    def on_fresh_connections(self) -> Store:
        self._check_open()
        if self._fresh is None:
            self._fresh = ObstoreStore(self._url, self._options)
            self._fresh._idle_connections = 0
        return self._fresh

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        with self._translate_errors(key, span):
            result = await self._request(key, span, if_match)
            data = await result.bytes_async()
        return GetResult(memoryview(data), _meta(key, result.meta))

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        with self._translate_errors(key, span):
            result = await self._request(key, span, if_match)
        return _meta(key, result.meta), self._pieces(key, span, result, piece_bytes)

    async def _pieces(
        self, key: str, span: tuple[int, int] | None, result: Any, piece_bytes: int
    ) -> AsyncGenerator[memoryview, None]:
        # Only obstore's own errors are translated: what the consumer of a piece raises is not the store's.
        with self._translate_errors(key, span):
            pieces = aiter(result.stream(min_chunk_size=piece_bytes))
        while True:
            with self._translate_errors(key, span):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield memoryview(piece)

    async def _request(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> Any:
        options: GetOptions = {}
        if span is not None:
            options["range"] = span
        if if_match is not None:
            options["if_match"] = if_match
        return await obstore.get_async(self._client(), self._location.full_key(key), options=options)

    async def _head(self, key: str) -> ObjectMeta:
        with self._translate_errors(key):
            return _meta(key, await obstore.head_async(self._client(), self._location.full_key(key)))

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        return self._list_after(prefix, "")

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta]:
        wanted = self._location.full_key(prefix)
        # obstore lists folders only: list the innermost one around the prefix, begin shortly before what is wanted,
        # and stop behind it.
        folder = wanted.rpartition("/")[0]
        offset = _shortly_before(wanted)
        if after:
            offset = max(offset or "", self._location.full_key(after), key=str.encode)
        with self._translate_errors(None):
            pages = obstore.list(self._client(), folder or None, offset=offset, chunk_size=_LIST_PAGE_KEYS)
        while True:
            with self._translate_errors(None):
                page = await anext(aiter(pages), None)
            if page is None:
                return
            for entry in page:
                full = entry["path"]
                if not full.startswith(wanted):
                    if full.encode() > wanted.encode():
                        return
                    continue
                if entry["size"] == 0 and await self._is_folder_marker(full):
                    continue
                yield _meta(self._location.relative_key(full), entry)

    async def _is_folder_marker(self, full_key: str) -> bool:
        """Whether a listed empty object is really called ``key/``: obstore cuts the slash off."""
        key = self._location.relative_key(full_key)
        try:
            await self._head(key)
        except NotFound:
            return True
        return False

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        in_parts = len(data) > self._options.num_multipart_bytes
        with self._translate_errors(key, writing=if_absent):
            result = await obstore.put_async(
                self._client(),
                self._location.full_key(key),
                data,
                mode="create" if if_absent else "overwrite",
                use_multipart=in_parts and not if_absent,
                chunk_size=self._options.part_bytes_for(len(data)),
                max_concurrency=self._options.parts_in_flight,
            )
        return ObjectMeta(key, len(data), result["e_tag"])

    async def _delete(self, key: str) -> None:
        try:
            with self._translate_errors(key):
                await obstore.delete_async(self._client(), self._location.full_key(key))
        except NotFound as error:
            if error.what == NO_BUCKET:
                raise

    # -- client ----------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        global _runtime_pid
        if self._made is None:
            if not survives_fork():
                raise StoreClosed(
                    "obstore was used before a fork and cannot work in the child: use client='fsspec', or start "
                    "workers by 'spawn' or 'forkserver'",
                    url=self.url,
                )
            _runtime_pid = os.getpid()
            self._made = self._make_client()
        return self._made

    def _make_client(self) -> Any:
        silence_secrets()
        options = self._options
        client_options = {
            # Retry and deadline belong to `concurrent_loader.storage.fetch`. obstore's own total timeout of 30 s would
            # end large healthy GETs; what stays is a limit on silence, for callers without a deadline.
            "timeout": timedelta(days=7),
            "connect_timeout": timedelta(seconds=options.connect_s),
            "read_timeout": timedelta(seconds=120),
            "allow_invalid_certificates": not options.verify_tls,
            "pool_max_idle_per_host": str(self._idle_connections),
        }
        kind: Any
        match options:
            case GoogleOptions():
                config, kind = _google_config(options), obstore.store.GCSStore
            case AzureOptions():
                config, kind = _azure_config(options), obstore.store.AzureStore
            case _:
                raise AssertionError(options)
        client_options |= self._guard(str(config.get("endpoint") or config.get("base_url") or ""))
        try:
            return kind(
                self._location.bucket,
                config=config,
                client_options=client_options,
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            )
        except (BaseError, ValueError) as error:
            raise ConfigurationError("obstore does not take these options", url=self.url) from error

    def _guard(self, endpoint: str) -> dict[str, Any]:
        """Returns the client options that keep requests at the endpoint."""
        options = self._options
        match options:
            case _ if endpoint:
                url = endpoint
            case AzureOptions():
                account = options.account_name or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
                url = f"https://{f'{account}.' if account else ''}blob.core.windows.net"
            case _:
                url = "https://storage.googleapis.com"
        allow_http = {"allow_http": url.startswith("http://")}
        if environment_proxy(url) is not None:
            return allow_http  # redirects are followed there
        return {**allow_http, **redirect_guard(url, others=credential_hosts(options))}

    async def _close(self) -> None:
        self._made = None
        if self._fresh is not None:
            await self._fresh.close()

    @contextlib.contextmanager
    def _translate_errors(
        self, key: str | None, span: tuple[int, int] | None = None, *, writing: bool = False
    ) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, BaseError | OSError | ValueError) and not is_panic(error):
                raise
            if isinstance(error, StorageError):
                raise
            start, end = span or (None, None)
            raise translate(error, writing=writing).locate(url=self.url, key=key, start=start, end=end) from error


def _google_config(options: GoogleOptions) -> dict[str, Any]:
    config = {
        "service_account": options.service_account,
        "service_account_key": reveal(options.service_account_key),
        "bearer_token": reveal(options.bearer_token),
        "base_url": options.endpoint_url,
        "skip_signature": options.anonymous or None,
    }
    return {name: value for name, value in config.items() if value is not None}


def _azure_config(options: AzureOptions) -> dict[str, Any]:
    config = {
        "account_name": options.account_name,
        "account_key": reveal(options.account_key),
        "sas_key": reveal(options.sas_key),
        "token": reveal(options.bearer_token),
        "tenant_id": options.tenant_id,
        "client_id": options.client_id,
        "client_secret": reveal(options.client_secret),
        "use_azure_cli": options.use_azure_cli or None,
        "endpoint": options.endpoint_url,
        "skip_signature": options.anonymous or None,
    }
    return {name: value for name, value in config.items() if value is not None}


def _meta(key: str, entry: Any) -> ObjectMeta:
    modified: datetime = entry["last_modified"]
    # obstore writes 1970 where the server said nothing.
    return ObjectMeta(key, entry["size"], quoted_etag(entry["e_tag"]), modified if modified.timestamp() else None)


def _shortly_before(prefix: str) -> str | None:
    """A plain key below every key with this prefix, and above most others in its folder, or None."""
    if not prefix or not (prefix[-1].isascii() and prefix[-1].isalnum()):
        return None
    before = chr(ord(prefix[-1]) - 1)
    # "~" is the last printable character: "img1" begins behind "img0~".
    return f"{prefix[:-1]}{before}~" if before.isalnum() else None
