"""S3 through aiobotocore, for servers behind a proxy and for comparison with the native client.

botocore trusts the server. This module therefore checks every response to a range against the request: its status,
Content-Range, Content-Length and the number of bytes received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
import botocore
import botocore.exceptions
import botocore.parsers
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from concurrent_loader.storage.errors import (
    ConfigurationError,
    ProtocolViolation,
    StorageError,
    StoreClosed,
    TruncatedBody,
)
from concurrent_loader.storage.fork_safety import leak_reference, register_fork_handler
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.redaction import silence_secrets
from concurrent_loader.storage.stores.aws.aiobotocore_credentials import AiobotocoreCredentials
from concurrent_loader.storage.stores.aws.botocore_chain import use_cached_models
from concurrent_loader.storage.stores.aws.credential_provider import ActiveCredentials, CredentialProvider
from concurrent_loader.storage.stores.aws.settings import AwsSettings
from concurrent_loader.storage.stores.backends.aiobotocore_body import BodyPieces
from concurrent_loader.storage.stores.backends.aiobotocore_errors import UNREADABLE, translate
from concurrent_loader.storage.stores.backends.aiobotocore_http import GuardedSession, keep_region
from concurrent_loader.storage.stores.backends.aiobotocore_upload import MultipartUpload, body_of
from concurrent_loader.storage.stores.backends.s3_entries import list_objects
from concurrent_loader.storage.stores.body_stream import Pieces
from concurrent_loader.storage.stores.error_mapping import may_have_expired
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
from concurrent_loader.storage.stores.options import S3Options
from concurrent_loader.storage.stores.store import Store

__all__ = ["AiobotocoreStore"]

_log = logging.getLogger(__name__)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# Limit between two socket reads, for callers without a deadline. `concurrent_loader.storage.fetch` is stricter.
_SILENCE_TIMEOUT_S = 120


class AiobotocoreStore(Store):
    """``s3://bucket/prefix`` through aiobotocore.

    The client belongs to the event loop that first used it. After that loop has ended, the next loop gets a new client.
    While it runs, calls from a second loop raise `StoreClosed`.
    """

    @hides_secrets
    def __init__(
        self, url: str, options: S3Options | None = None, *, provider: CredentialProvider | None = None
    ) -> None:
        self._location = Location.parse(url)
        super().__init__(self._location.url)
        self._options = options or S3Options()
        self._provider = provider or CredentialProvider(self._options, url=self.url)
        self._bound: _BoundClient | None = None
        self._keep_alive = True
        self._fresh: AiobotocoreStore | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url, self._options)

    @property
    def endpoint(self) -> str:
        return f"{self._options.endpoint_url or self._location.scheme}/{self._location.bucket}"

    def on_fresh_connections(self) -> Store:
        self._check_open()
        if self._fresh is None:
            self._fresh = AiobotocoreStore(self._url, self._options, provider=self._provider)
            self._fresh._keep_alive = False
        return self._fresh

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        response = await self._request(key, span, if_match)
        with self._translate_errors(key, span):
            # Leaving the block releases the connection, or closes it if bytes are left. An unread body would occupy a
            # slot of the pool forever.
            async with response["Body"] as body:
                size = self._check_response(response, key, span)
                data = await body.read()
        self._check_length(response, len(data), key, span)
        return GetResult(memoryview(data), _meta(key, size, response))

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        response = await self._request(key, span, if_match)
        try:
            size = self._check_response(response, key, span)
        except BaseException:
            response["Body"].close()
            raise
        pieces = BodyPieces(
            response["Body"],
            translated=lambda: self._translate_errors(key, span),
            check_length=lambda got: self._check_length(response, got, key, span),
            piece_bytes=piece_bytes,
        )
        return _meta(key, size, response), pieces

    async def _request(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> Mapping[str, Any]:
        request = self._target(key)
        if span is not None:
            request["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if if_match is not None:
            request["IfMatch"] = if_match
        client = await self._client()
        with self._translate_errors(key, span):
            response: Mapping[str, Any] = await client.get_object(**request)
        return response

    def _check_length(self, response: Mapping[str, Any], got: int, key: str, span: tuple[int, int] | None) -> None:
        if got != response["ContentLength"]:
            start, end = span or (None, None)
            raise TruncatedBody(
                "the body is not as long as announced", url=self.url, key=key, start=start, end=end,
                expected=response["ContentLength"], got=got,
            )  # fmt: skip

    def _check_response(self, response: Mapping[str, Any], key: str, span: tuple[int, int] | None) -> int:
        """Returns the object's size; raises if the response does not match the request."""
        status, length = response["ResponseMetadata"]["HTTPStatusCode"], response.get("ContentLength")
        if span is None:
            if status != 200 or length is None:
                raise self._violation(
                    "the response does not match a request for the whole object", key, span, got=status
                )
            return int(length)
        if status != 206:
            raise self._violation("the response does not match a request for a range", key, span, got=status)
        announced = response.get("ContentRange") or ""
        found = _CONTENT_RANGE.fullmatch(announced)
        if found is None:
            raise self._violation("the response has no valid Content-Range", key, span, got=announced)
        first, last, size = (int(number) for number in found.groups())
        if first != span[0] or last + 1 != min(span[1], size):
            raise self._violation("the response has a different range", key, span, got=announced)
        if length != last + 1 - first:
            raise self._violation("the announced length differs from the range's", key, span, got=length)
        return size

    def _violation(self, what: str, key: str, span: tuple[int, int] | None, *, got: object) -> ProtocolViolation:
        start, end = span or (None, None)
        return ProtocolViolation(what, url=self.url, key=key, start=start, end=end, got=got)

    async def _head(self, key: str) -> ObjectMeta:
        client = await self._client()
        with self._translate_errors(key):
            response = await client.head_object(**self._target(key))
            return _meta(key, response["ContentLength"], response)

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        return self._list_after(prefix, "")

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta]:
        client = await self._client()
        request: dict[str, Any] = {
            "Bucket": self._location.bucket,
            "Prefix": self._location.full_key(prefix),
            "MaxKeys": self._options.list_page_keys,
        }

        if after:
            request["StartAfter"] = self._location.full_key(after)

        async def read_page(token: str | None) -> Mapping[str, Any]:
            more = {} if token is None else {"ContinuationToken": token}
            page: Mapping[str, Any] = await client.list_objects_v2(**request, **more)
            return page

        async for meta in list_objects(read_page, self._location, request["Prefix"], self._translate_errors):
            yield meta

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        client = await self._client()
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._translate_errors(key, writing=if_absent):
            if len(data) <= self._options.num_multipart_bytes:
                response = await client.put_object(**self._target(key), Body=body_of(data), **condition)
            else:
                upload = MultipartUpload(client, self._target(key), url=self.url, options=self._options)
                response = await upload.put(data, condition)
        return ObjectMeta(key, len(data), response.get("ETag"))

    async def _delete(self, key: str) -> None:
        client = await self._client()
        with self._translate_errors(key):
            await client.delete_object(**self._target(key))

    # -- client ----------------------------------------------------------------------------------------------------

    def _target(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._location.bucket, "Key": self._location.full_key(key)}

    async def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        bound = self._bound
        if bound is None or bound.loop is not loop:
            if bound is not None and bound.loop.is_running():
                raise StoreClosed(
                    "this store is in use by another event loop; open a store for each loop", url=self.url
                )
            self._bound, stale = _BoundClient(loop), bound
            if stale is not None:
                await stale.close()
            bound = self._bound
        with self._translate_errors(None):
            try:
                return await bound.get(self._options, self._provider, self._keep_alive)
            except ValueError as error:
                if isinstance(error, StorageError):
                    raise
                raise ConfigurationError("the client refused the options", got=str(error)) from error

    async def _active_credentials(self) -> ActiveCredentials | None:
        return None if self._options.anonymous else await self._provider.get_async()

    async def _renew_credentials(self, used: Any, error: StorageError) -> bool:
        return used is not None and may_have_expired(error) and await self._provider.renew(used)

    async def _close(self) -> None:
        if self._fresh is not None:
            await self._fresh.close()
        if self._bound is not None:
            bound, self._bound = self._bound, None
            await bound.close()

    @contextlib.contextmanager
    def _translate_errors(
        self, key: str | None, span: tuple[int, int] | None = None, *, writing: bool = False
    ) -> Iterator[None]:
        start, end = span or (None, None)
        try:
            yield
        except StorageError as error:  # from the credential provider
            error.locate(url=self.url, key=key, start=start, end=end)
            raise
        except (
            botocore.exceptions.ClientError,
            botocore.exceptions.BotoCoreError,
            aiohttp.ClientError,
            OSError,
            *UNREADABLE,
        ) as error:
            raise translate(error, writing=writing).locate(url=self.url, key=key, start=start, end=end) from error


class _BoundClient:
    """Client with the only event loop that may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._making = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._client: Any = None
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Abandons the connections, which belong to the parent."""
        leak_reference((self.loop, self._stack, self._client))

    async def get(self, options: S3Options, provider: CredentialProvider, keep_alive: bool) -> Any:
        if self._client is None:
            async with self._making:
                if self._client is None:
                    making = _make_client(options, provider, keep_alive)
                    self._client = await self._stack.enter_async_context(making)
        return self._client

    async def close(self) -> None:
        async with self._making:
            self._client = None
            await self._stack.aclose()


def _make_client(options: S3Options, provider: CredentialProvider, keep_alive: bool) -> Any:
    AwsSettings.resolve(options, url=None)  # validates the environment and files that botocore reads
    path_style = {None: "auto", True: "path", False: "virtual"}[options.path_style]
    config = AioConfig(
        # `concurrent_loader.storage.fetch` retries and sets deadlines; retries here would multiply attempts.
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_s,
        read_timeout=_SILENCE_TIMEOUT_S,
        max_pool_connections=options.max_connections,
        **({} if keep_alive else {"connector_args": {"force_close": True, "keepalive_timeout": None}}),
        # "auto" means path style with a custom endpoint, wherever it was configured.
        s3={"addressing_style": path_style},
        http_session_cls=GuardedSession,
        # The payload's SHA-256 is signed, and readers verify digests: no CRC trailers, which some servers refuse.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": botocore.UNSIGNED} if options.anonymous else {}),
    )
    silence_secrets()
    session = use_cached_models(AioSession(profile=options.profile))
    keep_region(session)
    if not options.anonymous:
        # botocore has no public API for externally renewed credentials: set_credentials copies them.
        session._credentials = AiobotocoreCredentials(provider)
    return session.create_client(
        "s3",
        region_name=options.region_or_environment,
        endpoint_url=options.endpoint_url,
        # None makes botocore use AWS_CA_BUNDLE and the shared files.
        verify=None if options.verify_tls else False,
        config=config,
    )


def _meta(key: str, size: int, response: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(key, size, response.get("ETag"), response.get("LastModified"))
