"""Parses the heads of HTTP messages, changes headers, and joins them again byte for byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from concurrent_loader.storage.testing.faults.wire_faults import Announce, Fault, Refuse, ShiftRange, WholeObject

__all__ = ["AnswerHead", "Body", "RequestHead", "error_document", "plan_answer"]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_HOP_BY_HOP = ("connection", "keep-alive", "expect")
Headers = tuple[tuple[str, str], ...]


def _split(head: bytes) -> tuple[str, Headers]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, tuple((name, value.strip()) for name, _, value in pairs)


def _find(headers: Headers, name: str) -> str | None:
    return next((value for key, value in headers if key.lower() == name), None)


def _join(first: str, headers: Sequence[tuple[str, str]]) -> bytes:
    return "\r\n".join((first, *(f"{name}: {value}" for name, value in headers), "", "")).encode("latin-1")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: HTTP method, such as ``"GET"``.
        target: Path and query, as sent.
        headers: Headers with names and order as sent, so that signatures stay valid.
    """

    method: str
    target: str
    headers: Headers

    @classmethod
    def parse(cls, head: bytes) -> RequestHead:
        """Parses a request's head; raises `ValueError` if it is not HTTP."""
        first, headers = _split(head)
        method, target, _ = first.split(" ")
        return cls(method, target, headers)

    @property
    def path(self) -> str:
        """Target without the query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        """Query without the path."""
        return urlsplit(self.target).query

    @property
    def range(self) -> tuple[int, int] | None:
        """Requested bytes [start, end), or None."""
        found = _RANGE.fullmatch(_find(self.headers, "range") or "")
        return None if found is None else (int(found[1]), int(found[2]) + 1)

    @property
    def if_match(self) -> str | None:
        """ETag of If-Match, or None."""
        return _find(self.headers, "if-match")

    @property
    def num_body_bytes(self) -> int:
        """Length of the body, which clients of S3 always announce."""
        return int(_find(self.headers, "content-length") or 0)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for a 100 response before it sends the body."""
        return (_find(self.headers, "expect") or "").lower() == "100-continue"

    def to_server(self) -> bytes:
        """Returns the head's bytes for the server, on a persistent connection."""
        kept = [(name, value) for name, value in self.headers if name.lower() not in _HOP_BY_HOP]
        return _join(f"{self.method} {self.target} HTTP/1.1", kept)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The head of a response.

    Attributes:
        status: HTTP status.
        reason: Reason phrase.
        headers: All headers, in order.
    """

    status: int
    reason: str
    headers: Headers

    @classmethod
    def parse(cls, head: bytes) -> AnswerHead:
        """Parses a response's head; raises `ValueError` if it is not HTTP."""
        first, headers = _split(head)
        _, status, reason = (*first.split(" ", 2), "")[:3]
        return cls(int(status), reason, headers)

    @property
    def content_length(self) -> int | None:
        """Announced length of the body, or None."""
        value = _find(self.headers, "content-length")
        return None if value is None else int(value)

    @property
    def chunked(self) -> bool:
        """Whether the body uses chunked transfer encoding."""
        return "chunked" in (_find(self.headers, "transfer-encoding") or "").lower()

    @property
    def keeps_connection(self) -> bool:
        """Whether the server accepts another request on this connection."""
        return (_find(self.headers, "connection") or "").lower() != "close"

    @property
    def content_range(self) -> tuple[int, int, int] | None:
        """First byte, last byte and total size of Content-Range, or None."""
        found = _CONTENT_RANGE.fullmatch(_find(self.headers, "content-range") or "")
        return None if found is None else (int(found[1]), int(found[2]), int(found[3]))

    def having(self, **values: str | None) -> AnswerHead:
        """Returns the head with headers replaced (``content_length="5"``), or removed by None."""
        names = {name.replace("_", "-"): value for name, value in values.items()}
        kept = [(name, value) for name, value in self.headers if name.lower() not in names]
        added = [(name.title(), value) for name, value in names.items() if value is not None]
        return replace(self, headers=(*kept, *added))

    def to_client(self, *, close: bool) -> bytes:
        """Returns the head's bytes for the client."""
        kept = [(name, value) for name, value in self.headers if name.lower() not in _HOP_BY_HOP]
        if close:
            kept.append(("Connection", "close"))
        return _join(f"HTTP/1.1 {self.status} {self.reason}", kept)


@dataclass(frozen=True, slots=True)
class Body:
    """A body with zeros around the bytes of the server.

    Attributes:
        before: Number of zeros at the start.
        num_bytes: Number of bytes from the server.
        after: Number of zeros at the end.
    """

    before: int
    num_bytes: int
    after: int

    def __len__(self) -> int:
        return self.before + self.num_bytes + self.after


def plan_answer(head: AnswerHead, num_bytes: int, faults: Sequence[Fault]) -> tuple[AnswerHead, Body, list[Fault]]:
    """Applies the faults that change a response's head.

    Args:
        head: Head from the server.
        num_bytes: Length of the body.
        faults: All faults of the request.

    Returns:
        Head for the client, body that follows it, and the faults that took effect. For example, only a response with a
        range can have it shifted.
    """
    body, told = Body(0, num_bytes, 0), list[Fault]()
    for fault in faults:
        span = head.content_range
        match fault:
            case ShiftRange(by_bytes) if span is not None:
                first, last, size = span
                lie = f"bytes {first + by_bytes}-{last + by_bytes}/{size + by_bytes}"
                head = head.having(content_range=lie)
            case WholeObject() if span is not None:
                first, last, size = span
                body = Body(first, num_bytes, size - last - 1)
                head = replace(head, status=200, reason="OK").having(content_range=None, content_length=str(len(body)))
            case Announce(more_bytes):
                head = head.having(content_length=str(max(0, len(body) + more_bytes)))
            case _:
                continue
        told.append(fault)
    return head, body, told


def error_document(fault: Refuse) -> tuple[AnswerHead, bytes]:
    """Returns the response of a server that refuses a request."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{fault.code}</Code><Message>injected</Message>{fault.more}</Error>"
    )
    body = text.encode()
    headers = (*fault.headers, ("Content-Type", "application/xml"), ("Content-Length", str(len(body))))
    return AnswerHead(fault.status, "Injected", headers), body
