"""Parses the head of an HTTP/1.1 response: strictly, because servers are not trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from concurrent_loader.storage.errors import ProtocolViolation

__all__ = ["MAX_HEAD_BYTES", "ResponseHead", "parse_head", "parse_length"]

MAX_HEAD_BYTES = 64 << 10
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*)\r\n"
)
_DIGITS = {10: re.compile(r"[0-9]{1,18}"), 16: re.compile(r"[0-9A-Fa-f]{1,15}")}


class ResponseHead(NamedTuple):
    """Status line and headers.

    Attributes:
        status: HTTP status.
        headers: Values by name in lower case; repeated headers are joined by commas.
        length: ``Content-Length`` in bytes; None if the header is missing.
        is_chunked: Whether the body uses chunked transfer encoding.
        keep_alive: Whether the server keeps the connection open after the body.
    """

    status: int
    headers: Mapping[str, str]
    length: int | None
    is_chunked: bool
    keep_alive: bool


def parse_head(head: bytes) -> ResponseHead:
    """Parses the head of a response.

    Args:
        head: Bytes up to and including the empty line.

    Raises:
        ProtocolViolation: The bytes are not an HTTP/1.0 or 1.1 head, the lengths contradict each other, or the transfer
            encoding is not ``chunked``.
    """
    found = _HEAD.fullmatch(head.decode("latin-1"))
    if found is None:
        raise ProtocolViolation("the response is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in found[3].split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name != "content-length":
                value = f"{headers[name]}, {value}"
            elif value != headers[name]:
                raise ProtocolViolation("the response has two different Content-Length headers")
        headers[name] = value
    announced, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None and (announced is not None or coding.lower() != "chunked"):
        raise ProtocolViolation("the response has an unsupported transfer encoding", got=coding[:40])
    return ResponseHead(
        status=int(found[2]),
        headers=headers,
        length=None if announced is None else parse_length(announced, 10),
        is_chunked=coding is not None,
        keep_alive=found[1] == "1" and "close" not in headers.get("connection", "").lower(),
    )


def parse_length(text: str, base: int) -> int:
    """Parses plain digits. Unlike `int`, rejects signs, spaces and underscores.

    Raises:
        ProtocolViolation: The text is not a number, or is too long for a length.
    """
    if _DIGITS[base].fullmatch(text) is None:
        raise ProtocolViolation("the response's length is not a number", got=text[:40])
    return int(text, base)
