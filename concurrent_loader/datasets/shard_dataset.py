"""Defines `ShardDataset`: one snapshot of a dataset of shards in a bucket or folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.base import BucketDataset
from concurrent_loader.datasets.joined_source import JoinedSource
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.datasets.shard_source import ShardSource
from concurrent_loader.datasets.store_options import StoreArguments, takes_store_options
from concurrent_loader.storage.cache import ShardCache
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.joined_reader import JoinedReader, open_reader
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName, load_manifest
from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["ShardDataset"]


class ShardDataset(BucketDataset):
    """One snapshot of a unified-format dataset below a URL.

    Opening sends two concurrent requests, a list and a GET, and a third one if there are several snapshots. Everything
    else is lazy. The snapshot is pinned: samples appended later are not visible.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, a local folder, or any fsspec URL.
        columns: Columns of samples and batches, in this order; all by default. Payload of other columns is not decoded.
        snapshot: Number of the snapshot, a tag (`concurrent_loader.storage.tag_snapshot`), or a `datetime.datetime`
            with a time zone, which means the newest snapshot committed by then. Default: the newest.
        **options: Store, request and cache options, such as ``cache_dir``, ``cache_bytes``, ``client``,
            ``storage_options`` and ``in_flight``; see `concurrent_loader.datasets.store_options.StoreOptions`.

    Raises:
        NotFound: The dataset, the snapshot or the tag does not exist.
        SnapshotDeleted: The snapshot was deleted by garbage collection, now or while it is read.
        StorageError: The dataset cannot be opened.

    Thread-safety: All methods may be called from any thread.

    Processes: A dataset pickles as its arguments and the snapshot's number, and opens on first use in the other
    process. Secrets in ``storage_options`` are only passed to a child process that is being started by spawn or
    forkserver. Any other pickle leaves them out; see `with_storage_options`. A forked process opens the dataset again
    with its own connections. ``gs://`` and ``az://`` do not support that and raise `StoreClosed` there.

    Example:
        >>> from concurrent_loader import ShardDataset
        >>> with ShardDataset("photos", columns=["label"]) as dataset:
        ...     len(dataset), dataset[0]
        (20, {'label': 0})
    """

    _LIVE = BucketDataset._LIVE | {"_columns", "_manifest", "_reader"}

    @hides_secrets
    @takes_store_options
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        snapshot: SnapshotName | None = None,
        **options: Unpack[StoreArguments],
    ) -> None:
        super().__init__(url, **options)
        self._wanted_columns = None if columns is None else tuple(columns)
        self._snapshot = snapshot
        self._manifest: Manifest | None = None
        self._open()

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """Manifest of the pinned snapshot."""
        return self.reader.manifest

    @property
    def metadata(self) -> dict[str, Any]:
        """Free-form JSON stored with the dataset, such as class names."""
        return dict(self.manifest.metadata)

    @property
    def schema(self) -> Schema:
        """Names and types of all columns."""
        return self.reader.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of samples and batches."""
        self._ensure_open()
        return self._columns

    def __len__(self) -> int:
        return len(self.reader)

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Returns one column of all samples: an array (len, *shape) for numbers, a list for str and json.

        Of an optional column, the array is a ``numpy.ma.MaskedArray`` whose nulls are masked, and the list has None.

        Raises:
            SchemaError: The column does not exist, or holds payload (bytes, images, ragged arrays).
        """
        return self.loop.run(self.reader.column(name))

    def column_values(self, name: str, samples: npt.NDArray[np.int64]) -> npt.NDArray[Any] | list[Any]:
        """Returns one column of some samples. Of a str or json column, only their values are decoded."""
        return self.loop.run(self.reader.column(name, samples))

    def value_lengths(
        self, name: str, samples: npt.NDArray[np.int64] | None, *, exact: bool = False
    ) -> npt.NDArray[np.int64]:
        """Returns the lengths of a column's values, of all samples or of some in ascending order."""
        return self.loop.run(self.reader.lengths(name, samples, exact=exact))

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def reader(self) -> DatasetReader:
        """Asynchronous reader of the snapshot. Must be used on `loop`."""
        self._ensure_open()
        return self._reader

    def __repr__(self) -> str:
        opened = f", samples={len(self._reader)}" if self._pid else ""
        return f"ShardDataset({self.url!r}, snapshot={self._snapshot}{opened})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._manifest = None
        super().__setstate__(state)

    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        # A forked child reuses the manifest of its parent.
        manifest = self._manifest or await load_manifest(engine, self._snapshot)
        self._reader = open_reader(manifest, engine, cache)
        self._columns = self._reader.check_columns(self._wanted_columns)
        self._manifest, self._snapshot = manifest, manifest.snapshot

    # -- for views and the loader ----------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> int:
        """63-bit hash that identifies the snapshot in loader states."""
        return self.manifest.fingerprint

    @property
    def unit_bounds(self) -> npt.NDArray[np.int64]:
        """(num_shards + 1,) int64, number of each shard's first sample, and the number of samples."""
        return self.reader.first_samples

    @property
    def mean_sample_bytes(self) -> float:
        """Mean size of a sample in bytes: size of the shards over the number of their rows, also deleted ones."""
        return self.manifest.num_bytes / max(1, self.manifest.num_stored_samples)

    @property
    def unit_sizes(self) -> npt.NDArray[np.int64]:
        """(num_shards,) int64, sizes of the shards in bytes, added columns included."""
        sizes: npt.NDArray[np.int64] = np.sum([part.table.sizes for part in self.manifest.parts], axis=0)
        return sizes

    async def read_samples(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several samples concurrently. Must be called on `loop`."""
        return await self.reader.read_many(samples, columns)

    def make_source(self, selection: Selection | None, columns: Sequence[str]) -> ShardSource | JoinedSource:
        """Makes a source of shards for one iteration, with all samples or the selected ones."""
        reader = self.reader
        if isinstance(reader, JoinedReader):
            return JoinedSource(reader, selection, columns)
        return ShardSource(reader, selection, columns)
