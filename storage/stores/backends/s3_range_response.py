"""Checks the head of a GET response against the request, because servers and proxies are not trusted."""

from __future__ import annotations

import re

from concurrent_loader.storage.errors import ProtocolViolation

__all__ = ["object_size"]

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


def object_size(status: int, length: int | None, content_range: str | None, span: tuple[int, int] | None) -> int:
    """Returns the size of the object in bytes.

    Args:
        status: HTTP status.
        length: Announced length of the body.
        content_range: ``Content-Range`` header.
        span: Offsets of the requested range, end excluded; None for the whole object.

    Raises:
        ProtocolViolation: The response does not match the request.
    """
    if span is None:
        if status != 200 or length is None:
            raise ProtocolViolation("the response does not match a request for the whole object", got=status)
        return length
    if status != 206:
        raise ProtocolViolation("the response does not match a request for a range", got=status)
    found = _CONTENT_RANGE.fullmatch(content_range or "")
    if found is None:
        raise ProtocolViolation("the response has no valid Content-Range", got=content_range or "")
    first, last, size = (int(digits) for digits in found.groups())
    if first != span[0] or last + 1 != min(span[1], size):
        raise ProtocolViolation("the response has a different range", got=content_range)
    if length != last + 1 - first:
        raise ProtocolViolation("the announced length differs from the range's", got=length)
    return size
