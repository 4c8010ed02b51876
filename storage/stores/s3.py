"""S3 by aiobotocore: the client with the fullest credential chain and the exact multipart upload.

botocore believes what a server answers. So every answer to a range is checked here against the question: the status,
Content-Range, Content-Length, and the bytes that really came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
import botocore
import botocore.exceptions
import botocore.parsers
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from storage.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ProtocolViolation,
    StorageError,
    StoreClosed,
    StoreError,
    TruncatedBody,
)
from storage.forking import keep_for_ever, tell_after_fork
from storage.hidden_arguments import hides_secrets
from storage.log_redaction import silence_secrets
from storage.stores.answers import connection_failed, may_have_expired, parse_time, refusal
from storage.stores.aws_chain import chain_error, with_shared_models
from storage.stores.aws_settings import AwsSettings
from storage.stores.credential_source import CredentialSource, Held
from storage.stores.location import Location
from storage.stores.options import S3Options
from storage.stores.pieces import Pieces
from storage.stores.protocol import GetResult, ObjectMeta, Store
from storage.stores.s3_body import BodyPieces
from storage.stores.s3_entries import list_objects
from storage.stores.s3_http import GuardedSession, keep_region
from storage.stores.signing_keys import SigningKeys

__all__ = ["S3Store", "translate"]

_log = logging.getLogger(__name__)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# For callers without a deadline of their own: between two reads from a socket. `storage.fetch` is stricter.
_SILENCE_TIMEOUT_S = 120
_ABORT_TIMEOUT_S = 10
# What parsing an answer raises where the answer is not what S3's model of it says.
_UNREADABLE = (
    botocore.exceptions.PaginationError,
    botocore.parsers.ResponseParserError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
)


class S3Store(Store):
    """``s3://bucket/prefix`` by aiobotocore.

    The client belongs to the event loop that first used it. When that loop has ended, the next one gets a new client;
    while it runs, a second loop is refused.
    """

    @hides_secrets
    def __init__(self, url: str, options: S3Options | None = None, *, source: CredentialSource | None = None) -> None:
        self._location = Location.parse(url)
        super().__init__(self._location.url)
        self._options = options or S3Options()
        self._source = source or CredentialSource(self._options, url=self.url)
        self._bound: _BoundClient | None = None
        self._keep_alive = True
        self._fresh: S3Store | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url, self._options)

    @property
    def endpoint(self) -> str:
        return f"{self._options.endpoint_url or self._location.scheme}/{self._location.bucket}"

    def on_fresh_connections(self) -> Store:
        self._check_open()
        if self._fresh is None:
            self._fresh = S3Store(self._url, self._options, source=self._source)
            self._fresh._keep_alive = False
        return self._fresh

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        response = await self._request(key, span, if_match)
        with self._translated(key, span):
            # Leaving the block gives the connection back, or closes it where bytes are left: an unread body would
            # occupy a place in the pool for ever.
            async with response["Body"] as body:
                size = self._check_answer(response, key, span)
                data = await body.read()
        self._check_length(response, len(data), key, span)
        return GetResult(memoryview(data), _meta(key, size, response))

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        response = await self._request(key, span, if_match)
        try:
            size = self._check_answer(response, key, span)
        except BaseException:
            response["Body"].close()
            raise
        pieces = BodyPieces(
            response["Body"],
            translated=lambda: self._translated(key, span),
            check_length=lambda got: self._check_length(response, got, key, span),
            piece_bytes=piece_bytes,
        )
        return _meta(key, size, response), pieces

    async def _request(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> Mapping[str, Any]:
        request = self._at(key)
        if span is not None:
            request["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if if_match is not None:
            request["IfMatch"] = if_match
        client = await self._client()
        with self._translated(key, span):
            response: Mapping[str, Any] = await client.get_object(**request)
        return response

    def _check_length(self, response: Mapping[str, Any], got: int, key: str, span: tuple[int, int] | None) -> None:
        if got != response["ContentLength"]:
            start, end = span or (None, None)
            raise TruncatedBody(
                "the body is not as long as announced", url=self.url, key=key, start=start, end=end,
                expected=response["ContentLength"], got=got,
            )  # fmt: skip

    def _check_answer(self, response: Mapping[str, Any], key: str, span: tuple[int, int] | None) -> int:
        """Returns the object's size, or raises if the answer is not one to this question."""
        status, length = response["ResponseMetadata"]["HTTPStatusCode"], response.get("ContentLength")
        if span is None:
            if status != 200 or length is None:
                raise self._violation("not an answer to a request for the whole object", key, span, got=status)
            return int(length)
        if status != 206:
            raise self._violation("not an answer to a request for a range", key, span, got=status)
        announced = response.get("ContentRange") or ""
        found = _CONTENT_RANGE.fullmatch(announced)
        if found is None:
            raise self._violation("the answer does not say which range it is", key, span, got=announced)
        first, last, size = (int(number) for number in found.groups())
        if first != span[0] or last + 1 != min(span[1], size):
            raise self._violation("the answer is another range", key, span, got=announced)
        if length != last + 1 - first:
            raise self._violation("the announced length is not the range's", key, span, got=length)
        return size

    def _violation(self, what: str, key: str, span: tuple[int, int] | None, *, got: object) -> ProtocolViolation:
        start, end = span or (None, None)
        return ProtocolViolation(what, url=self.url, key=key, start=start, end=end, got=got)

    async def _head(self, key: str) -> ObjectMeta:
        client = await self._client()
        with self._translated(key):
            response = await client.head_object(**self._at(key))
            return _meta(key, response["ContentLength"], response)

    async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        client = await self._client()
        request: dict[str, Any] = {
            "Bucket": self._location.bucket,
            "Prefix": self._location.full(prefix),
            "MaxKeys": self._options.list_page_keys,
        }

        async def read_page(token: str | None) -> Mapping[str, Any]:
            more = {} if token is None else {"ContinuationToken": token}
            page: Mapping[str, Any] = await client.list_objects_v2(**request, **more)
            return page

        async for meta in list_objects(read_page, self._location, request["Prefix"], self._translated):
            yield meta

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        client = await self._client()
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._translated(key, writing=if_absent):
            if len(data) <= self._options.num_multipart_bytes:
                response = await client.put_object(**self._at(key), Body=_body(data), **condition)
            else:
                response = await self._put_in_parts(client, key, data, condition)
        return ObjectMeta(key, len(data), response.get("ETag"))

    async def _put_in_parts(
        self, client: Any, key: str, data: memoryview, condition: dict[str, str]
    ) -> Mapping[str, Any]:
        upload = await self._begin_upload(client, key)
        places = asyncio.Semaphore(self._options.parts_in_flight)
        part_bytes = self._options.part_bytes_for(len(data))

        async def put_part(number: int, part: memoryview) -> dict[str, object]:
            async with places:
                response = await client.upload_part(**upload, PartNumber=number, Body=_body(part))
            return {"PartNumber": number, "ETag": response["ETag"]}

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(put_part(number, data[start : start + part_bytes]))
                    for number, start in enumerate(range(0, len(data), part_bytes), start=1)
                ]
            parts = [task.result() for task in tasks]
            completed: Mapping[str, Any] = await client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}, **condition
            )
        except BaseException as error:
            await self._abort(client, upload)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error
            raise
        return completed

    async def _begin_upload(self, client: Any, key: str) -> dict[str, str]:
        """Begins an upload; who is cancelled meanwhile waits for its number, since it could not be given up without."""
        beginning = asyncio.ensure_future(client.create_multipart_upload(**self._at(key)))
        try:
            created = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([beginning], timeout=_ABORT_TIMEOUT_S)
            finally:
                beginning.cancel()  # of what is done that is nothing
            if beginning.done() and not beginning.cancelled() and beginning.exception() is None:
                await self._abort(client, {**self._at(key), "UploadId": beginning.result()["UploadId"]})
            raise
        return {**self._at(key), "UploadId": created["UploadId"]}

    async def _abort(self, client: Any, upload: dict[str, str]) -> None:
        """Gives up an upload, so that its parts cost no storage; on failure the bucket's lifecycle rule must do it."""
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await client.abort_multipart_upload(**upload)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, OSError, *_UNREADABLE) as error:
            _log.warning("%s: an upload of %r was left behind: %s", self.url, upload["Key"], error)

    async def _delete(self, key: str) -> None:
        client = await self._client()
        with self._translated(key):
            await client.delete_object(**self._at(key))

    # -- client ----------------------------------------------------------------------------------------------------

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._location.bucket, "Key": self._location.full(key)}

    async def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        bound = self._bound
        if bound is None or bound.loop is not loop:
            if bound is not None and bound.loop.is_running():
                raise StoreClosed("this store is in use by another event loop; open it once for each", url=self.url)
            self._bound, stale = _BoundClient(loop), bound
            if stale is not None:
                await stale.close()
            bound = self._bound
        with self._translated(None):
            try:
                return await bound.get(self._options, self._source, self._keep_alive)
            except ValueError as error:
                if isinstance(error, StorageError):
                    raise
                raise ConfigurationError("the client refused the options", got=str(error)) from error

    async def _sign_with(self) -> Held | None:
        return None if self._options.anonymous else await self._source.get_async()

    async def _renew(self, used: Any, error: StorageError) -> bool:
        return used is not None and may_have_expired(error) and await self._source.renew(used)

    async def _close(self) -> None:
        if self._fresh is not None:
            await self._fresh.close()
        if self._bound is not None:
            bound, self._bound = self._bound, None
            await bound.close()

    @contextlib.contextmanager
    def _translated(
        self, key: str | None, span: tuple[int, int] | None = None, *, writing: bool = False
    ) -> Iterator[None]:
        start, end = span or (None, None)
        try:
            yield
        except StorageError as error:  # from the source of the keys
            error.locate(url=self.url, key=key, start=start, end=end)
            raise
        except (
            botocore.exceptions.ClientError,
            botocore.exceptions.BotoCoreError,
            aiohttp.ClientError,
            OSError,
            *_UNREADABLE,
        ) as error:
            raise translate(error, writing=writing).locate(url=self.url, key=key, start=start, end=end) from error


class _BoundClient:
    """A client and the one event loop that it works in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._making = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._client: Any = None
        tell_after_fork(self)

    def after_fork_in_child(self) -> None:
        """The connections are the parent's."""
        keep_for_ever((self.loop, self._stack, self._client))

    async def get(self, options: S3Options, source: CredentialSource, keep_alive: bool) -> Any:
        if self._client is None:
            async with self._making:
                if self._client is None:
                    making = _make_client(options, source, keep_alive)
                    self._client = await self._stack.enter_async_context(making)
        return self._client

    async def close(self) -> None:
        async with self._making:
            self._client = None
            await self._stack.aclose()


def _make_client(options: S3Options, source: CredentialSource, keep_alive: bool) -> Any:
    AwsSettings.resolve(options, url=None)  # complains of what botocore would take from environment and files
    path_style = {None: "auto", True: "path", False: "virtual"}[options.path_style]
    config = AioConfig(
        # Retry and deadline belong to `storage.fetch`; two owners would multiply attempts.
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_s,
        read_timeout=_SILENCE_TIMEOUT_S,
        max_pool_connections=options.max_connections,
        **({} if keep_alive else {"connector_args": {"force_close": True, "keepalive_timeout": None}}),
        # "auto" is path style whenever there is an endpoint of one's own, wherever it was configured.
        s3={"addressing_style": path_style},
        http_session_cls=GuardedSession,
        # The payload's SHA-256 is signed, and readers verify digests: no CRC trailers, which some servers refuse.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": botocore.UNSIGNED} if options.anonymous else {}),
    )
    silence_secrets()
    session = with_shared_models(AioSession(profile=options.profile))
    keep_region(session)
    if not options.anonymous:
        # There is no public way to sign with keys that are renewed by somebody else: set_credentials copies them.
        session._credentials = SigningKeys(source)
    return session.create_client(
        "s3",
        region_name=options.region_or_environment,
        endpoint_url=options.endpoint_url,
        # None lets AWS_CA_BUNDLE and the shared files speak.
        verify=None if options.verify_tls else False,
        config=config,
    )


def _meta(key: str, size: int, response: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(key, size, response.get("ETag"), response.get("LastModified"))


def _body(data: memoryview) -> bytes:
    # botocore takes bytes only; copy just where the view is not exactly a bytes object.
    whole = data.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(data) else bytes(data)


def translate(error: Exception, *, writing: bool) -> StorageError:
    """Says in `storage.errors`'s words what botocore or aiohttp raised; the caller fills in where it happened."""
    if (known := chain_error(error)) is not None:
        return known
    match error:
        case botocore.exceptions.HTTPClientError() if isinstance(inner := error.kwargs.get("error"), StorageError):
            return inner  # of `storage.stores.s3_http`
        case botocore.exceptions.ClientError():
            answer: Any = error.response
            said, meta = answer.get("Error", {}), answer.get("ResponseMetadata", {})
            region = said.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region")
            return refusal(
                meta.get("HTTPStatusCode", 0),
                str(said.get("Code", "")),
                writing=writing,
                region=region,
                machine_time=parse_time(said.get("RequestTime")) or datetime.now(UTC),
                store_time=parse_time(said.get("ServerTime") or meta.get("HTTPHeaders", {}).get("date")),
            )
        case botocore.exceptions.ReadTimeoutError() | botocore.exceptions.ConnectTimeoutError() | TimeoutError():
            return DeadlineExceeded("the store did not answer in time")
        case (
            aiohttp.ClientPayloadError()
            | botocore.exceptions.ResponseStreamingError()
            | botocore.exceptions.IncompleteReadError()
        ):
            return TruncatedBody("the body ended early")
        case (
            botocore.exceptions.ConnectionError()
            | botocore.exceptions.HTTPClientError()
            | aiohttp.ClientError()
            | OSError()
        ):
            # botocore's own errors carry the whole URL that was asked for.
            server = getattr(error, "kwargs", {}).get("endpoint_url")
            return connection_failed(error, server=server if isinstance(server, str) else None)
        case botocore.exceptions.ParamValidationError() | botocore.exceptions.UnsupportedS3ConfigurationError():
            return ConfigurationError("the client refused the request", got=str(error))
        case _ if isinstance(error, _UNREADABLE):
            return ProtocolViolation("the answer cannot be read", got=type(error).__name__)
        case _:
            return StoreError("the client failed", got=type(error).__name__)
