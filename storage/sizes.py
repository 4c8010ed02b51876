"""Parses and formats numbers of bytes, such as ``"64MiB"``."""

from __future__ import annotations

import re

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Size", "format_count", "format_size", "parse_size"]

Size = int | str

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[f"{_letter}iB"] = _UNITS[_letter] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_UNITS_FOLDED = {unit.lower(): factor for unit, factor in _UNITS.items()}


def parse_size(size: Size, *, name: str = "size") -> int:
    """Returns a number of bytes.

    Args:
        size: A non-negative int, or a string: ``"64MiB"`` (powers of 1024), ``"64MB"`` (powers of 1000), ``"4096"``.
        name: Name of the option, for the error.

    Raises:
        ConfigurationError: The argument is not a size.

    Example:
        >>> from concurrent_loader.storage import parse_size
        >>> parse_size("64MiB")
        67108864
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise ConfigurationError(f"{name} must be an int or a string such as '64MiB'", got=size)
    if isinstance(size, int):
        if size < 0:
            raise ConfigurationError(f"{name} must not be negative", got=size)
        return size
    match = _PATTERN.fullmatch(size)
    factor = _UNITS_FOLDED.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ConfigurationError(f"{name} must look like '64MiB', '1.5GB' or '4096'", got=size)
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def format_size(num_bytes: float) -> str:
    """Returns a number of bytes as text.

    Example:
        >>> from concurrent_loader.storage import format_size
        >>> format_size(8_300_000)
        '7.9 MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a count with its noun as text: ``"1 shard"``, ``"2 shards"``, ``"12,000 samples"``.

    Args:
        number: Count.
        noun: Noun in the singular.
        plural: Noun in the plural; the singular with an "s" by default.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
