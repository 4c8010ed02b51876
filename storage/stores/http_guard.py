"""The client below fsspec's ``http://`` and ``https://``: it follows no redirect and reads no answer without an end."""

from __future__ import annotations

import re
from typing import Any

import aiohttp

from storage.stores.answers import is_redirect, redirect
from storage.stores.s3_http import read_bounded

__all__ = ["HTTP_OPTIONS", "guarded_client"]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class _BoundedResponse(aiohttp.ClientResponse):
    """Ends where the answer must: fsspec reads whatever comes."""

    async def read(self) -> bytes:
        if self._body is None:
            asked = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            # One byte more shows that the answer is longer than the range.
            most = None if asked is None else int(asked[2]) - int(asked[1]) + 2
            self._body = await read_bounded(self, most=most)
        return self._body


async def guarded_client(**options: Any) -> aiohttp.ClientSession:
    """Makes a session, as fsspec's ``get_client`` does."""
    return aiohttp.ClientSession(
        **{"response_class": _BoundedResponse, "raise_for_status": _refuse_redirect, **options}
    )


async def _refuse_redirect(answer: aiohttp.ClientResponse) -> None:
    if is_redirect(answer.status):
        raise redirect(answer.status, location=answer.headers.get("Location"), region=None)


# What fsspec's HTTP file system is made with.
HTTP_OPTIONS = {"get_client": guarded_client, "allow_redirects": False}
