"""Is the server there, is it the right one, and do its clock and ours agree: one unsigned request tells all of it."""

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
from storage.stores.answers import parse_time

__all__ = [
    "Answer",
    "Failure",
    "Place",
    "ask",
    "judge_clock",
    "judge_endpoint",
    "judge_path_style",
    "judge_region",
    "judge_tls",
]

# S3 refuses signatures that are more than 15 minutes off (RequestTimeTooSkewed).
MAX_SKEW_S = 15 * 60
_NOTICED_SKEW_S = 60
_CERTIFICATE_ADVICE = (
    "if the server has a certificate of your own authority, name that in AWS_CA_BUNDLE; verify_tls=false gives up on"
    " knowing whom you talk to"
)


FailureKind = Literal["name", "refused", "certificate", "tls", "late", "broken"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bucket is said to be.

    Attributes:
        bucket: Its name.
        endpoint_url: None is AWS.
        region: None where nobody says.
        path_style: As the option; None leaves it to the endpoint.
        verify_tls: As the option.
        ca_bundle: Path of certificates to trust, as AWS_CA_BUNDLE names it; None for the system's.
    """

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None
    verify_tls: bool = True
    ca_bundle: str | None = None

    @property
    def server_url(self) -> str:
        """The endpoint, AWS's own included."""
        if self.endpoint_url is not None:
            return self.endpoint_url.rstrip("/")
        return f"https://s3.{self.region}.amazonaws.com" if self.region else "https://s3.amazonaws.com"

    @property
    def uses_path_style(self) -> bool:
        """Whether the bucket stands in the path of requests rather than in the host's name."""
        return self.endpoint_url is not None if self.path_style is None else self.path_style


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said to somebody without keys; a refusal is an answer.

    Attributes:
        status: HTTP status.
        seconds: From the request to the answer's head, connecting included.
        machine_time: When the answer came, by this machine's clock.
        store_time: By the server's; None if it does not say.
        region: Of the bucket; None if it does not say.
    """

    status: int
    seconds: float
    machine_time: datetime
    store_time: datetime | None
    region: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there was no answer."""

    kind: FailureKind
    seconds: float


async def ask(
    place: Place,
    *,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Answer | Failure:
    """Sends one unsigned HEAD for the bucket.

    Raises:
        OSError: The file of certificates cannot be read.

    Cancellation: The connection is released.
    """
    trusted = ssl.create_default_context(cafile=place.ca_bundle) if place.verify_tls and place.ca_bundle else None
    begun = clock()

    def failed(kind: FailureKind) -> Failure:
        return Failure(kind, clock() - begun)

    try:
        async with (
            asyncio.timeout(deadline_s),
            aiohttp.ClientSession(trust_env=True) as session,
            session.head(
                f"{place.server_url}/{place.bucket}", allow_redirects=False, ssl=trusted or place.verify_tls
            ) as answer,
        ):
            return Answer(
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


def judge_endpoint(place: Place, answer: Answer | Failure) -> Finding:
    """Whether anybody answers there."""
    where = place.server_url
    if isinstance(answer, Answer):
        facts = {"status": answer.status, "answer_s": round(answer.seconds, 4)}
        if answer.status >= 500:
            return Finding(
                "endpoint", Level.FAIL, f"{where} answers with status {answer.status}", "look at the server", facts
            )
        return Finding("endpoint", Level.OK, f"{where} answers after {answer.seconds * 1e3:.0f} ms", facts=facts)
    said, advice = {
        "name": ("has a name that nobody knows", "check the endpoint's spelling, the region, and this machine's DNS"),
        "refused": (
            "does not take connections",
            "check the port, whether the server runs, and firewalls, routes and endpoint policies on the way",
        ),
        "certificate": ("has a certificate that is not to be trusted", _CERTIFICATE_ADVICE),
        "tls": ("does not speak TLS", "check the port, and whether it wants http://"),
        "late": (
            f"did not answer within {answer.seconds:.0f} s",
            "a firewall that drops packets looks like this, and a private subnet without a gateway endpoint",
        ),
        "broken": ("does not speak HTTP", "check the port, and whether it wants https:// or http://"),
    }[answer.kind]
    return Finding("endpoint", Level.FAIL, f"{where} {said}", advice, {"kind": answer.kind})


def judge_tls(place: Place, answer: Answer | Failure) -> Finding:
    """Whether anybody can listen in."""
    server = urlsplit(place.server_url)
    if server.scheme != "https":
        if _is_near(server.hostname or ""):
            return Finding("tls", Level.OK, "none, to this machine itself")
        return Finding(
            "tls",
            Level.WARN,
            "none: whoever is on the way reads and changes the data",
            "use https:// if the server can",
        )
    if isinstance(answer, Failure):
        if answer.kind == "certificate":
            return Finding("tls", Level.FAIL, "the server's certificate is not one to trust", _CERTIFICATE_ADVICE)
        if answer.kind == "tls":
            return Finding("tls", Level.FAIL, "none came about", "see endpoint")
        return Finding("tls", Level.WARN, "not known, because nobody answered", "see endpoint")
    if not place.verify_tls:
        return Finding(
            "tls", Level.WARN, "the server's certificate is not checked (verify_tls=false)", _CERTIFICATE_ADVICE
        )
    return Finding("tls", Level.OK, "the server's certificate is good")


def judge_path_style(place: Place) -> Finding:
    """Whether requests name the bucket in a way that the server understands."""
    if place.uses_path_style:
        return Finding("path style", Level.OK, f"{place.server_url}/{place.bucket}/…", facts={"path_style": True})
    facts = {"path_style": False}
    if place.endpoint_url is not None:
        return Finding(
            "path style",
            Level.WARN,
            f"the bucket goes into the host's name at {place.endpoint_url}",
            "few servers of one's own have a name for each bucket: leave path_style out, or set it to true",
            facts,
        )
    if "." in place.bucket:
        return Finding(
            "path style",
            Level.WARN,
            "the bucket's name has dots, which no TLS certificate covers",
            "set path_style=true, or use a bucket without dots",
            facts,
        )
    return Finding("path style", Level.OK, f"{place.bucket} in the host's name", facts=facts)


def judge_region(place: Place, answer: Answer | Failure) -> Finding:
    """Whether requests are signed for the region that the bucket is in."""
    found = answer.region if isinstance(answer, Answer) else None
    facts = {"given": place.region, "found": found}
    if found is not None and place.region is not None and found != place.region:
        advice = f"give region={found}, or --region {found}"
        return Finding("region", Level.FAIL, f"the bucket is in {found}, and {place.region} was given", advice, facts)
    if place.region is None and place.endpoint_url is None:
        said = f"none is given; the bucket is in {found}" if found else "none is given, and nobody told the bucket's"
        return Finding("region", Level.WARN, said, f"give region={found or '…'}", facts)
    agreed = "as the server says" if found else "the server does not say its own"
    return Finding("region", Level.OK, f"{place.region or found or 'the default one'}, {agreed}", facts=facts)


def judge_clock(answer: Answer | Failure) -> Finding:
    """Whether the server will take signatures made by this machine's clock."""
    if isinstance(answer, Failure) or answer.store_time is None:
        return Finding("clock", Level.WARN, "not compared: the server did not tell its time", "see endpoint")
    # The date was written somewhere between question and answer, and has no fractions of seconds.
    skew_s = (answer.machine_time - answer.store_time).total_seconds() - min(answer.seconds, 1.0) / 2 - 0.5
    facts = {"skew_s": round(skew_s, 1)}
    side = "ahead of" if skew_s > 0 else "behind"
    said = f"{abs(skew_s):.0f} s {side} the server's"
    advice = "set it, by `timedatectl set-ntp true` or chrony"
    if abs(skew_s) >= MAX_SKEW_S:
        return Finding("clock", Level.FAIL, f"{said}: it refuses signatures 15 minutes off", advice, facts)
    if abs(skew_s) >= _NOTICED_SKEW_S:
        return Finding("clock", Level.WARN, f"{said}: from 15 minutes on it refuses signatures", advice, facts)
    return Finding("clock", Level.OK, "agrees with the server's", facts=facts)


def _is_near(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
