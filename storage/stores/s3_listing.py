"""Lists S3 buckets for the obstore client, which bounds neither the pages of a listing nor their number."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

from storage.errors import ConfigurationError, ProtocolViolation, StorageError
from storage.stores.answers import is_redirect, parse_time, redirect, refusal
from storage.stores.aws_settings import DEFAULT_REGION, AwsSettings, BucketAddress
from storage.stores.credential_source import CredentialSource
from storage.stores.http_connection import HttpAnswer, HttpConnection
from storage.stores.location import Location
from storage.stores.options import S3Options
from storage.stores.protocol import ObjectMeta
from storage.stores.s3_entries import list_objects
from storage.stores.s3_xml import read_document
from storage.stores.sigv4 import signed_headers

__all__ = ["S3Listing"]

# Some gateways refuse requests without a user agent.
_HEADERS = "accept-encoding: identity\r\nuser-agent: concurrent-loader\r\n"
_SIZE = re.compile(r"[0-9]{1,19}")


class S3Listing:
    """Listings of a store's bucket by ListObjectsV2, over one connection each.

    Args:
        location: The store's bucket and prefix.
        options: The store's options.
        source: Credentials to sign with; None for anonymous requests.
        keep_alive: Whether the pages of a listing share a connection.
    """

    def __init__(
        self, location: Location, options: S3Options, source: CredentialSource | None, *, keep_alive: bool = True
    ) -> None:
        self._location = location
        self._options = options
        self._source = source
        self._keep_alive = keep_alive
        self._tls: ssl.SSLContext | None = None

    async def list(self, prefix: str) -> AsyncGenerator[ObjectMeta, None]:
        """Yields the objects whose keys start with a prefix, in ascending order.

        Raises:
            StorageError: As any call of the store.
        """
        with self._located():
            if self._address.server_url.startswith("https:") and self._tls is None:
                self._tls = await asyncio.to_thread(self._make_tls)  # reads files
            connection = HttpConnection(
                self._address.server_url,
                tls=self._tls,
                connect_s=self._options.connect_s,
                keep_alive=self._keep_alive,
            )
        wanted = self._location.full(prefix)

        async def read_page(token: str | None) -> Mapping[str, Any]:
            return await self._read_page(connection, wanted, token)

        try:
            async for meta in list_objects(read_page, self._location, wanted, lambda _: self._located()):
                yield meta
        finally:
            connection.close()

    async def _read_page(self, connection: HttpConnection, prefix: str, token: str | None) -> Mapping[str, Any]:
        keys = None if self._source is None else (await self._source.get_async()).keys
        now = datetime.now(UTC)
        parts = urlsplit(self._address.bucket_url)
        path, query = parts.path or "/", _query(prefix, token, self._options.list_page_keys)

        def request() -> bytes:
            host = parts.netloc.lower()
            headers = (
                {"host": host}
                if keys is None
                else signed_headers(
                    keys, host=host, path=path, query=query, region=self._settings.region or DEFAULT_REGION, now=now
                )
            )
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            return f"GET {path}?{query} HTTP/1.1\r\n{lines}{_HEADERS}\r\n".encode("latin-1")

        answer = await connection.get(request)
        if answer.status == 200:
            return _page(answer.body)
        raise _refused(answer, now)

    @cached_property
    def _settings(self) -> AwsSettings:
        return AwsSettings.resolve(self._options, url=self._location.url)

    @cached_property
    def _address(self) -> BucketAddress:
        return self._settings.address(self._location.bucket, path_style=self._options.path_style)

    def _make_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if not self._options.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        # Since Python 3.13 the default refuses certificates that the other clients and older versions take.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._settings.certificates(url=self._location.url) is not None:
            try:
                context.load_verify_locations(cafile=self._settings.ca_bundle)
            except (ssl.SSLError, ValueError) as error:
                raise ConfigurationError(
                    "the certificates that AWS_CA_BUNDLE or ca_bundle names cannot be read",
                    got=self._settings.ca_bundle,
                ) from error
        system = ssl.get_default_verify_paths()
        if not any((system.cafile, system.capath)) and (bundle := _botocore_certificates()) is not None:
            context.load_verify_locations(cafile=bundle)
        return context

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            error.locate(url=self._location.url)
            raise


def _botocore_certificates() -> str | None:
    """Returns the path of the certificates that botocore brings: not every OpenSSL finds the system's."""
    spec = find_spec("botocore")  # does not import it
    paths = [Path(place) / "cacert.pem" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((str(path) for path in paths if path.exists()), None)


def _query(prefix: str, token: str | None, page_keys: int) -> str:
    parameters = {
        "continuation-token": token,
        "encoding-type": "url",  # XML cannot hold every character that a key may have
        "list-type": "2",
        "max-keys": str(page_keys),
        "prefix": prefix,
    }
    try:
        return "&".join(f"{name}={quote(text, safe='')}" for name, text in parameters.items() if text is not None)
    except UnicodeEncodeError as error:
        raise ConfigurationError("a prefix must be valid Unicode", key=repr(prefix)) from error


def _page(body: bytes) -> dict[str, Any]:
    """Reads a page, in the form of botocore's answers."""
    document = read_document(body)
    fields = document.fields
    if document.root != "ListBucketResult":
        raise ProtocolViolation("the answer is no listing", got=document.root[:80])
    is_quoted = fields.get("EncodingType") == "url"
    return {
        "Contents": [_entry(entry, is_quoted) for entry in document.entries],
        "IsTruncated": fields.get("IsTruncated") == "true",
        "NextContinuationToken": fields.get("NextContinuationToken"),
    }


def _entry(entry: Mapping[str, str], is_quoted: bool) -> dict[str, Any]:
    key, size, modified = entry.get("Key"), entry.get("Size", ""), entry.get("LastModified")
    if key is None or _SIZE.fullmatch(size) is None:
        raise ProtocolViolation("an entry of a listing lacks its key or size", got=size[:40])
    time = None if modified is None else parse_time(modified)
    if modified is not None and time is None:
        raise ProtocolViolation("an entry of a listing has a time that cannot be read", got=modified[:40])
    return {
        "Key": unquote_plus(key, errors="surrogateescape") if is_quoted else key,
        "Size": int(size),
        "ETag": entry.get("ETag"),
        "LastModified": time,
    }


def _refused(answer: HttpAnswer, signed_at: datetime) -> StorageError:
    region = answer.headers.get("x-amz-bucket-region")
    if is_redirect(answer.status):
        return redirect(answer.status, location=answer.headers.get("location"), region=region)
    if answer.status < 300:
        return ProtocolViolation("not an answer to a request for a listing", got=answer.status)
    said: Mapping[str, str] = {}
    with contextlib.suppress(ProtocolViolation):  # proxies answer by HTML; the status tells enough then
        said = read_document(answer.body).fields
    return refusal(
        answer.status,
        said.get("Code", ""),
        writing=False,
        region=said.get("Region") or region,
        machine_time=parse_time(said.get("RequestTime")) or signed_at,
        store_time=parse_time(said.get("ServerTime") or answer.headers.get("date")),
    )
