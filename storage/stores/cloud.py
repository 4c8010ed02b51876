"""S3, Google Cloud Storage and Azure by obstore: the fast lane, whose requests run outside the interpreter's lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import obstore
import obstore.store
from obstore.exceptions import BaseError

from storage.errors import ConfigurationError, NotFound, StorageError, StoreClosed
from storage.hidden_arguments import hides_secrets
from storage.log_redaction import silence_secrets
from storage.secrets import reveal
from storage.stores.answers import NO_BUCKET, may_have_expired, wrong_region
from storage.stores.aws_settings import DEFAULT_REGION, AwsSettings
from storage.stores.credential_source import CredentialSource, Held
from storage.stores.location import Location
from storage.stores.obstore_words import Redirected, is_panic, translate
from storage.stores.options import AzureOptions, CloudOptions, GoogleOptions, S3Options, parse_options
from storage.stores.pieces import Pieces
from storage.stores.protocol import GetResult, ObjectMeta, Store
from storage.stores.redirect_guard import credential_hosts, environment_proxy, redirect_guard
from storage.stores.s3_listing import S3Listing

if TYPE_CHECKING:
    from obstore import GetOptions

    from storage.stores.s3 import S3Store

__all__ = ["CloudStore", "options_for", "survives_fork"]

_OPTIONS: dict[str, type[CloudOptions]] = {
    "s3": S3Options,
    "s3a": S3Options,
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


class CloudStore(Store):
    """``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix`` by obstore.

    Bytes come without a copy: the result's memoryview lies on obstore's own buffer. Not bound to an event loop.

    An S3 object larger than ``multipart_bytes`` goes up by `S3Store`, because obstore can neither give up a cancelled
    upload (measured with 0.12: its parts stay in the bucket) nor complete one on the condition that the key is free.
    `S3Listing` lists S3 buckets, because obstore bounds neither the pages of a listing nor their number.
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
        self._source = (
            CredentialSource(self._options, url=self.url)
            if isinstance(self._options, S3Options) and not self._options.anonymous
            else None
        )
        self._botocore: S3Store | None = None
        self._listing: S3Listing | None = None
        self._idle_connections = self._options.max_connections
        self._fresh: CloudStore | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url, self._options)

    @property
    def endpoint(self) -> str:
        return f"{self._options.endpoint_url or self._location.scheme}/{self._location.bucket}"

    def on_fresh_connections(self) -> Store:
        self._check_open()
        if self._fresh is None:
            self._fresh = CloudStore(self._url, self._options)
            self._fresh._source = self._source  # asked once for both
            self._fresh._idle_connections = 0
        return self._fresh

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        with self._translated(key, span):
            result = await self._request(key, span, if_match)
            data = await result.bytes_async()
        return GetResult(memoryview(data), _meta(key, result.meta))

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        with self._translated(key, span):
            result = await self._request(key, span, if_match)
        return _meta(key, result.meta), self._pieces(key, span, result, piece_bytes)

    async def _pieces(
        self, key: str, span: tuple[int, int] | None, result: Any, piece_bytes: int
    ) -> AsyncGenerator[memoryview, None]:
        # Only obstore's own errors are translated: what the consumer of a piece raises is not the store's.
        with self._translated(key, span):
            pieces = aiter(result.stream(min_chunk_size=piece_bytes))
        while True:
            with self._translated(key, span):
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
        return await obstore.get_async(self._client(), self._location.full(key), options=options)

    async def _head(self, key: str) -> ObjectMeta:
        with self._translated(key):
            return _meta(key, await obstore.head_async(self._client(), self._location.full(key)))

    async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        if not isinstance(self._options, S3Options):
            pages = self._list_folders(prefix)
        else:
            # obstore reads a page whole, however long a server makes it, and follows a repeated token for ever.
            pages = self._s3_listing(self._options).list(prefix)
        async with contextlib.aclosing(pages):
            async for meta in pages:
                yield meta

    async def _list_folders(self, prefix: str) -> AsyncGenerator[ObjectMeta, None]:
        wanted = self._location.full(prefix)
        # obstore lists folders only: list the innermost one around the prefix, begin shortly before what is wanted,
        # and stop behind it.
        folder = wanted.rpartition("/")[0]
        with self._translated(None):
            pages = obstore.list(
                self._client(), folder or None, offset=_shortly_before(wanted), chunk_size=_LIST_PAGE_KEYS
            )
        while True:
            with self._translated(None):
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
                yield _meta(self._location.relative(full), entry)

    async def _is_folder_marker(self, full_key: str) -> bool:
        """Whether a listed empty object is really called ``key/``: obstore cuts the slash off."""
        key = self._location.relative(full_key)
        try:
            await self._head(key)
        except NotFound:
            return True
        return False

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        in_parts = len(data) > self._options.num_multipart_bytes
        if in_parts and isinstance(self._options, S3Options):
            # Not its public method: that would renew credentials, too, and repeat what is repeated here.
            return await self._by_botocore()._put(key, data, if_absent=if_absent)
        with self._translated(key, writing=if_absent):
            result = await obstore.put_async(
                self._client(),
                self._location.full(key),
                data,
                mode="create" if if_absent else "overwrite",
                use_multipart=in_parts and not if_absent,
                chunk_size=self._options.part_bytes_for(len(data)),
                max_concurrency=self._options.parts_in_flight,
            )
        return ObjectMeta(key, len(data), result["e_tag"])

    async def _delete(self, key: str) -> None:
        try:
            with self._translated(key):
                await obstore.delete_async(self._client(), self._location.full(key))
        except NotFound as error:
            if error.what == NO_BUCKET:
                raise

    # -- client ----------------------------------------------------------------------------------------------------

    def _by_botocore(self) -> S3Store:
        """Returns the same store by the other client, for what obstore cannot do."""
        assert isinstance(self._options, S3Options)
        if self._botocore is None:
            # Imported where it is needed, as what asks for a bucket's region is: aiobotocore and aiohttp take a
            # quarter of a second to load, and most readers need neither.
            from storage.stores.s3 import S3Store

            self._botocore = S3Store(self._url, self._options, source=self._source)
        return self._botocore

    def _s3_listing(self, options: S3Options) -> S3Listing:
        self._client()  # refuses what is refused for every other call: a proxy of the environment, a fork
        if self._listing is None:
            keep_alive = self._idle_connections > 0
            self._listing = S3Listing(self._location, options, self._source, keep_alive=keep_alive)
        return self._listing

    def _client(self) -> Any:
        global _runtime_pid
        if self._made is None:
            if not survives_fork():
                other = "auto' or 'aiobotocore" if isinstance(self._options, S3Options) else "fsspec"
                raise StoreClosed(
                    f"obstore was used before a fork and cannot work in the child: use client='{other}', or start "
                    "workers by 'spawn' or 'forkserver'",
                    url=self.url,
                )
            _runtime_pid = os.getpid()
            self._made = self._make_client()
        return self._made

    async def _sign_with(self) -> Held | None:
        return None if self._source is None else await self._source.get_async()

    async def _renew(self, used: Any, error: StorageError) -> bool:
        # Not about credentials, but here an error may still ask the server where the bucket is.
        if isinstance(error, Redirected) and isinstance(self._options, S3Options):
            from storage.stores.bucket_region import bucket_region

            endpoint_url = AwsSettings.resolve(self._options, url=self.url).endpoint_url
            if (region := await bucket_region(self._location.bucket, endpoint_url=endpoint_url)) is not None:
                error.what = wrong_region(region).what
        if self._source is None or used is None or not may_have_expired(error) or not await self._source.renew(used):
            return False
        # obstore keeps keys until the date that it was told, and cannot be told another.
        self._made = None
        return True

    def _make_client(self) -> Any:
        silence_secrets()
        options = self._options
        client_options = {
            # Retry and deadline belong to `storage.fetch`. obstore's own total timeout of 30 s would end large healthy
            # GETs; what stays is a limit on silence, for callers without a deadline.
            "timeout": timedelta(days=7),
            "connect_timeout": timedelta(seconds=options.connect_s),
            "read_timeout": timedelta(seconds=120),
            "allow_invalid_certificates": not options.verify_tls,
            "pool_max_idle_per_host": str(self._idle_connections),
        }
        match options:
            case S3Options():
                config = self._s3_config(options, client_options)
                provider = self._source
                kind: Any = obstore.store.S3Store
            case GoogleOptions():
                config, provider, kind = _google_config(options), None, obstore.store.GCSStore
            case AzureOptions():
                config, provider, kind = _azure_config(options), None, obstore.store.AzureStore
            case _:
                raise AssertionError(options)
        client_options |= self._guard(str(config.get("endpoint") or config.get("base_url") or ""))
        try:
            return kind(
                self._location.bucket,
                config=config,
                client_options=client_options,
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
                **({"credential_provider": provider} if provider else {}),
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
        if environment_proxy(url) is None:
            return {**allow_http, **redirect_guard(url, others=credential_hosts(options))}
        if isinstance(options, S3Options):
            raise ConfigurationError(
                "behind a proxy obstore cannot be kept from following redirects: use client='aiobotocore', or name the "
                "endpoint's host in NO_PROXY",
                url=self.url,
            )
        return allow_http

    def _s3_config(self, options: S3Options, client_options: dict[str, Any]) -> dict[str, Any]:
        settings = AwsSettings.resolve(options, url=self.url)
        if options.verify_tls and (certificates := settings.certificates(url=self.url)) is not None:
            client_options["root_certificate"] = certificates
        address = settings.address(self._location.bucket, path_style=options.path_style)
        return {
            "region": settings.region or DEFAULT_REGION,
            "virtual_hosted_style_request": not address.path_style,
            "skip_signature": options.anonymous,
            # Both, because obstore lets the environment's AWS_ENDPOINT_URL_S3 win over the first.
            "endpoint": address.server_url,
            "aws_endpoint_url_s3": address.server_url,
        }

    async def _close(self) -> None:
        self._made = None
        for other in (self._botocore, self._fresh):
            if other is not None:
                await other.close()

    @contextlib.contextmanager
    def _translated(
        self, key: str | None, span: tuple[int, int] | None = None, *, writing: bool = False
    ) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, BaseError | OSError | ValueError) and not is_panic(error):
                raise
            if isinstance(error, StorageError):
                raise
            keyless = self._source.failure if self._source is not None else None
            start, end = span or (None, None)
            translated = type(keyless)(keyless.what, got=keyless.got) if keyless else translate(error, writing=writing)
            raise translated.locate(url=self.url, key=key, start=start, end=end) from error


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
    return ObjectMeta(key, entry["size"], entry["e_tag"], modified if modified.timestamp() else None)


def _shortly_before(prefix: str) -> str | None:
    """A plain key below every key with this prefix, and above most others in its folder, or None."""
    if not prefix or not (prefix[-1].isascii() and prefix[-1].isalnum()):
        return None
    before = chr(ord(prefix[-1]) - 1)
    # "~" is the last printable character: "img1" begins behind "img0~".
    return f"{prefix[:-1]}{before}~" if before.isalnum() else None
