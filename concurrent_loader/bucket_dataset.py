"""A data set that is open: what every kind of it owns in a process, and how that comes and goes. Options live here."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from concurrent_loader.heap import keep_freed_memory
from concurrent_loader.views import WholeDataset
from storage.cache import CacheStats, ShardCache, open_shard_cache
from storage.checked_url import check_there, check_url
from storage.errors import ConfigurationError, StoreClosed
from storage.fetch import FetchEngine, FetchStats, HedgePolicy, InFlight, RetryPolicy, check_in_flight
from storage.forking import keep_for_ever, tell_after_fork
from storage.loop_thread import LoopThread
from storage.secrets import hide
from storage.sizes import Size, parse_size
from storage.stores import Store, open_store

__all__ = ["BucketDataset"]

_log = logging.getLogger(__name__)

_UNWIND_S = 50.0  # longer than a pipeline waits for its threads; then only a drive that hangs is left
_CLOSE_S = 60.0  # for all of `close`


class BucketDataset(WholeDataset):
    """Samples below one URL: owns an event loop's thread, a store, a fetch engine and a cache.

    Subclasses say what they read when they open, and keep what must not be pickled under the names in ``_LIVE``.

    Args:
        url: Where the data set is.
        cache_dir: Folder of the cache on a local drive, or None.
        cache_bytes: Its budget.
        cache_required: Whether a folder that cannot be used is an error.
        client: How to reach the store; see `storage.open_store`.
        storage_options: Endpoint, credentials and the like; see `storage.open_store`.
        in_flight: Requests under way at once.
        bytes_in_flight: Bytes that these requests may have announced at once.
        retry: When to insist and when to give up.
        hedge: When a request that is late is sent a second time; None for never.
    """

    # What belongs to one process, and stays out of pickles.
    _LIVE = frozenset({"_cache", "_closed", "_engine", "_loop", "_opening", "_pid", "_store"})

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None,
        cache_bytes: Size | None,
        cache_required: bool,
        client: str,
        storage_options: Mapping[str, Any] | None,
        in_flight: InFlight,
        bytes_in_flight: Size,
        retry: RetryPolicy | None,
        hedge: HedgePolicy | None,
    ) -> None:
        self._closed, self._pid = False, 0
        if cache_bytes is not None and cache_dir is None:
            raise ConfigurationError("cache_bytes needs a cache_dir")
        # A Path is a path, whatever it looks like; a text may be a URL without its scheme.
        self._url = check_url(url) if isinstance(url, str) else str(Path(url).absolute())
        self._cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        self._cache_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        self._cache_required = cache_required
        self._client = client
        self._storage_options = hide(storage_options or {})
        check_in_flight(in_flight)
        self._in_flight = in_flight
        self._bytes_in_flight = parse_size(bytes_in_flight, name="bytes_in_flight")
        self._retry = RetryPolicy.of(retry)
        self._hedge = hedge
        self._is_known = False  # whether the store has answered, here or where a pickle comes from
        self._opening = threading.RLock()
        tell_after_fork(self)

    @property
    def url(self) -> str:
        """Where the data set is."""
        return self._url

    @property
    def fetch_stats(self) -> FetchStats:
        """Requests and bytes so far, in this process."""
        self._ensure_open()
        return self._engine.stats

    @property
    def cache_stats(self) -> CacheStats:
        """Hits and misses so far, in this process."""
        self._ensure_open()
        return self._cache.stats

    @property
    def cache_dir(self) -> str | None:
        """The folder that keeps what was fetched, as given."""
        return self._cache_dir

    @property
    def loop(self) -> LoopThread:
        """The thread that all of this data set's requests run on, in this process."""
        self._ensure_open()
        return self._loop

    def with_storage_options(self, **storage_options: Any) -> Self:
        """Returns this data set, same snapshot and all, to be reached with other options.

        It is for a data set that was unpickled where its secrets did not come along.

        Args:
            **storage_options: Instead of those of the same names; ``None`` takes one away.
        """
        options = {**self._storage_options, **hide(storage_options)}
        kept = {name: value for name, value in options.items() if value is not None}
        return self._with(_storage_options=kept, _is_known=False)

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Self:
        """Returns this data set, same snapshot and all, with another cache; see the arguments of the same names."""
        budget_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        return self._with(_cache_dir=os.fspath(cache_dir), _cache_bytes=budget_bytes)

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__setstate__({**self.__getstate__(), **changes})
        return other

    def close(self) -> None:
        """Closes connections, files and the loop's thread. Idempotent.

        It takes 60 s at most. What has not ended by then is left behind with a warning: it ends with the process.
        """
        with self._opening:
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._pid:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter exit the loop's daemon thread may be gone already; then there is nothing to wait for.
        if self.__dict__.get("_pid") != os.getpid() or self._closed or not threading.main_thread().is_alive():
            return
        if threading.current_thread() is threading.main_thread():
            self.close()
        else:
            # The garbage collector runs on any thread, the loop's included, and that would wait for itself.
            threading.Thread(target=self.close, name="dataset-close", daemon=True).start()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._LIVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._closed, self._pid = False, 0
        self._opening = threading.RLock()
        tell_after_fork(self)

    # -- opening ---------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """What is open belongs to the parent; the next use opens it again."""
        self._opening = threading.RLock()
        keep_for_ever(dict(self.__dict__))

    @abstractmethod
    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        """Finds out what is in the data set, and checks the options against it; called at each opening."""

    def _ensure_open(self) -> None:
        if self._pid == os.getpid():
            return
        with self._opening:
            if self._closed:
                raise StoreClosed("this data set is closed", url=self.url)
            if self._pid != os.getpid():
                self._open()

    def _open(self) -> None:
        keep_freed_memory()
        check_there(self._url)
        self._store: Store = open_store(self._url, client=self._client, **self._storage_options)
        self._engine = FetchEngine(
            self._store,
            in_flight=self._in_flight,
            bytes_in_flight=self._bytes_in_flight,
            retry=self._retry,
            hedge=self._hedge,
            is_known=self._is_known,
        )
        self._loop = LoopThread(name="dataset-loop")
        self.__dict__.pop("_cache", None)
        try:
            self._loop.run(self._open_contents())
        except BaseException:
            self._release()
            raise
        self._pid, self._is_known = os.getpid(), True

    async def _open_contents(self) -> None:
        cache = open_shard_cache(
            self._engine, self._cache_dir, budget_bytes=self._cache_bytes, required=self._cache_required
        )
        self._cache = cache
        await self._read_contents(self._engine, cache)

    def _release(self) -> None:
        deadline_s = monotonic() + _CLOSE_S
        try:
            # A loop that does not answer is left behind below; one that has ended with the interpreter needs nothing.
            with suppress(StoreClosed, TimeoutError):
                self._loop.run(self._close_all(), timeout_s=_CLOSE_S)
        finally:
            self._loop.close(max(0.0, deadline_s - monotonic()))

    async def _close_all(self) -> None:
        # What still reads ends first: no thread may find its shard's descriptor closed, or another file behind it.
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            _, late = await asyncio.wait(running, timeout=_UNWIND_S)
            if late:
                _log.warning(
                    "%d tasks of a data set still wait for the local drive; closing it all the same", len(late)
                )
        cache = self.__dict__.get("_cache")
        if cache is not None:
            await cache.close()
        await self._store.close()
