"""A data set in a bucket as Python sees it: length, samples, columns, and the options that belong to it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, overload

import numpy.typing as npt

from storage.cache import CacheStats, DiskShardCache, MemoryShardCache, ShardCache
from storage.errors import ConfigurationError
from storage.fetch import FetchEngine, FetchStats, HedgePolicy, InFlight, RetryPolicy, check_in_flight
from storage.loop_thread import LoopThread
from storage.shards.columns import Schema
from storage.shards.manifest import Manifest, load_manifest
from storage.shards.reader import DatasetReader
from storage.sizes import Size, parse_size
from storage.stores import open_store

__all__ = ["ShardDataset"]

_HEDGE = HedgePolicy()


class ShardDataset:
    """One snapshot of a unified-format data set below a URL.

    Opening costs two requests (a list and a GET); everything else is lazy. The snapshot is pinned: what is appended
    later is not seen.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, a local folder, or any fsspec URL.
        columns: The columns that samples and batches have, in this order; all by default. Payload of other columns is
            not decoded.
        snapshot: Its number; the newest by default.
        cache_dir: Folder on a local drive that keeps fetched shards, shared with other processes and data sets. Without
            one, shards live in memory while they are needed.
        cache_bytes: The cache's budget, such as ``"200GiB"``; half of what is free on the drive by default.
        client: How to reach the store; see `storage.open_store`.
        storage_options: Endpoint, credentials and the like; see `storage.open_store`.
        in_flight: Requests under way at once: at most so many, or ``"auto"`` for as many as the store bears, up to 256.
        bytes_in_flight: Bytes that these requests may have announced at once.
        retry: When to insist and when to give up.
        hedge: When a request that is late is sent a second time; None for never. See docs/fetching.md for all four.

    Raises:
        NotFound: There is no data set, or no such snapshot.
        StorageError: It cannot be opened.

    Thread-safety: All methods may be called from any thread. It pickles as its arguments plus the snapshot's number,
    and opens itself again in the other process.
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
        self._closed = False
        if cache_bytes is not None and cache_dir is None:
            raise ConfigurationError("cache_bytes needs a cache_dir")
        self._url = url
        self._wanted_columns = None if columns is None else tuple(columns)
        self._snapshot = snapshot
        self._cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        self._cache_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        self._client = client
        self._storage_options = dict(storage_options or {})
        check_in_flight(in_flight)
        self._in_flight = in_flight
        self._bytes_in_flight = parse_size(bytes_in_flight, name="bytes_in_flight")
        self._retry = retry or RetryPolicy()
        self._hedge = hedge
        self._open()

    # -- what is in it ---------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the data set is."""
        return self._url

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
        number = index.__index__()
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        return self.loop.run(self.reader.read(number, self._columns))

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
        return self._engine.stats

    @property
    def cache_stats(self) -> CacheStats:
        """Hits and misses so far, in this process."""
        return self.reader.cache.stats

    @property
    def loop(self) -> LoopThread:
        """The thread that all of this data set's requests run on."""
        return self._loop

    @property
    def reader(self) -> DatasetReader:
        """The asynchronous reader below; for use on `loop`."""
        return self._reader

    def close(self) -> None:
        """Closes connections, files and the loop's thread. Idempotent."""
        loop = self.__dict__.get("_loop")
        if loop is None or self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            try:
                loop.run(self._close_all())
            finally:
                loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter exit the loop's daemon thread may be gone already; then there is nothing to wait for.
        loop = self.__dict__.get("_loop")
        if loop is not None and not self._closed and threading.main_thread().is_alive():
            self.close()

    def __repr__(self) -> str:
        return f"ShardDataset({self._url!r}, snapshot={self.manifest.snapshot}, samples={len(self)})"

    def __getstate__(self) -> dict[str, Any]:
        live = ("_loop", "_store", "_engine", "_reader", "_columns", "_pid", "_closed")
        state = {name: value for name, value in self.__dict__.items() if name not in live}
        return {**state, "_snapshot": self.manifest.snapshot}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._store = open_store(self._url, client=self._client, **self._storage_options)
        self._engine = FetchEngine(
            self._store,
            in_flight=self._in_flight,
            bytes_in_flight=self._bytes_in_flight,
            retry=self._retry,
            hedge=self._hedge,
        )
        self._loop = LoopThread(name="shard-dataset-loop")
        try:
            self._reader = self._loop.run(self._open_reader())
            self._columns = self._reader.check_columns(self._wanted_columns)
        except BaseException:
            self.close()
            raise

    async def _open_reader(self) -> DatasetReader:
        manifest = await load_manifest(self._engine, self._snapshot)
        return DatasetReader(manifest, self._engine, self._make_cache())

    def _make_cache(self) -> ShardCache:
        if self._cache_dir is None:
            return MemoryShardCache(self._engine)
        budget = self._cache_bytes
        if budget is None:
            os.makedirs(self._cache_dir, mode=0o700, exist_ok=True)  # noqa: PTH103
            drive = os.statvfs(self._cache_dir)
            budget = drive.f_bavail * drive.f_frsize // 2
        return DiskShardCache(self._engine, self._cache_dir, budget_bytes=budget)

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
