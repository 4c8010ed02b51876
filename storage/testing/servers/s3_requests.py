"""The requests that local servers need: check that the server is up, check its credentials, create a bucket.

botocore signs the requests and the standard library sends them. No settings of the environment apply, because a proxy
named there would not reach a server on the loopback.
"""

from __future__ import annotations

import http.client
import re
import statistics
import time
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, ConnectionFailed, StoreError

__all__ = ["Answer", "create_bucket", "list_buckets", "measure_latency", "send", "send_signed"]

_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20  # upper bound of a response; the rest is not read
_LOCATION = "<CreateBucketConfiguration><LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: the status, and up to 16 MiB of the body."""

    status: int
    body: bytes

    @property
    def code(self) -> str:
        """``<Code>`` of an S3 error, or an empty string."""
        found = re.search(rb"<Code>([^<]+)</Code>", self.body)
        return found[1].decode(errors="replace") if found else ""


def send(
    method: str, url: str, *, headers: dict[str, str] | None = None, body: bytes = b"", timeout_s: float = _TIMEOUT_S
) -> Answer:
    """Sends one request over a new connection.

    Raises:
        ConnectionFailed: No HTTP server responds at the URL in time.
    """
    parts = urlsplit(url)
    connection = _connect(parts, timeout_s)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=body, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.read(_MAX_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed(f"no response to {method}", url=url, got=repr(error)) from error
    finally:
        connection.close()


def list_buckets(endpoint_url: str, credentials: Credentials, *, region: str, timeout_s: float = _TIMEOUT_S) -> Answer:
    """Lists the buckets, which only a server with these credentials allows."""
    return send_signed("GET", f"{endpoint_url}/", credentials, region=region, timeout_s=timeout_s)


def create_bucket(endpoint_url: str, name: str, credentials: Credentials, *, region: str) -> None:
    """Creates a bucket; an existing bucket of the same user is not an error.

    Raises:
        ConfigurationError: The bucket name is invalid.
        AccessDenied: The credentials do not allow it, or another user owns the bucket.
        StoreError: The server rejected the request.
    """
    if not _BUCKET.fullmatch(name):
        raise ConfigurationError(
            "a bucket name must have 3 to 63 lower-case letters, digits, dots and hyphens", got=name
        )
    body = b""
    if region != "us-east-1":  # the only region that must not be named
        body = _LOCATION.format(region).encode()
    answer = send_signed("PUT", f"{endpoint_url}/{name}", credentials, region=region, body=body)
    if answer.status == 200 or answer.code == "BucketAlreadyOwnedByYou":
        return
    error = AccessDenied if answer.status == 403 or answer.code == "BucketAlreadyExists" else StoreError
    raise error("the bucket was not created", url=endpoint_url, key=name, got=f"{answer.status} {answer.code}".strip())


def measure_latency(endpoint_url: str, *, num_requests: int = 15) -> float:
    """Measures the time from a request to the first byte of its response.

    Small unsigned requests are sent one after another over one connection. The first one is not counted, so the result
    does not include the time to connect.

    Args:
        endpoint_url: URL of an HTTP server, such as an S3 endpoint.
        num_requests: Number of measured requests, 15 by default.

    Returns:
        Median in milliseconds.

    Raises:
        ConnectionFailed: No server responds at the URL.

    Example:
        >>> from concurrent_loader.storage.testing import measure_latency
        >>> measure_latency("http://127.0.0.1:9000") < 10  # doctest: +SKIP
        True
    """
    parts = urlsplit(endpoint_url)
    connection = _connect(parts, _TIMEOUT_S)
    try:
        waits_s = [_first_byte_s(connection) for _ in range(num_requests + 1)][1:]
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed("no response", url=endpoint_url, got=repr(error)) from error
    finally:
        connection.close()
    return statistics.median(waits_s) * 1000


def _first_byte_s(connection: http.client.HTTPConnection) -> float:
    begun = time.perf_counter()
    connection.request("GET", "/")
    response = connection.getresponse()
    took_s = time.perf_counter() - begun
    response.read(_MAX_BYTES)
    return took_s


def send_signed(
    method: str, url: str, credentials: Credentials, *, region: str, body: bytes = b"", timeout_s: float = _TIMEOUT_S
) -> Answer:
    """Sends one request signed with the credentials; raises the errors of `send`."""
    request = AWSRequest(method, url, data=body, headers={"Host": urlsplit(url).netloc})
    S3SigV4Auth(credentials, "s3", region).add_auth(request)
    return send(method, url, headers=dict(request.headers.items()), body=body, timeout_s=timeout_s)


def _connect(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("an endpoint must be http://host:port or https://host:port", got=parts.geturl())
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s)
