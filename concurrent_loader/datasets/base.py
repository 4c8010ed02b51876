"""Opens and closes the resources of a dataset in a bucket: an event loop, a store, a fetch engine and a cache."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack

from concurrent_loader.datasets.store_options import StoreArguments, StoreOptions
from concurrent_loader.datasets.views import WholeDataset
from concurrent_loader.storage.cache import CacheStats, ShardCache
from concurrent_loader.storage.checked_url import check_there, check_url
from concurrent_loader.storage.errors import StoreClosed
from concurrent_loader.storage.fetch import FetchEngine, FetchStats
from concurrent_loader.storage.fork_safety import leak_reference, register_fork_handler
from concurrent_loader.storage.freed_memory import keep_freed_memory
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.secret import hide
from concurrent_loader.storage.sizes import Size

__all__ = ["BucketDataset"]

_log = logging.getLogger(__name__)

_UNWIND_S = 50.0  # longer than a pipeline waits for its threads; after that, only a hanging drive is left
_CLOSE_S = 60.0  # timeout of `close`


class BucketDataset(WholeDataset):
    """Samples below one URL. Owns the thread of an event loop, a store, a fetch engine and a cache.

    A subclass implements `_read_contents`, and adds attributes that must not be pickled to ``_LIVE``.

    Args:
        url: URL of the dataset.
        **options: Fields of `concurrent_loader.datasets.store_options.StoreOptions`.
    """

    # Attributes that belong to one process, and are left out of pickles.
    _LIVE = frozenset({"_cache", "_closed", "_engine", "_loop", "_opening", "_pid", "_store"})

    def __init__(self, url: str | os.PathLike[str], **options: Unpack[StoreArguments]) -> None:
        self._closed, self._pid = False, 0
        self._options = StoreOptions(**options)
        # A Path is always a local path; a string may also be a URL.
        self._url = check_url(url) if isinstance(url, str) else str(Path(url).absolute())
        self._is_known = False  # whether the store has answered before, here or in the process that pickled this
        self._opening = threading.RLock()
        register_fork_handler(self)

    @property
    def url(self) -> str:
        """URL of the dataset, without credentials."""
        return self._url

    @property
    def fetch_stats(self) -> FetchStats:
        """Counters of requests and bytes in this process."""
        self._ensure_open()
        return self._engine.stats

    @property
    def cache_stats(self) -> CacheStats:
        """Counters of cache hits and misses in this process."""
        self._ensure_open()
        return self._cache.stats

    @property
    def cache_dir(self) -> str | None:
        """Cache folder as given; None without a cache."""
        return None if self._options.cache_dir is None else os.fspath(self._options.cache_dir)

    @property
    def loop(self) -> LoopThread:
        """Thread with the event loop for all requests of this dataset in this process."""
        self._ensure_open()
        return self._loop

    def with_storage_options(self, **storage_options: Any) -> Self:
        """Returns the same snapshot of this dataset with other storage options.

        Use it for a dataset that was unpickled without its secrets.

        Args:
            **storage_options: Options to replace; None removes an option.
        """
        options = {**(self._options.storage_options or {}), **hide(storage_options)}
        kept = {name: value for name, value in options.items() if value is not None}
        return self._with(_options=replace(self._options, storage_options=kept), _is_known=False)

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Self:
        """Returns the same snapshot of this dataset with another cache.

        Args:
            cache_dir: Cache folder; see `concurrent_loader.datasets.store_options.StoreOptions`.
            cache_bytes: Budget of the folder. Default: half of the drive's free space.
        """
        return self._with(_options=replace(self._options, cache_dir=cache_dir, cache_bytes=cache_bytes))

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__setstate__({**self.__getstate__(), **changes})
        return other

    def close(self) -> None:
        """Closes connections, files and the event loop's thread. Idempotent.

        Closing takes at most 60 s. Tasks that have not ended by then are left running, with a warning, until the
        process exits.
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
        # At interpreter exit the loop's daemon thread may have ended already, and there is nothing to wait for.
        if self.__dict__.get("_pid") != os.getpid() or self._closed or not threading.main_thread().is_alive():
            return
        if threading.current_thread() is threading.main_thread():
            self.close()
        else:
            # The garbage collector runs on any thread. On the loop's thread, closing would wait for itself.
            threading.Thread(target=self.close, name="dataset-close", daemon=True).start()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._LIVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._closed, self._pid = False, 0
        self._opening = threading.RLock()
        register_fork_handler(self)

    # -- opening ---------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """Leaves open resources to the parent process. The next use opens the dataset again."""
        self._opening = threading.RLock()
        leak_reference(dict(self.__dict__))

    @abstractmethod
    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        """Reads what the dataset contains, and checks the options against it. Called at each opening."""

    def _ensure_open(self) -> None:
        if self._pid == os.getpid():
            return
        with self._opening:
            if self._closed:
                raise StoreClosed("this dataset is closed; open it again to read from it", url=self.url)
            if self._pid != os.getpid():
                self._open()

    def _open(self) -> None:
        keep_freed_memory()
        check_there(self._url)
        self._store = self._options.open_store(self._url)
        self._engine = self._options.make_engine(self._store, is_known=self._is_known)
        self._loop = LoopThread(name="dataset-loop")
        self.__dict__.pop("_cache", None)
        try:
            self._loop.run(self._open_contents())
        except BaseException:
            self._release()
            raise
        self._pid, self._is_known = os.getpid(), True

    async def _open_contents(self) -> None:
        cache = self._options.open_cache(self._engine, self._url)
        self._cache = cache
        await self._read_contents(self._engine, cache)

    def _release(self) -> None:
        deadline_s = monotonic() + _CLOSE_S
        try:
            # A loop that does not answer is left running. A loop that has ended with the interpreter needs no closing.
            with suppress(StoreClosed, TimeoutError):
                self._loop.run(self._close_all(), timeout_s=_CLOSE_S)
        finally:
            self._loop.close(max(0.0, deadline_s - monotonic()))

    async def _close_all(self) -> None:
        # Readers end first: no thread may find its shard's descriptor closed, or reused for another file.
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            _, late = await asyncio.wait(running, timeout=_UNWIND_S)
            if late:
                _log.warning(
                    "%d tasks of a dataset still wait for the local drive; the dataset is closed nevertheless",
                    len(late),
                )
        cache = self.__dict__.get("_cache")
        if cache is not None:
            await cache.close()
        await self._store.close()
