"""Declares, once, how a dataset reaches its store and caches what it fetches: the options of every dataset class."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from concurrent_loader.storage.cache import ShardCache, open_shard_cache
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import Counters, FetchEngine, HedgePolicy, InFlight, RetryPolicy, check_in_flight
from concurrent_loader.storage.secret import hide
from concurrent_loader.storage.shards.shard_fetcher import check_source
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.storage.stores import Store, open_store
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["StoreArguments", "StoreOptions", "takes_store_options"]

F = TypeVar("F", bound=Callable[..., None])

_HEDGE = HedgePolicy()


class StoreArguments(TypedDict, total=False):
    """The fields of `StoreOptions` for type checkers, as keyword arguments of a dataset class."""

    cache_dir: str | os.PathLike[str] | None
    cache_bytes: Size | None
    cache_required: bool
    client: str
    storage_options: Mapping[str, Any] | None
    source_options: Mapping[str, Any] | None
    in_flight: InFlight
    bytes_in_flight: Size
    retry: RetryPolicy | None
    hedge: HedgePolicy | None


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Keyword arguments of `ShardDataset` and `ObjectDataset` for the store, its requests and the cache.

    Args:
        cache_dir: Folder on a local drive for fetched data. Several processes and datasets can share one folder; see
            docs/explanation/cache.md. By default there is no cache, and shards stay in memory only while they are
            needed.
        cache_bytes: Budget of the folder for all processes together, such as ``"200GiB"``. Default: half of the drive's
            free space, where cached files count as free.
        cache_required: Whether an unusable ``cache_dir`` is an error, True by default. With False the dataset logs a
            warning and opens without a cache, or reads from a read-only one.
        client: Client library for the store; see `concurrent_loader.storage.open_store`.
        storage_options: Endpoint, credentials and other settings; see `concurrent_loader.storage.open_store`.
        source_options: The same for the store of adopted data, if it is another one than the dataset's. Needed, even if
            empty, if a dataset in a bucket refers to data in another kind of store. Default: ``storage_options`` if
            both URLs have the same scheme.
        in_flight: Maximum number of concurrent requests. Default: ``"auto"``, which adapts to the store, up to 256.
        bytes_in_flight: Maximum number of bytes that the concurrent requests may transfer, 128 MiB by default.
        retry: Policy for repeating failed requests; see docs/explanation/fetching.md.
        hedge: Policy for sending a late request a second time; None disables it. See docs/explanation/fetching.md.

    Raises:
        ConfigurationError: An argument has the wrong type or range, or ``cache_bytes`` is given without ``cache_dir``.
    """

    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: Size | None = None
    cache_required: bool = True
    client: str = "auto"
    storage_options: Mapping[str, Any] | None = None
    source_options: Mapping[str, Any] | None = None
    in_flight: InFlight = "auto"
    bytes_in_flight: Size = "128MiB"
    retry: RetryPolicy | None = None
    hedge: HedgePolicy | None = _HEDGE

    def __post_init__(self) -> None:
        if self.cache_bytes is not None and self.cache_dir is None:
            raise ConfigurationError("cache_bytes needs a cache_dir: pass both, or leave cache_bytes out")
        check_in_flight(self.in_flight)
        checked = {
            "cache_dir": None if self.cache_dir is None else os.fspath(self.cache_dir),
            "cache_bytes": None if self.cache_bytes is None else parse_size(self.cache_bytes, name="cache_bytes"),
            "storage_options": hide(self.storage_options or {}),
            "source_options": None if self.source_options is None else hide(self.source_options),
            "bytes_in_flight": parse_size(self.bytes_in_flight, name="bytes_in_flight"),
            "retry": RetryPolicy.of(self.retry),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def open_store(self, url: str) -> Store:
        """Opens the store that holds a URL."""
        return open_store(url, client=self.client, **(self.storage_options or {}))

    def make_engine(self, store: Store, *, is_known: bool, counters: Counters | None = None) -> FetchEngine:
        """Makes the fetch engine for a store.

        Args:
            store: Store to send requests to.
            is_known: Whether the store has answered before, in this process or in the process that pickled the dataset.
            counters: Counters that another engine counts in as well; None for counters of its own.
        """
        return FetchEngine(
            store,
            in_flight=self.in_flight,
            bytes_in_flight=parse_size(self.bytes_in_flight),
            retry=self.retry,
            hedge=self.hedge,
            is_known=is_known,
            counters=counters,
        )

    def open_cache(self, engine: FetchEngine, url: str) -> ShardCache:
        """Opens the cache folder, or a cache in memory without one.

        Args:
            engine: Engine over the dataset's store.
            url: URL of the dataset.
        """
        return open_shard_cache(
            engine,
            self.cache_dir,
            budget_bytes=self.cache_bytes,
            required=self.cache_required,
            open_source=lambda source: self._open_source(engine, url, source),
        )

    def _open_source(self, engine: FetchEngine, url: str, source: str) -> FetchEngine:
        """Opens the store of adopted data, which the manifest names. A manifest may come from a stranger."""
        options = self.source_options
        if options is None:
            check_source(url, source)
            options = self.storage_options  # a local folder takes none, and a local dataset has none
        store = open_for(source, self.client, options or {})
        return self.make_engine(store, is_known=False, counters=engine.counters)


def takes_store_options(init: F) -> F:
    """Decorates a constructor whose ``**options`` are `StoreOptions`: shows them in its signature."""
    own = inspect.signature(init)
    *named, _ = own.parameters.values()
    options = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(StoreOptions).parameters.values()
    ]
    init.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return init
