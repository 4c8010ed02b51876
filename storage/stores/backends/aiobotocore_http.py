"""The HTTP session below aiobotocore and s3fs: it follows no redirect and reads no more than a response may hold."""

from __future__ import annotations

from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from concurrent_loader.storage.stores.error_mapping import (
    MAX_ERROR_BYTES,
    MAX_PAGE_BYTES,
    is_redirect,
    redirect,
    too_long_error,
)

__all__ = ["GuardedSession", "keep_region", "read_bounded"]


class GuardedSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's session, for servers that are not trusted.

    - A response that redirects raises `ConfigurationError`. Nothing is sent to its ``Location``, because the request's
      headers hold the session token.
    - The body of an error is dropped beyond `MAX_ERROR_BYTES`; the status alone then says what failed.
    - Any other response that is read whole raises `ProtocolViolation` beyond `MAX_PAGE_BYTES`. Bodies of objects are
      streamed and not concerned.

    botocore wraps what is raised here into its `HTTPClientError`;
    `concurrent_loader.storage.stores.backends.aiobotocore.translate` unwraps it.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Guard(await super()._get_session(proxy_url))


class _Guard:
    """An `aiohttp.ClientSession` as aiobotocore uses it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> aiohttp.ClientResponse:
        response = await self._session.request(method, allow_redirects=False, **options)
        if is_redirect(response.status):
            response.close()
            raise redirect(
                response.status,
                location=response.headers.get("Location"),
                region=response.headers.get("x-amz-bucket-region"),
            )

        async def read() -> bytes:
            return await read_bounded(response)

        response.read = read  # type: ignore[method-assign]  # what aiobotocore calls for all that it reads whole
        return response


async def read_bounded(response: aiohttp.ClientResponse, *, most: int | None = None) -> bytes:
    """Reads a response's body.

    Args:
        response: The response, of which nothing was read yet.
        most: Number of bytes of a success after which reading stops; None for `MAX_PAGE_BYTES` and an error.

    Returns:
        The body; nothing where an error's is longer than `MAX_ERROR_BYTES`.

    Raises:
        ProtocolViolation: The response is a success, and its body is longer than `MAX_PAGE_BYTES`.
    """
    is_error = response.status >= 300
    limit = MAX_ERROR_BYTES if is_error else MAX_PAGE_BYTES if most is None else most
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in response.content.iter_any():
        num_bytes += len(chunk)
        if num_bytes > limit:
            response.close()  # the rest may have no end
            if is_error:
                return b""
            if most is not None:
                return b"".join((*chunks, chunk))[:most]
            raise too_long_error(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def keep_region(session: Any) -> None:
    """Keeps the clients of a session from sending a request again to the region that a server names.

    Args:
        session: botocore's or aiobotocore's, before it makes a client.
    """
    session.get_component("event_emitter").register_last("before-call.s3", _pretend_redirected)


def _pretend_redirected(context: dict[str, Any], **_: Any) -> None:
    # botocore follows a region once a request, and this is where it keeps that it has.
    if "s3_redirect" in context:
        context["s3_redirect"]["redirected"] = True
