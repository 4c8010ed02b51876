"""How bytes are brought from a store: retries, resumption, limits, doubles, digests."""

from storage.fetch.engine import FetchEngine, InFlight, check_in_flight
from storage.fetch.hedging import HedgePolicy
from storage.fetch.retry import RetryPolicy
from storage.fetch.stats import FetchStats

__all__ = ["FetchEngine", "FetchStats", "HedgePolicy", "InFlight", "RetryPolicy", "check_in_flight"]
