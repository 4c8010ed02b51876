"""A data set in a bucket as Python sees it: length, samples, columns, and the options that belong to it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, overload

import numpy.typing as npt

from storage.cache import CacheStats, open_shard_cache
from storage.errors import ConfigurationError, StoreClosed
from storage.fetch import FetchEngine, FetchStats, HedgePolicy, InFlight, RetryPolicy, check_in_flight
from storage.forking import keep_for_ever, tell_after_fork
from storage.loop_thread import LoopThread
from storage.secrets import Secret, hide, redact_url, reveal
from storage.shards.columns import Schema
from storage.shards.manifest import Manifest, load_manifest
from storage.shards.reader import DatasetReader
from storage.sizes import Size, parse_size
from storage.stores import open_store

__all__ = ["ShardDataset"]

_HEDGE = HedgePolicy()
# What belongs to one process, and stays out of pickles.
_LIVE = frozenset({"_closed", "_columns", "_engine", "_loop", "_manifest", "_opening", "_pid", "_reader", "_store"})


class ShardDataset:
    """One snapshot of a unified-format data set below a URL.

    Opening costs two requests (a list and a GET); everything else is lazy. The snapshot is pinned: what is appended
    later is not seen.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, a local folder, or any fsspec URL.
        columns: The columns that samples and batches have, in this order; all by default. Payload of other columns is
            not decoded.
        snapshot: Its number; the newest by default.
        cache_dir: Folder on a local drive that keeps fetched shards and samples, shared with other processes and data
            sets; see docs/cache.md. Without one, or where it cannot be used, shards live in memory while needed.
        cache_bytes: The budget of all processes together, such as ``"200GiB"``; by default half of what is free on the
            drive, cached files counted as free.
        client: How to reach the store; see `storage.open_store`.
        storage_options: Endpoint, credentials and the like; see `storage.open_store`.
        in_flight: Requests under way at once: at most so many, or ``"auto"`` for as many as the store bears, up to 256.
        bytes_in_flight: Bytes that these requests may have announced at once.
        retry: When to insist and when to give up.
        hedge: When a request that is late is sent a second time; None for never. See docs/fetching.md for all four.

    Raises:
        NotFound: There is no data set, or no such snapshot.
        StorageError: It cannot be opened.

    Thread-safety: All methods may be called from any thread.

    Processes: It pickles as its arguments plus the snapshot's number, and opens itself when it is first used in the
    other process. Secrets among ``storage_options`` go along only to a child process that is being started (by spawn
    or forkserver); from any other pickle they are left out, see `with_storage_options`. In a forked process it opens
    itself again, with connections of its own; ``client="obstore"`` cannot, ``"auto"`` takes aiobotocore for S3 there.
    """

    def __init__(
        self,
        url: str,
        *,
        columns: Sequence[str] | None = None,
        snapshot: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size | None = None,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
        in_flight: InFlight = "auto",
        bytes_in_flight: Size = "128MiB",
        retry: RetryPolicy | None = None,
        hedge: HedgePolicy | None = _HEDGE,
    ) -> None:
        self._closed, self._pid = False, 0
        if cache_bytes is not None and cache_dir is None:
            raise ConfigurationError("cache_bytes needs a cache_dir")
        self._url: str | Secret = hide(url)
        self._wanted_columns = None if columns is None else tuple(columns)
        self._snapshot = snapshot
        self._cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        self._cache_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        self._client = client
        self._storage_options = hide(storage_options or {})
        check_in_flight(in_flight)
        self._in_flight = in_flight
        self._bytes_in_flight = parse_size(bytes_in_flight, name="bytes_in_flight")
        self._retry = retry or RetryPolicy()
        self._hedge = hedge
        self._manifest: Manifest | None = None
        self._opening = threading.RLock()
        tell_after_fork(self)
        self._open()

    # -- what is in it ---------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the data set is, without credentials."""
        return redact_url(self._url) if isinstance(self._url, str) else redact_url(str(reveal(self._url)))

    @property
    def manifest(self) -> Manifest:
        """The pinned snapshot."""
        return self.reader.manifest

    @property
    def metadata(self) -> dict[str, Any]:
        """Free-form JSON that came with the data set, class names for instance."""
        return dict(self.manifest.metadata)

    @property
    def schema(self) -> Schema:
        """All columns and their types."""
        return self.reader.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that samples and batches have."""
        self._ensure_open()
        return self._columns

    def __len__(self) -> int:
        return len(self.reader)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Reads a sample, or several at once for a slice; images come as their encoded bytes.

        Raises:
            IndexError: No such sample.
            StorageError: It could not be fetched or is damaged.
        """
        if isinstance(index, slice):
            samples = range(len(self))[index]
            return self.loop.run(self.reader.read_many(samples, self._columns))
        return self.loop.run(self.reader.read(self._sample(index), self._columns))

    async def getitem_async(self, index: int) -> dict[str, Any]:
        """Reads a sample, for a caller on any event loop; see `__getitem__`."""
        return (await self.getitems_async([index]))[0]

    async def getitems_async(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads several samples at once, in the order of their indices; see `__getitem__`."""
        samples = [self._sample(index) for index in indices]
        return await asyncio.wrap_future(self.loop.submit(self.reader.read_many(samples, self._columns)))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Reads one column of all samples: an array (len, *shape) for numbers, a list for str and json.

        Raises:
            SchemaError: No such column, or one of payload (bytes, images, ragged arrays).
        """
        return self.loop.run(self.reader.column(name))

    # -- how it is read --------------------------------------------------------------------------------------------

    @property
    def fetch_stats(self) -> FetchStats:
        """Requests and bytes so far, in this process."""
        self._ensure_open()
        return self._engine.stats

    @property
    def cache_stats(self) -> CacheStats:
        """Hits and misses so far, in this process."""
        return self.reader.cache.stats

    @property
    def loop(self) -> LoopThread:
        """The thread that all of this data set's requests run on, in this process."""
        self._ensure_open()
        return self._loop

    @property
    def reader(self) -> DatasetReader:
        """The asynchronous reader below; for use on `loop`."""
        self._ensure_open()
        return self._reader

    def with_storage_options(self, **storage_options: Any) -> ShardDataset:
        """Returns this data set, same snapshot and all, to be reached with other options.

        It is for a data set that was unpickled where its secrets did not come along.

        Args:
            **storage_options: Instead of those of the same names; ``None`` takes one away.
        """
        state = self.__getstate__()
        options = {**state["_storage_options"], **hide(storage_options)}
        state["_storage_options"] = {name: value for name, value in options.items() if value is not None}
        other = object.__new__(type(self))
        other.__setstate__(state)
        return other

    def close(self) -> None:
        """Closes connections, files and the loop's thread. Idempotent."""
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
        if self.__dict__.get("_pid") == os.getpid() and not self._closed and threading.main_thread().is_alive():
            self.close()

    def __repr__(self) -> str:
        opened = f", samples={len(self._reader)}" if self._pid else ""
        return f"ShardDataset({self.url!r}, snapshot={self._snapshot}{opened})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _LIVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._closed, self._pid, self._manifest = False, 0, None
        self._opening = threading.RLock()
        tell_after_fork(self)

    def _sample(self, index: int) -> int:
        number = index.__index__()
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        return number

    # -- opening ---------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """What is open belongs to the parent; the next use opens it again."""
        self._opening = threading.RLock()
        keep_for_ever(dict(self.__dict__))

    def _ensure_open(self) -> None:
        if self._pid == os.getpid():
            return
        with self._opening:
            if self._closed:
                raise StoreClosed("this data set is closed", url=self.url)
            if self._pid != os.getpid():
                self._open()

    def _open(self) -> None:
        self._store = open_store(reveal(self._url), client=self._client, **self._storage_options)
        self._engine = FetchEngine(
            self._store,
            in_flight=self._in_flight,
            bytes_in_flight=self._bytes_in_flight,
            retry=self._retry,
            hedge=self._hedge,
        )
        self._loop = LoopThread(name="shard-dataset-loop")
        self.__dict__.pop("_reader", None)
        try:
            self._reader = self._loop.run(self._open_reader())
            self._columns = self._reader.check_columns(self._wanted_columns)
        except BaseException:
            self._release()
            raise
        self._manifest = self._reader.manifest
        self._snapshot = self._manifest.snapshot
        self._pid = os.getpid()

    async def _open_reader(self) -> DatasetReader:
        # A forked child need not ask for what its parent knew.
        manifest = self._manifest or await load_manifest(self._engine, self._snapshot)
        cache = open_shard_cache(self._engine, self._cache_dir, budget_bytes=self._cache_bytes)
        return DatasetReader(manifest, self._engine, cache)

    def _release(self) -> None:
        try:
            self._loop.run(self._close_all())
        finally:
            self._loop.close()

    async def _close_all(self) -> None:
        # What still reads ends first: no thread may find its shard's descriptor closed, or another file behind it.
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        reader = self.__dict__.get("_reader")
        if reader is not None:
            await reader.cache.close()
        await self._store.close()
