"""HTTP client for fsspec's ``http://`` and ``https://``: follows no redirects and bounds every response."""

from __future__ import annotations

import re
from typing import Any

import aiohttp

from concurrent_loader.storage.stores.backends.aiobotocore_http import read_bounded
from concurrent_loader.storage.stores.error_mapping import is_redirect, redirect

__all__ = ["HTTP_OPTIONS", "guarded_client"]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class _BoundedResponse(aiohttp.ClientResponse):
    """Bounds the body by the requested range; fsspec would read all of it."""

    async def read(self) -> bytes:
        if self._body is None:
            asked = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            # One more byte shows that the response is longer than the range.
            most = None if asked is None else int(asked[2]) - int(asked[1]) + 2
            self._body = await read_bounded(self, most=most)
        return self._body


async def guarded_client(**options: Any) -> aiohttp.ClientSession:
    """Returns a session; replaces fsspec's own ``get_client``."""
    return aiohttp.ClientSession(
        **{"response_class": _BoundedResponse, "raise_for_status": _refuse_redirect, **options}
    )


async def _refuse_redirect(response: aiohttp.ClientResponse) -> None:
    if is_redirect(response.status):
        raise redirect(response.status, location=response.headers.get("Location"), region=None)


# Options for fsspec's HTTP file system.
HTTP_OPTIONS = {"get_client": guarded_client, "allow_redirects": False}
