"""Faults of `concurrent_loader.storage.testing.faults.http_proxy`, and scripts that select them.

A script is called once per request, on the proxy's thread, and returns the faults of this request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist

__all__ = [
    "CLOCK_SKEW",
    "EXPIRED_TOKEN",
    "INTERNAL_ERROR",
    "REVOKED",
    "SLOW_DOWN",
    "WRONG_REGION",
    "Announce",
    "Close",
    "Delay",
    "Dribble",
    "Fault",
    "Flip",
    "Rates",
    "Refuse",
    "Request",
    "Reset",
    "Script",
    "ShiftRange",
    "Silence",
    "WholeObject",
    "always",
    "in_order",
    "is_range",
    "seeded",
    "together",
    "unharmed",
]


@dataclass(frozen=True, slots=True)
class Request:
    """One request that reached the proxy.

    Attributes:
        number: Number of the request among all requests of this proxy, from 0.
        connection: Number of the client's connection, from 0.
        method: HTTP method, such as ``"GET"``.
        path: Path as sent, percent-encoded, without the query.
        query: Text after the question mark, or "".
        range: Requested bytes [start, end), or None.
        if_match: ETag of If-Match, or None.
    """

    number: int
    connection: int
    method: str
    path: str
    query: str = ""
    range: tuple[int, int] | None = None
    if_match: str | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answers with an S3 error document instead of calling the server. Some gateways do so with status 200.

    Attributes:
        status: HTTP status.
        code: ``<Code>`` of the document.
        headers: Additional headers, as (name, value).
        more: Additional XML inside the document.
    """

    status: int
    code: str
    headers: tuple[tuple[str, str], ...] = ()
    more: str = ""


SLOW_DOWN = Refuse(503, "SlowDown")
INTERNAL_ERROR = Refuse(500, "InternalError")
CLOCK_SKEW = Refuse(403, "RequestTimeTooSkewed")
EXPIRED_TOKEN = Refuse(400, "ExpiredToken")
REVOKED = Refuse(403, "InvalidAccessKeyId")
WRONG_REGION = Refuse(301, "PermanentRedirect", (("x-amz-bucket-region", "eu-west-1"),), "<Region>eu-west-1</Region>")


@dataclass(frozen=True, slots=True)
class Reset:
    """Resets the connection (RST) before the response, or inside the body after some bytes.

    A negative number counts from the body's end. The last bytes before the reset may be lost.
    """

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Closes the connection inside the body after some bytes; a negative number counts from the end."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Silence:
    """Sends no response, or nothing more after some bytes of the body, until the client hangs up."""

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Delays the response."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Dribble:
    """Sends the body in small pieces with pauses."""

    num_bytes: int
    every_s: float


@dataclass(frozen=True, slots=True)
class ShiftRange:
    """Sends the requested bytes, but with a Content-Range shifted by an offset."""

    by_bytes: int


@dataclass(frozen=True, slots=True)
class WholeObject:
    """Sends 200 and the whole object instead of 206: the range in its place, with zeros around it."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Announces more or fewer bytes in Content-Length than it sends, and then closes the connection."""

    more_bytes: int


@dataclass(frozen=True, slots=True)
class Flip:
    """Inverts the bytes at these offsets of the body; an offset beyond its end wraps around."""

    offsets: tuple[int, ...] = (0,)


Fault = Refuse | Reset | Close | Silence | Delay | Dribble | ShiftRange | WholeObject | Announce | Flip
Script = Callable[[Request], Sequence[Fault]]
Condition = Callable[[Request], bool]


def is_range(request: Request) -> bool:
    """Returns whether a request is a GET of a range of a shard or object, not of a manifest or a listing."""
    return request.method == "GET" and request.range is not None


def unharmed(request: Request) -> Sequence[Fault]:
    """Returns no faults for any request."""
    return ()


def in_order(faults: Iterable[Fault | None], *, when: Condition = is_range) -> Script:
    """Returns a script that gives the n-th matching request the n-th fault; None, and later requests, succeed."""
    remaining = iter(list(faults))

    def script(request: Request) -> Sequence[Fault]:
        fault = next(remaining, None) if when(request) else None
        return () if fault is None else (fault,)

    return script


def always(*faults: Fault, when: Condition = is_range) -> Script:
    """Returns a script that gives all faults to every matching request."""
    return lambda request: faults if when(request) else ()


def together(*scripts: Script) -> Script:
    """Returns a script that concatenates the faults of several scripts."""
    return lambda request: [fault for script in scripts for fault in script(request)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of faults in GETs, as plain numbers that can be sent to another process.

    A request gets at most one of the faults that end or corrupt a response, so their rates add up to at most 1. Latency
    is independent.

    Attributes:
        seed: Seed of all random numbers.
        slow_down: Rate of 503 responses.
        error: Rate of 500 responses.
        reset: Rate of connections reset before the response.
        reset_body: Rate of connections reset inside the body.
        close_body: Rate of connections closed inside the body.
        silence: Rate of missing responses.
        stall: Rate of bodies that stop.
        flip: Rate of range bodies with one inverted byte.
        lie: Rate of wrong Content-Range headers.
        latency_s: Median of a lognormal distribution of delays, in seconds; 0 for no delay.
        sigma: Standard deviation of the logarithm of the delay.
        slow: Rate of requests whose delay is multiplied by ``slow_factor``.
        slow_factor: Factor for slow requests.
    """

    seed: int = 0
    slow_down: float = 0.0
    error: float = 0.0
    reset: float = 0.0
    reset_body: float = 0.0
    close_body: float = 0.0
    silence: float = 0.0
    stall: float = 0.0
    flip: float = 0.0
    lie: float = 0.0
    latency_s: float = 0.0
    sigma: float = 0.5
    slow: float = 0.0
    slow_factor: float = 50.0

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in (*_SPOILERS, "slow")}
        if any(not 0 <= share <= 1 for share in shares.values()) or sum(shares[name] for name in _SPOILERS) > 1 + 1e-9:
            raise ValueError(f"rates must lie between 0 and 1 and add up to at most 1, got {shares}")
        if self.latency_s < 0 or self.sigma < 0 or self.slow_factor < 0:
            raise ValueError("latency_s, sigma and slow_factor must not be negative")


_NORMAL = NormalDist()
_WITHIN_BYTES = 1 << 20  # faults occur within this many bytes of a body; in shorter bodies at the remainder
_SPOILERS: dict[str, Callable[[Request, int], Fault]] = {
    "slow_down": lambda request, place: SLOW_DOWN,
    "error": lambda request, place: INTERNAL_ERROR,
    "reset": lambda request, place: Reset(),
    "reset_body": lambda request, place: Reset(_inside(request, place)),
    "close_body": lambda request, place: Close(_inside(request, place)),
    "silence": lambda request, place: Silence(),
    "stall": lambda request, place: Silence(_inside(request, place)),
    "flip": lambda request, place: Flip((place,)),
    "lie": lambda request, place: ShiftRange(1 + place),
}


def seeded(rates: Rates) -> Script:
    """Returns a script of faults at given rates, a pure function of seed and request number; only GETs get faults."""

    def script(request: Request) -> Sequence[Fault]:
        if request.method != "GET":
            return ()
        rng = random.Random(f"{rates.seed}/{request.number}")  # noqa: S311
        faults: list[Fault] = []
        drawn, place = rng.random(), rng.randrange(_WITHIN_BYTES)
        quantile, is_slow = rng.random(), rng.random() < rates.slow
        if rates.latency_s:
            # The quantile function takes the same number of draws for every outcome.
            normal = _NORMAL.inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12))
            delay_s = rates.latency_s * math.exp(rates.sigma * normal)
            faults.append(Delay(delay_s * rates.slow_factor if is_slow else delay_s))
        for name, make in _SPOILERS.items():
            drawn -= getattr(rates, name)
            # Only ranges have digests: a flipped manifest would be a different manifest.
            if drawn < 0:
                if name not in ("flip", "lie") or is_range(request):
                    faults.append(make(request, place))
                break
        return faults

    return script


def _inside(request: Request, place: int) -> int:
    """Returns a position within the body, so that the fault takes effect."""
    if request.range is None:
        return 0
    return place % max(1, request.range[1] - request.range[0])


assert set(_SPOILERS) <= {field.name for field in fields(Rates)}
