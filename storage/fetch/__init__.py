"""Fetches bytes from a store: retries, resumption, limits, hedged requests, digests."""

from concurrent_loader.storage.fetch.engine import FetchEngine, InFlight, check_in_flight
from concurrent_loader.storage.fetch.hedging import HedgePolicy
from concurrent_loader.storage.fetch.retry import RetryPolicy
from concurrent_loader.storage.fetch.stats import Counters, FetchStats

__all__ = ["Counters", "FetchEngine", "FetchStats", "HedgePolicy", "InFlight", "RetryPolicy", "check_in_flight"]
