"""Reads the objects of an S3 listing page by page, and validates the pages, because servers are not trusted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from concurrent_loader.storage.errors import ProtocolViolation
from concurrent_loader.storage.stores.location import Location
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["list_objects"]

# S3 may send empty pages before the last one, but never this many in a row.
_MAX_EMPTY_PAGES = 1000


async def list_objects(
    read_page: Callable[[str | None], Awaitable[Mapping[str, Any]]],
    location: Location,
    prefix: str,
    translated: Callable[[None], AbstractContextManager[None]],
) -> AsyncGenerator[ObjectMeta, None]:
    """Yields the objects of all pages, except folder markers.

    Args:
        read_page: Function that returns a page in the form of botocore's ``list_objects_v2``. It takes the page's
            continuation token; None for the first page.
        location: Location of the store.
        prefix: Prefix of the keys in the bucket.
        translated: Function that returns a context manager, which translates the client's errors.

    Raises:
        ProtocolViolation: An entry lacks its key or size, lies outside the prefix, or does not come behind the last
            one; a page that is not the last has no continuation token; a thousand pages in a row are empty. So a
            listing ends, whatever the server sends: a token that is repeated brings keys that were there.
    """
    token: str | None = None
    last = b""
    num_empty = 0
    while True:
        with translated(None):
            page = await read_page(token)
            entries = page.get("Contents", ())
            for entry in entries:
                key = entry["Key"].encode(errors="surrogateescape")
                _ = entry["Size"]
                if key <= last or not entry["Key"].startswith(prefix):
                    raise ProtocolViolation("a listing's keys are not in order, or not below its prefix")
                last = key
        for entry in entries:
            if not (entry["Key"].endswith("/") and entry["Size"] == 0):
                key = location.relative_key(entry["Key"])
                yield ObjectMeta(key, entry["Size"], entry.get("ETag"), entry.get("LastModified"))
        if not page.get("IsTruncated"):
            return
        num_empty = 0 if entries else num_empty + 1
        following = page.get("NextContinuationToken")
        with translated(None):
            if not following or num_empty > _MAX_EMPTY_PAGES:
                raise ProtocolViolation("a listing has no continuation token, or too many empty pages")
            if following == token:
                raise ProtocolViolation("a listing repeats its continuation token")
        token = following
