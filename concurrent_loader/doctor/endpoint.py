"""Checks endpoint, TLS, path style, region and clock with one unsigned request."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

import aiohttp

from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.storage.stores.error_mapping import parse_time

__all__ = [
    "BucketAddress",
    "EndpointFailure",
    "EndpointResponse",
    "check_clock",
    "check_endpoint",
    "check_path_style",
    "check_region",
    "check_tls",
    "probe_endpoint",
]

# S3 refuses signatures that are more than 15 minutes off (RequestTimeTooSkewed).
MAX_SKEW_S = 15 * 60
_NOTICED_SKEW_S = 60
_CERTIFICATE_ADVICE = (
    "if your own authority signed the certificate, set AWS_CA_BUNDLE to its file; verify_tls=false would accept any"
    " server"
)


FailureKind = Literal["name", "refused", "certificate", "tls", "late", "broken"]


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Describes where the bucket is.

    Attributes:
        bucket: Name of the bucket.
        endpoint_url: URL of the server; None for AWS.
        region: Region of the bucket; None if not configured.
        path_style: Option of the same name; None decides by the endpoint.
        verify_tls: Option of the same name.
        ca_bundle: Path of trusted certificates, as in AWS_CA_BUNDLE; None for the system's.
    """

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None
    verify_tls: bool = True
    ca_bundle: str | None = None

    @property
    def server_url(self) -> str:
        """URL of the endpoint, also for AWS."""
        if self.endpoint_url is not None:
            return self.endpoint_url.rstrip("/")
        return f"https://s3.{self.region}.amazonaws.com" if self.region else "https://s3.amazonaws.com"

    @property
    def uses_path_style(self) -> bool:
        """Whether requests name the bucket in the path instead of the host name."""
        return self.endpoint_url is not None if self.path_style is None else self.path_style


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """Stores the response to an unsigned request; a refusal is also a response.

    Attributes:
        status: HTTP status.
        seconds: Time from the request to the head of the response in seconds, including connecting.
        machine_time: Time of the response by this machine's clock.
        store_time: Time of the response by the server's clock; None if unknown.
        region: Region of the bucket; None if the server does not report it.
    """

    status: int
    seconds: float
    machine_time: datetime
    store_time: datetime | None
    region: str | None


@dataclass(frozen=True, slots=True)
class EndpointFailure:
    """Stores why there was no response."""

    kind: FailureKind
    seconds: float


async def probe_endpoint(
    place: BucketAddress,
    *,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> EndpointResponse | EndpointFailure:
    """Sends one unsigned HEAD request for the bucket.

    Raises:
        OSError: The file of certificates cannot be read.

    Cancellation: The connection is released.
    """
    trusted = ssl.create_default_context(cafile=place.ca_bundle) if place.verify_tls and place.ca_bundle else None
    begun = clock()

    def failed(kind: FailureKind) -> EndpointFailure:
        return EndpointFailure(kind, clock() - begun)

    try:
        async with (
            asyncio.timeout(deadline_s),
            aiohttp.ClientSession(trust_env=True) as session,
            session.head(
                f"{place.server_url}/{place.bucket}", allow_redirects=False, ssl=trusted or place.verify_tls
            ) as answer,
        ):
            return EndpointResponse(
                answer.status,
                clock() - begun,
                now(),
                parse_time(answer.headers.get("Date")),
                answer.headers.get("x-amz-bucket-region"),
            )
    except TimeoutError:
        return failed("late")
    except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError):
        return failed("certificate")
    except (aiohttp.ClientSSLError, ssl.SSLError):
        return failed("tls")
    except aiohttp.ClientConnectorDNSError:
        return failed("name")
    except aiohttp.ClientConnectorError as error:
        return failed("name" if isinstance(error.os_error, socket.gaierror) else "refused")
    except (aiohttp.ClientError, OSError, ValueError):
        return failed("broken")


def check_endpoint(place: BucketAddress, answer: EndpointResponse | EndpointFailure) -> Finding:
    """Checks whether a server answers."""
    where = place.server_url
    if isinstance(answer, EndpointResponse):
        facts = {"status": answer.status, "answer_s": round(answer.seconds, 4)}
        if answer.status >= 500:
            return Finding(
                "endpoint",
                Level.FAIL,
                f"{where} answers with status {answer.status}",
                "check the log of the server",
                facts,
            )
        return Finding("endpoint", Level.OK, f"{where} answers after {answer.seconds * 1e3:.0f} ms", facts=facts)
    message, advice = {
        "name": ("cannot be resolved", "check the spelling of the endpoint, the region, and the DNS of this machine"),
        "refused": (
            "refuses connections",
            "check that the server runs, and check the port, firewalls, routes and endpoint policies",
        ),
        "certificate": ("has an untrusted certificate", _CERTIFICATE_ADVICE),
        "tls": ("does not speak TLS", "check the port; if the server has no TLS, use http://"),
        "late": (
            f"did not answer within {answer.seconds:.0f} s",
            "check for a firewall that drops packets, or a private subnet without a gateway endpoint",
        ),
        "broken": ("does not speak HTTP", "check the port, and whether the server expects https:// or http://"),
    }[answer.kind]
    return Finding("endpoint", Level.FAIL, f"{where} {message}", advice, {"kind": answer.kind})


def check_tls(place: BucketAddress, answer: EndpointResponse | EndpointFailure) -> Finding:
    """Checks whether traffic is encrypted and the server is verified."""
    server = urlsplit(place.server_url)
    if server.scheme != "https":
        if _is_loopback(server.hostname or ""):
            return Finding("tls", Level.OK, "not needed on this machine")
        return Finding(
            "tls",
            Level.WARN,
            "no encryption: anyone on the network can read and change the data",
            "use https:// if the server supports it",
        )
    if isinstance(answer, EndpointFailure):
        if answer.kind == "certificate":
            return Finding("tls", Level.FAIL, "the certificate of the server is not trusted", _CERTIFICATE_ADVICE)
        if answer.kind == "tls":
            return Finding("tls", Level.FAIL, "no TLS connection was established", "see the advice for endpoint")
        return Finding("tls", Level.WARN, "unknown, because no server answered", "see the advice for endpoint")
    if not place.verify_tls:
        return Finding(
            "tls", Level.WARN, "the certificate of the server is not verified (verify_tls=false)", _CERTIFICATE_ADVICE
        )
    return Finding("tls", Level.OK, "the certificate of the server is valid")


def check_path_style(place: BucketAddress) -> Finding:
    """Checks whether requests name the bucket in a way that the server understands."""
    if place.uses_path_style:
        return Finding("path style", Level.OK, f"{place.server_url}/{place.bucket}/…", facts={"path_style": True})
    facts = {"path_style": False}
    if place.endpoint_url is not None:
        return Finding(
            "path style",
            Level.WARN,
            f"requests put the bucket into the host name of {place.endpoint_url}",
            "few self-hosted servers have a host name for each bucket: leave out path_style, or set it to true",
            facts,
        )
    if "." in place.bucket:
        return Finding(
            "path style",
            Level.WARN,
            "the name of the bucket has dots, which no TLS certificate covers",
            "set path_style=true, or use a bucket without dots",
            facts,
        )
    return Finding("path style", Level.OK, f"{place.bucket} in the host name", facts=facts)


def check_region(place: BucketAddress, answer: EndpointResponse | EndpointFailure) -> Finding:
    """Checks whether requests are signed for the region of the bucket."""
    found = answer.region if isinstance(answer, EndpointResponse) else None
    facts = {"given": place.region, "found": found}
    if found is not None and place.region is not None and found != place.region:
        advice = f"set region={found}, or pass --region {found}"
        return Finding(
            "region", Level.FAIL, f"the bucket is in {found}, but {place.region} is configured", advice, facts
        )
    if place.region is None and place.endpoint_url is None:
        message = (
            f"no region is configured; the bucket is in {found}"
            if found
            else "no region is configured, and the server does not report the bucket's"
        )
        return Finding("region", Level.WARN, message, f"set region={found or '…'}", facts)
    agreed = "confirmed by the server" if found else "not reported by the server"
    return Finding("region", Level.OK, f"{place.region or found or 'the default region'}, {agreed}", facts=facts)


def check_clock(answer: EndpointResponse | EndpointFailure) -> Finding:
    """Checks whether the clock of this machine is accurate enough for request signatures."""
    if isinstance(answer, EndpointFailure) or answer.store_time is None:
        return Finding(
            "clock", Level.WARN, "unknown: the server did not report its time", "see the advice for endpoint"
        )
    # The server wrote the date between request and response, without fractions of seconds.
    skew_s = (answer.machine_time - answer.store_time).total_seconds() - min(answer.seconds, 1.0) / 2 - 0.5
    facts = {"skew_s": round(skew_s, 1)}
    side = "ahead of" if skew_s > 0 else "behind"
    message = f"{abs(skew_s):.0f} s {side} the server's"
    advice = "synchronize the clock: run `timedatectl set-ntp true`, or use chrony"
    if abs(skew_s) >= MAX_SKEW_S:
        return Finding("clock", Level.FAIL, f"{message}; signatures fail from 15 minutes on", advice, facts)
    if abs(skew_s) >= _NOTICED_SKEW_S:
        return Finding("clock", Level.WARN, f"{message}; signatures fail from 15 minutes on", advice, facts)
    return Finding("clock", Level.OK, "agrees with the server's", facts=facts)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
