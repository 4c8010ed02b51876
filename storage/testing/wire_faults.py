"""What goes wrong on the wire: the faults that `storage.testing.http_faults` can make, and scripts that say when.

A script is asked once for every request, on the proxy's thread, and returns the faults that this request meets.
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
        number: Of the request among all that this proxy saw, from 0.
        connection: Number of the client's connection that it came on, from 0.
        method: ``"GET"`` and the like.
        path: As sent, percent-encoded, without the query.
        query: What follows the question mark, or "".
        range: The bytes [start, end) that it asks for; None for everything else.
        if_match: The ETag that it insists on, or None.
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
    """Answers with an S3 error document; the server is not asked. Status 200 is a lie that some gateways tell.

    Attributes:
        status: HTTP status.
        code: The document's ``<Code>``.
        headers: Further ones, as (name, value).
        more: Further XML inside the document.
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
    """Resets the connection (RST): before the answer, or inside the body after so many of its bytes.

    A negative number counts from the body's end. The last bytes before it may be lost with the connection.
    """

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the connection cleanly inside the body, after so many bytes; a negative number counts from its end."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A black hole: no answer, or nothing more after so many bytes of the body, until the client hangs up."""

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """The answer begins later."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Dribble:
    """The body comes in drops: so many bytes, a pause, so many bytes."""

    num_bytes: int
    every_s: float


@dataclass(frozen=True, slots=True)
class ShiftRange:
    """Content-Range says that the bytes are others, so far behind those that were asked for and that do come."""

    by_bytes: int


@dataclass(frozen=True, slots=True)
class WholeObject:
    """200 with the whole object instead of 206: the range's bytes in their place, zeros around them."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Content-Length announces so many bytes more (or less) than come; the connection is closed after them."""

    more_bytes: int


@dataclass(frozen=True, slots=True)
class Flip:
    """Inverts the bytes at these offsets of the body; an offset beyond its end wraps around."""

    offsets: tuple[int, ...] = (0,)


Fault = Refuse | Reset | Close | Silence | Delay | Dribble | ShiftRange | WholeObject | Announce | Flip
Script = Callable[[Request], Sequence[Fault]]
Condition = Callable[[Request], bool]


def is_range(request: Request) -> bool:
    """Whether a request is a GET of a range: of a shard or an object, not of a manifest or a listing."""
    return request.method == "GET" and request.range is not None


def unharmed(request: Request) -> Sequence[Fault]:
    """The script of a good day."""
    return ()


def in_order(faults: Iterable[Fault | None], *, when: Condition = is_range) -> Script:
    """The first request that fits gets the first fault, and so on; None and all later requests go well."""
    remaining = iter(list(faults))

    def script(request: Request) -> Sequence[Fault]:
        fault = next(remaining, None) if when(request) else None
        return () if fault is None else (fault,)

    return script


def always(*faults: Fault, when: Condition = is_range) -> Script:
    """Every request that fits gets all of these."""
    return lambda request: faults if when(request) else ()


def together(*scripts: Script) -> Script:
    """The faults of several scripts, one after the other."""
    return lambda request: [fault for script in scripts for fault in script(request)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often what goes wrong with GETs, as plain numbers that can cross a process's border.

    Of the faults that end or spoil an answer a request meets one at most, so their rates add up to 1 at most; latency
    comes on top.

    Attributes:
        seed: Of every draw.
        slow_down: 503.
        error: 500.
        reset: The connection, before the answer.
        reset_body: The connection, inside the body.
        close_body: A clean end inside the body.
        silence: No answer.
        stall: Nothing more, inside the body.
        flip: One byte of the body of a range.
        lie: A wrong Content-Range.
        latency_s: Median of a lognormal distribution of delays; 0 for none.
        sigma: Its shape: the standard deviation of the logarithm.
        slow: Share of requests whose delay is ``slow_factor`` times as long.
        slow_factor: How much longer.
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
            raise ValueError(f"rates lie between 0 and 1 and add up to 1 at most, got {shares}")
        if self.latency_s < 0 or self.sigma < 0 or self.slow_factor < 0:
            raise ValueError("latency_s, sigma and slow_factor are not negative")


_NORMAL = NormalDist()
_WITHIN_BYTES = 1 << 20  # where in a body a fault strikes; shorter bodies are struck at the remainder
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
    """Faults at given rates, as a pure function of the seed and the request's number; other methods go well."""

    def script(request: Request) -> Sequence[Fault]:
        if request.method != "GET":
            return ()
        dice = random.Random(f"{rates.seed}/{request.number}")  # noqa: S311
        faults: list[Fault] = []
        drawn, place = dice.random(), dice.randrange(_WITHIN_BYTES)
        quantile, is_slow = dice.random(), dice.random() < rates.slow
        if rates.latency_s:
            # By its quantile, which takes the same number of draws whatever comes out.
            normal = _NORMAL.inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12))
            delay_s = rates.latency_s * math.exp(rates.sigma * normal)
            faults.append(Delay(delay_s * rates.slow_factor if is_slow else delay_s))
        for name, make in _SPOILERS.items():
            drawn -= getattr(rates, name)
            # Nothing but a range has a digest: a flipped manifest would be another manifest.
            if drawn < 0:
                if name not in ("flip", "lie") or is_range(request):
                    faults.append(make(request, place))
                break
        return faults

    return script


def _inside(request: Request, place: int) -> int:
    """A number of bytes that lies within the body: a fault there must not come too late."""
    if request.range is None:
        return 0
    return place % max(1, request.range[1] - request.range[0])


assert set(_SPOILERS) <= {field.name for field in fields(Rates)}
