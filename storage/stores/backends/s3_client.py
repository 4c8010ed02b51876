"""Sends signed requests to an S3 bucket, and reads documents and errors from the responses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from urllib.parse import quote, urlsplit

from concurrent_loader.storage.errors import ConfigurationError, ProtocolViolation, StorageError, StoreClosed
from concurrent_loader.storage.fork_safety import leak_reference, register_fork_handler
from concurrent_loader.storage.stores.aws.credential_provider import CredentialProvider
from concurrent_loader.storage.stores.aws.settings import DEFAULT_REGION, AwsSettings, botocore_certificates
from concurrent_loader.storage.stores.aws.sigv4 import EMPTY_SHA256, Signer
from concurrent_loader.storage.stores.backends.obstore_redirects import environment_proxy
from concurrent_loader.storage.stores.backends.s3_xml import S3Document, read_document
from concurrent_loader.storage.stores.error_mapping import (
    MAX_ERROR_BYTES,
    MAX_PAGE_BYTES,
    is_redirect,
    parse_time,
    redirect,
    refusal,
    too_long_error,
)
from concurrent_loader.storage.stores.http.pool import HttpPool
from concurrent_loader.storage.stores.http.response import HttpResponse
from concurrent_loader.storage.stores.http.tls import make_ssl_context
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["S3Client"]

_REFUSAL_S = 120.0
# Some gateways refuse requests without a user agent.
_HEADERS = "accept-encoding: identity\r\nuser-agent: concurrent-loader\r\n"
# Larger bodies wait for "100 Continue". A server that rejects the head could otherwise reset the connection, and the
# reason would be lost.
_EXPECT_CONTINUE_BYTES = 1 << 20
_NO_HEADERS: Mapping[str, str] = {}


class S3Client:
    """Client for one bucket, with connections of one event loop.

    After that loop has ended, the next loop gets new connections. While it runs, calls from a second loop raise
    `StoreClosed`. A forked child gets new connections as well.

    Args:
        location: Bucket and prefix of the store.
        options: Options of the store.
        provider: Credentials to sign with; None for anonymous requests.
        keep_alive: Whether to reuse connections.
    """

    def __init__(
        self, location: Location, options: S3Options, provider: CredentialProvider | None, *, keep_alive: bool = True
    ) -> None:
        self._location = location
        self._options = options
        self._provider = provider
        self._keep_alive = keep_alive
        self._context: ssl.SSLContext | None = None
        self._pool: HttpPool | None = None
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Abandons the connections, which belong to the parent."""
        if self._pool is not None:
            leak_reference((self._pool, self._pool.loop))
            self._pool = None

    async def send(
        self,
        method: str,
        key: str | None = None,
        *,
        query: str = "",
        headers: Mapping[str, str] = _NO_HEADERS,
        body: memoryview | None = None,
        digest: str = EMPTY_SHA256,
        idempotent: bool = True,
    ) -> HttpResponse:
        """Sends a request.

        Args:
            method: HTTP method.
            key: Key in the bucket; None for the bucket itself.
            query: Percent-encoded query, with parameters sorted by name.
            headers: Further headers, by lower-case name.
            body: Body of the request.
            digest: SHA-256 of the body, in hexadecimal digits.
            idempotent: Whether the request may be sent twice, see `HttpPool.send`.

        Returns:
            Response with any status, of which only the head was read.

        Raises:
            StorageError: No response arrived.
        """
        keys = None if self._provider is None else (await self._provider.get_async()).keys
        pool, host, signer = self._bound_pool(), self._host, self._signer
        path = self._base or "/" if key is None else f"{self._base}/{quote(key, safe='/')}"
        expect_continue = body is not None and len(body) >= _EXPECT_CONTINUE_BYTES

        def head() -> bytes:
            sent: Mapping[str, str] = {"host": host, **headers}
            if keys is not None:
                sent = signer.headers(
                    keys, method=method, host=host, path=path, query=query, now_s=time.time(), more=headers,
                    digest=digest,
                )  # fmt: skip
            lines = "".join([f"{name}: {value}\r\n" for name, value in sent.items()])
            length = "" if body is None else f"content-length: {len(body)}\r\n"
            asks = "expect: 100-continue\r\n" if expect_continue else ""
            target = f"{path}?{query}" if query else path
            return f"{method} {target} HTTP/1.1\r\n{lines}{length}{asks}{_HEADERS}\r\n".encode("latin-1")

        return await pool.send(
            head, body, expect_continue=expect_continue, no_body=method == "HEAD", idempotent=idempotent
        )

    async def read_document(self, response: HttpResponse, *, root: str) -> S3Document:
        """Reads the XML document of a successful response.

        Args:
            response: The response, of which the body was not read.
            root: Name of the outermost element.

        Raises:
            ProtocolViolation: The body is longer than `MAX_PAGE_BYTES`, not XML, or a different document.
            StorageError: The document is an error, which S3 also sends with status 200.
        """
        document = read_document((await self.read_body(response)).strip())
        if document.root == "Error":
            status = 412 if document.fields.get("Code") == "PreconditionFailed" else 500
            raise _refused(status, response.headers, document.fields, writing=True)
        if document.root != root:
            raise ProtocolViolation("the response is a different document", expected=root, got=document.root[:80])
        return document

    async def read_body(self, response: HttpResponse) -> bytes:
        """Reads the body of a successful response other than an object.

        Raises:
            ProtocolViolation: The body is longer than `MAX_PAGE_BYTES`.
        """
        try:
            body = await response.read_at_most(MAX_PAGE_BYTES)
        finally:
            response.close()
        if body is None:
            raise too_long_error(MAX_PAGE_BYTES)
        return body

    async def refused(self, response: HttpResponse, *, writing: bool = False) -> StorageError:
        """Returns the error for an unexpected response.

        Args:
            response: The response, of which the body was not read.
            writing: Whether the request was a conditional put.
        """
        if is_redirect(response.status):
            response.close()
            region = response.headers.get("x-amz-bucket-region")
            return redirect(response.status, location=response.headers.get("location"), region=region)
        if response.status < 300:
            response.close()
            return ProtocolViolation("the response does not match the request", got=response.status)
        fields: Mapping[str, str] = {}
        try:
            # Proxies may send HTML, and bodies may be truncated or endless. The status is sufficient then.
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_REFUSAL_S):
                    fields = read_document(await response.read_at_most(MAX_ERROR_BYTES) or b"").fields
        finally:
            response.close()
        return _refused(response.status, response.headers, fields, writing=writing)

    async def close(self) -> None:
        """Closes all connections."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    def _bound_pool(self) -> HttpPool:
        loop, pool = asyncio.get_running_loop(), self._pool
        if pool is not None and pool.loop is loop:
            return pool
        if pool is not None:
            if pool.loop.is_running():
                raise StoreClosed("this store is in use by another event loop; open a store for each loop")
            pool.abandon()
        if environment_proxy(self._url) is not None:
            raise ConfigurationError(
                "the native client does not support the proxy in the environment: pass client='aiobotocore', or "
                "add the endpoint's host to NO_PROXY"
            )
        self._pool = HttpPool(
            self._url,
            tls=self._tls,
            connect_s=self._options.connect_s,
            max_connections=self._options.max_connections,
            keep_alive=self._keep_alive,
        )
        return self._pool

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(self._make_tls)
        return self._context

    def _make_tls(self) -> ssl.SSLContext:
        if self._options.verify_tls:
            self._settings.check_ca_bundle(url=self._location.url)
        return make_ssl_context(
            verify=self._options.verify_tls,
            ca_bundle=self._settings.ca_bundle,
            fallback_bundle=botocore_certificates(),
        )

    @cached_property
    def _settings(self) -> AwsSettings:
        return AwsSettings.resolve(self._options, url=self._location.url)

    @cached_property
    def _url(self) -> str:
        return self._settings.address(self._location.bucket, path_style=self._options.path_style).bucket_url

    @cached_property
    def _host(self) -> str:
        return urlsplit(self._url).netloc.lower()

    @cached_property
    def _base(self) -> str:
        return urlsplit(self._url).path

    @cached_property
    def _signer(self) -> Signer:
        return Signer(self._settings.region or DEFAULT_REGION)


def _refused(status: int, headers: Mapping[str, str], fields: Mapping[str, str], *, writing: bool) -> StorageError:
    return refusal(
        status,
        fields.get("Code", ""),
        writing=writing,
        region=fields.get("Region") or headers.get("x-amz-bucket-region"),
        machine_time=parse_time(fields.get("RequestTime")) or datetime.now(UTC),
        store_time=parse_time(fields.get("ServerTime") or headers.get("date")),
    )
