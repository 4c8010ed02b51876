"""How bytes are brought from a store: retries, limits, digests."""

from storage.fetch.engine import FetchEngine, FetchStats
from storage.fetch.retry import RetryPolicy

__all__ = ["FetchEngine", "FetchStats", "RetryPolicy"]
