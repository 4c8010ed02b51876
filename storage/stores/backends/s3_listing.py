"""Lists S3 buckets with ListObjectsV2, one request per page."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote_plus

from concurrent_loader.storage.errors import ConfigurationError, DeadlineExceeded, ProtocolViolation, StorageError
from concurrent_loader.storage.stores.backends.s3_client import S3Client
from concurrent_loader.storage.stores.backends.s3_entries import list_objects
from concurrent_loader.storage.stores.backends.s3_xml import S3Document
from concurrent_loader.storage.stores.error_mapping import parse_time
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["S3Listing"]

_PAGE_S = 120.0
_SIZE = re.compile(r"[0-9]{1,19}")


class S3Listing:
    """Listings of a store's bucket.

    Args:
        requests: Requests to the bucket.
        location: Bucket and prefix of the store.
        page_keys: Maximum number of keys per page.
    """

    def __init__(self, requests: S3Client, location: Location, page_keys: int) -> None:
        self._requests = requests
        self._location = location
        self._page_keys = page_keys

    async def list(self, prefix: str, after: str) -> AsyncGenerator[ObjectMeta, None]:
        """Yields the objects whose keys start with a prefix and are greater than ``after``, in ascending order.

        Raises:
            StorageError: A request failed.
        """
        wanted = self._location.full_key(prefix)
        start = self._location.full_key(after) if after else None

        async def read_page(token: str | None) -> Mapping[str, Any]:
            return await self._read_page(wanted, token, start)

        async for meta in list_objects(read_page, self._location, wanted, lambda _: self._locate_errors()):
            yield meta

    async def _read_page(self, prefix: str, token: str | None, after: str | None) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_PAGE_S):
                response = await self._requests.send("GET", query=_query(prefix, token, after, self._page_keys))
                if response.status != 200:
                    raise await self._requests.refused(response)
                return _page(await self._requests.read_document(response, root="ListBucketResult"))
        except TimeoutError as error:
            raise DeadlineExceeded("the store did not answer in time") from error

    @contextlib.contextmanager
    def _locate_errors(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            error.locate(url=self._location.url)
            raise


def _query(prefix: str, token: str | None, after: str | None, page_keys: int) -> str:
    parameters = {
        "continuation-token": token,
        "encoding-type": "url",  # XML cannot hold every character that a key may have
        "list-type": "2",
        "max-keys": str(page_keys),
        "prefix": prefix,
        "start-after": after if token is None else None,
    }
    try:
        return "&".join(f"{name}={quote(text, safe='')}" for name, text in parameters.items() if text is not None)
    except UnicodeEncodeError as error:
        raise ConfigurationError("a prefix must be valid Unicode", key=repr(prefix)) from error


def _page(document: S3Document) -> dict[str, Any]:
    """Returns a page in the form of botocore's responses."""
    fields = document.fields
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
        raise ProtocolViolation("an entry of a listing has an invalid time", got=modified[:40])
    return {
        "Key": unquote_plus(key, errors="surrogateescape") if is_quoted else key,
        "Size": int(size),
        "ETag": entry.get("ETag"),
        "LastModified": time,
    }
