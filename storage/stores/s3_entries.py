"""The entries of an S3 listing, page by page, from a server that may not tell the truth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from storage.errors import ProtocolViolation

__all__ = ["list_entries"]

# S3 may answer with pages that are empty and not the last, but not with this many in a row.
_MAX_EMPTY_PAGES = 1000


async def list_entries(
    client: Any, request: Mapping[str, Any], translated: Callable[[None], AbstractContextManager[None]]
) -> AsyncIterator[Mapping[str, Any]]:
    """Yields the entries of all pages.

    Args:
        client: aiobotocore's.
        request: Arguments of ``list_objects_v2``; they must name a ``Prefix``.
        translated: Makes a context in which the client's errors become `storage.errors`.

    Raises:
        ProtocolViolation: An entry lacks its key or size, lies outside the prefix, or does not come behind the last
            one; a page that is not the last has no continuation token; a thousand pages in a row are empty. So a
            listing ends, whatever the server answers: a token that is repeated brings keys that were there.
    """
    token: dict[str, str] = {}
    last = b""
    num_empty = 0
    while True:
        with translated(None):
            page = await client.list_objects_v2(**request, **token)
            entries = page.get("Contents", ())
            for entry in entries:
                key = entry["Key"].encode(errors="surrogateescape")
                _ = entry["Size"]
                if key <= last or not entry["Key"].startswith(request["Prefix"]):
                    raise ProtocolViolation("a listing's keys are not in order, or not below its prefix")
                last = key
        for entry in entries:
            yield entry
        if not page.get("IsTruncated"):
            return
        num_empty = 0 if entries else num_empty + 1
        if not page.get("NextContinuationToken") or num_empty > _MAX_EMPTY_PAGES:
            with translated(None):
                raise ProtocolViolation("a listing does not say how it goes on")
        if token.get("ContinuationToken") == page["NextContinuationToken"]:
            with translated(None):
                raise ProtocolViolation("a listing repeats its continuation token")
        token = {"ContinuationToken": page["NextContinuationToken"]}
