"""A data set in a bucket as Python sees it: length, samples, columns, and the options that belong to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.bucket_dataset import BucketDataset
from concurrent_loader.selection import Selection
from concurrent_loader.shard_source import ShardSource
from storage.cache import ShardCache
from storage.fetch import FetchEngine, HedgePolicy, InFlight, RetryPolicy
from storage.hidden_arguments import hides_secrets
from storage.shards.columns import Schema
from storage.shards.manifest import Manifest
from storage.shards.reader import DatasetReader
from storage.shards.snapshots import load_manifest
from storage.sizes import Size

__all__ = ["ShardDataset"]

_HEDGE = HedgePolicy()


class ShardDataset(BucketDataset):
    """One snapshot of a unified-format data set below a URL.

    Opening costs two requests at once (a list and a GET), a third where there are several snapshots; everything else
    is lazy. The snapshot is pinned: what is appended later is not seen.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, a local folder, or any fsspec URL.
        columns: The columns that samples and batches have, in this order; all by default. Payload of other columns is
            not decoded.
        snapshot: Its number; the newest by default.
        cache_dir: Folder on a local drive that keeps fetched shards and samples, shared with other processes and data
            sets; see docs/cache.md. Without one, shards live in memory while needed.
        cache_bytes: The budget of all processes together, such as ``"200GiB"``; by default half of what is free on the
            drive, cached files counted as free.
        cache_required: Whether a ``cache_dir`` that cannot be made or written to is an error. With False the dataset
            opens without a cache, or reads what is in a read-only one, and a warning says so.
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

    _LIVE = BucketDataset._LIVE | {"_columns", "_manifest", "_reader"}

    @hides_secrets
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        snapshot: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size | None = None,
        cache_required: bool = True,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
        in_flight: InFlight = "auto",
        bytes_in_flight: Size = "128MiB",
        retry: RetryPolicy | None = None,
        hedge: HedgePolicy | None = _HEDGE,
    ) -> None:
        super().__init__(
            url,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            cache_required=cache_required,
            client=client,
            storage_options=storage_options,
            in_flight=in_flight,
            bytes_in_flight=bytes_in_flight,
            retry=retry,
            hedge=hedge,
        )
        self._wanted_columns = None if columns is None else tuple(columns)
        self._snapshot = snapshot
        self._manifest: Manifest | None = None
        self._open()

    # -- what is in it ---------------------------------------------------------------------------------------------

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

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Reads one column of all samples: an array (len, *shape) for numbers, a list for str and json.

        Raises:
            SchemaError: No such column, or one of payload (bytes, images, ragged arrays).
        """
        return self.loop.run(self.reader.column(name))

    def column_of(self, name: str, samples: npt.NDArray[np.int64]) -> npt.NDArray[Any] | list[Any]:
        """Reads one column of some samples; of a str or json column, nothing else is decoded."""
        return self.loop.run(self.reader.column(name, samples))

    # -- how it is read --------------------------------------------------------------------------------------------

    @property
    def reader(self) -> DatasetReader:
        """The asynchronous reader below; for use on `loop`."""
        self._ensure_open()
        return self._reader

    def __repr__(self) -> str:
        opened = f", samples={len(self._reader)}" if self._pid else ""
        return f"ShardDataset({self.url!r}, snapshot={self._snapshot}{opened})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._manifest = None
        super().__setstate__(state)

    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        # A forked child need not ask for what its parent knew.
        manifest = self._manifest or await load_manifest(engine, self._snapshot)
        self._reader = DatasetReader(manifest, engine, cache)
        self._columns = self._reader.check_columns(self._wanted_columns)
        self._manifest, self._snapshot = manifest, manifest.snapshot

    # -- for views and the loader ----------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> int:
        """Names the snapshot in loader states."""
        return self.manifest.fingerprint

    @property
    def unit_bounds(self) -> npt.NDArray[np.int64]:
        """(num_shards + 1,): where each shard's samples begin, and where the last one's end."""
        return self.reader.first_samples

    @property
    def mean_sample_bytes(self) -> float:
        """Size of the shards over the number of samples."""
        return self.manifest.num_bytes / max(1, self.manifest.num_samples)

    @property
    def unit_sizes(self) -> npt.NDArray[np.int64]:
        """(num_shards,): the shards' sizes in bytes."""
        return self.manifest.table.sizes

    async def reading(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several samples at once; for use on `loop`."""
        return await self.reader.read_many(samples, columns)

    def source_of(self, selection: Selection | None, columns: Sequence[str]) -> ShardSource:
        """Brings the shards, or what is selected of them."""
        return ShardSource(self.reader, selection, columns)
