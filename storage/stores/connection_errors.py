"""Explains why a connection failed, in the same words for every client."""

from __future__ import annotations

import errno
import re
import socket

from concurrent_loader.storage.errors import ConnectionFailed

__all__ = ["connection_error"]

_SERVER = re.compile(r"https?://[^/?#\s\"',)]+")
# asyncio reports several failed addresses as text only; obstore reports every failure as text.
_REFUSED = (f"[Errno {errno.ECONNREFUSED}]", "Connection refused", "ConnectionRefused")
_UNRESOLVED = ("dns error", "failed to lookup address", "Name or service not known")


def connection_error(
    error: BaseException, *, server: str | None = None, words: str = "", got: str | None = None
) -> ConnectionFailed:
    """Returns the error for a connection that could not be made or that broke.

    Args:
        error: Exception from the client. Its causes are examined as well.
        server: Any URL of the server. The message shows the scheme and host only.
        words: Text of the failure, for clients that report it only as text.
        got: Name of the failure for the message. Default: the class of ``error``.
    """
    place = found[0] if (found := _SERVER.match(server or "")) else None
    below: BaseException | None = error
    why = ""
    while below is not None and not why:
        why = _unreachable_reason(below, words)
        below = below.__cause__ or below.__context__
    if not why:
        what = f"the connection to {place} failed" if place else "the connection failed"
        return ConnectionFailed(what, got=got or type(error).__name__)
    failed = ConnectionFailed(
        f"cannot connect to {place or 'the server'}: {why}; is the server running, and is endpoint_url (or "
        "AWS_ENDPOINT_URL) right?"
    )
    failed.is_unreachable = True
    return failed


def _unreachable_reason(error: BaseException, words: str) -> str:
    text = f"{words} {error}"
    if isinstance(error, ConnectionRefusedError) or any(sign in text for sign in _REFUSED):
        return "connection refused"
    if isinstance(error, socket.gaierror) or any(sign in text for sign in _UNRESOLVED):
        return "the host's name does not resolve"
    return ""
