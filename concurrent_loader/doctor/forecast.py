"""Forecasts images per second: the slowest of store, drive and decoder is the limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Forecast", "Limit", "forecast"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Stores a rate in images per second, and the name of the bottleneck."""

    images_s: float
    by: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """Stores the expected rates for samples of one size.

    Attributes:
        sample_bytes: Encoded size of a sample in bytes.
        cold: Rate of the first epoch, from the store; None if the store was not measured.
        warm: Rate of later epochs, from the cache; None without a cache.
    """

    sample_bytes: int
    cold: Limit | None
    warm: Limit | None

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)


def forecast(
    *,
    sample_bytes: int,
    store_bytes_s: float | None,
    drive_bytes_s: float | None,
    decode_images_s: float | None,
) -> Forecast:
    """Divides the measured rates by the size of a sample.

    Args:
        sample_bytes: Encoded size of a sample in bytes, 1 or more.
        store_bytes_s: Throughput of the store with many requests in flight, in bytes per second; None if unknown.
        drive_bytes_s: Write rate of the cache's drive in bytes per second; None without a cache or a measurement.
        decode_images_s: Images per second on all cores; None if nothing is decoded.
    """
    rates = {
        "store": None if store_bytes_s is None else store_bytes_s / sample_bytes,
        "cache disk": None if drive_bytes_s is None else drive_bytes_s / sample_bytes,
        "decoder": decode_images_s,
    }
    return Forecast(
        sample_bytes,
        None if store_bytes_s is None else _slowest(rates),
        None if drive_bytes_s is None else _slowest({name: rate for name, rate in rates.items() if name != "store"}),
    )


def _slowest(rates: dict[str, float | None]) -> Limit | None:
    known = {name: rate for name, rate in rates.items() if rate is not None}
    if not known:
        return None
    by = min(known, key=lambda name: known[name])
    return Limit(round(known[by], 1), by)
