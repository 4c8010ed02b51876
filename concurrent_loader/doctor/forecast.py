"""What to expect: the slowest of store, drive and decoder is how many images a second there will be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Forecast", "Limit", "forecast"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Images a second, and what allows no more."""

    images_s: float
    by: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """For samples of one size.

    Attributes:
        sample_bytes: Encoded size of a sample.
        cold: The first epoch, from the store; None if the store was not measured.
        warm: Later epochs, from the cache; None without one.
    """

    sample_bytes: int
    cold: Limit | None
    warm: Limit | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def forecast(
    *,
    sample_bytes: int,
    store_bytes_s: float | None,
    drive_bytes_s: float | None,
    decode_images_s: float | None,
) -> Forecast:
    """Divides what was measured by the size of a sample.

    Args:
        sample_bytes: Encoded size of a sample, 1 or more.
        store_bytes_s: What many requests in flight brought; None if that is not known.
        drive_bytes_s: What the cache's drive takes; None without a cache, or where that was not measured.
        decode_images_s: Of all cores; None where nothing is decoded.
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
