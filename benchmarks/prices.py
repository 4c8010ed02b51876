"""What stores charge for being read: the list prices of prices.toml, **to be checked** before they are relied on."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.access import Requests

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of one store, in US dollars."""

    store: str  # which, and where it is read from
    get_per_million: float  # GETs and HEADs
    list_per_million: float  # LISTs, of up to 1,000 keys each
    read_per_gib: float  # retrieval and transfer
    source: str  # where the price stands; the page decides, not this table
    note: str  # for which region and class, and what is left out
    confirmed: str  # where the figures were last found, and which of them were not

    def dollars(self, requests: Requests) -> float:
        """Returns what these requests cost."""
        return (
            (requests.gets + requests.heads) * self.get_per_million / 1e6
            + requests.lists * self.list_per_million / 1e6
            + requests.bytes / _GIB * self.read_per_gib
        )


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PRICES_AS_OF: str = _TABLE["as_of"]
PRICES = tuple(Price(**entry) for entry in _TABLE["price"])
