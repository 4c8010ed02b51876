"""Defines `ObjectDataset`: raw objects in a bucket as a dataset, without conversion, with one GET per sample."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.datasets.base import BucketDataset
from concurrent_loader.datasets.object_keys import KeyFilter, folder_labels, suffixes_of
from concurrent_loader.datasets.object_source import ObjectSource
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.datasets.store_options import StoreArguments, takes_store_options
from concurrent_loader.storage.cache import DiskShardCache, ShardCache
from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, SchemaError, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.images import ImageType
from concurrent_loader.storage.listing import (
    Listing,
    decode_listing,
    encode_listing,
    list_objects,
    load_listing,
    save_listing,
)
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.media import MediaType
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema

__all__ = ["ObjectDataset"]

log = logging.getLogger(__name__)

_DIGESTS_AT_ONCE = 2048  # objects, of which as many are in flight as the engine allows
_SAVE_S = 60.0  # the file of a million objects takes a second
_MAX_NAMED = 5  # objects that a message about left-out ones names


class ObjectDataset(BucketDataset):
    """All objects below a URL, as they were when they were listed. Each object is a sample.

    The columns are the payload (``"image"`` by default), ``"key"`` (str) and, with ``labels="folder"``, ``"label"``
    (int64). Samples are in the order of the keys' bytes. Keys with a segment that begins with a dot are left out.

    Args:
        url: URL of the objects; see `ShardDataset`.
        column: Name of the payload column, ``"image"`` by default.
        column_type: Type of the payload column: ``"image"`` (the default), ``"jpeg"``, ``"png"``, ``"webp"``,
            ``"avif"``, ``"gif"``, a type of audio or video such as ``"audio"`` or ``"mp4"``, or ``"bytes"``.
        columns: Columns of samples and batches; all by default. Without the payload column nothing is fetched.
        labels: ``"folder"`` makes the first folder of a key its class; ``metadata["classes"]["label"]`` has the names,
            in the order of their bytes. None, the default, means no labels.
        suffixes: Endings of the keys to include, in any case. Default: the usual endings of the column
            type's files, such as ``.jpg`` and ``.jpeg`` for ``"jpeg"``; all keys for ``"bytes"``.
        pattern: Pattern that keys must match, too; ``*`` and ``?`` also match slashes.
        listing: Local file for the listing, instead of a file in ``cache_dir``. Without either, each opening lists.
        refresh: Whether to list again and replace the stored listing, False by default.
        on_error: Treatment of a key that cannot be read (a line break, bytes that are not UTF-8, ``//``, a broken link)
            and of a folder that cannot be listed: ``"raise"`` (the default) raises an error that names it, ``"skip"``
            leaves it out with a warning.
        **options: Store, request and cache options, such as ``cache_dir``, ``storage_options`` and ``in_flight``; see
            `concurrent_loader.datasets.store_options.StoreOptions`. Objects are cached by URL, key, ETag and size.

    Raises:
        NotFound: No object matches.
        StorageError: The objects cannot be listed.

    Reading an object that was replaced or deleted after the listing raises
    `concurrent_loader.storage.errors.DatasetChanged`, which names the key.

    Thread-safety: All methods may be called from any thread.

    Processes: As for `ShardDataset`; the pickle contains the listing.

    Example:
        >>> from concurrent_loader import ObjectDataset
        >>> with ObjectDataset("images", labels="folder", columns=["key", "label"]) as dataset:
        ...     len(dataset), dataset.metadata["classes"]["label"], dataset[0]
        (6, ['cat', 'dog'], {'key': 'cat/0.jpg', 'label': 0})
    """

    _LIVE = BucketDataset._LIVE | {"_classes", "_columns", "_labels", "_listing", "_schema"}

    @hides_secrets
    @takes_store_options
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        column: str = "image",
        column_type: ImageType | MediaType | Literal["bytes"] = "image",
        columns: Sequence[str] | None = None,
        labels: Literal["folder"] | None = None,
        suffixes: Sequence[str] | None = None,
        pattern: str | None = None,
        listing: str | os.PathLike[str] | None = None,
        refresh: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        **options: Unpack[StoreArguments],
    ) -> None:
        super().__init__(url, **options)
        if labels not in (None, "folder"):
            raise ConfigurationError("labels must be 'folder' or None", got=labels)
        if on_error not in ("raise", "skip"):
            raise ConfigurationError("on_error must be 'raise' or 'skip'", got=on_error)
        if suffixes is not None and (
            isinstance(suffixes, str) or not all(isinstance(suffix, str) for suffix in suffixes)
        ):
            raise ConfigurationError("suffixes must be a list of endings such as ['.jpg']", got=suffixes)
        if pattern is not None and not isinstance(pattern, str):
            raise ConfigurationError("pattern must be a str such as 'train/*.jpg'", got=pattern)
        self._column = column
        self._types = {column: column_type, "key": "str", **({"label": "int64"} if labels else {})}
        self._make_schema()
        self._wanted_columns = None if columns is None else tuple(columns)
        self._by_folder = labels == "folder"
        if suffixes is None and column_type != "bytes":
            suffixes = suffixes_of(column_type)
        self._suffixes = None if suffixes is None else tuple(suffix.lower() for suffix in suffixes)
        self._pattern = pattern
        self._listing_path = None if listing is None else os.fspath(listing)
        self._refresh = refresh
        self._on_error = on_error
        self._listing: Listing | None = None
        self._query = ""  # endpoint, URL and filter that the listing belongs to
        self._open()

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def listing(self) -> Listing:
        """Keys, sizes and ETags of the objects as listed."""
        self._ensure_open()
        assert self._listing is not None
        return self._listing

    @property
    def metadata(self) -> dict[str, Any]:
        """Class names with ``labels="folder"``, otherwise an empty dict."""
        self._ensure_open()
        return {"classes": {"label": list(self._classes)}} if self._by_folder else {}

    @property
    def schema(self) -> Schema:
        """Names and types of all columns."""
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of samples and batches."""
        self._ensure_open()
        return self._columns

    def __len__(self) -> int:
        return len(self.listing)

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Returns ``key`` of all samples as a list, or ``label`` as an array (len,) int64.

        Raises:
            SchemaError: The column does not exist, or is the payload.
        """
        if self.schema[name].kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column cannot be read as a whole; read samples, or use a loader", column=name)
        listing = self.listing
        return listing.keys.tolist() if name == "key" else self._labels.copy()

    def value_lengths(
        self,
        name: str,
        samples: npt.NDArray[np.int64] | None,
        *,
        exact: bool = False,
    ) -> npt.NDArray[np.int64]:
        """Returns the sizes of the objects in bytes, or the lengths of their keys."""
        if self.schema[name].kind is ColumnKind.PAYLOAD:
            return np.asarray(self.listing.sizes, np.int64)[slice(None) if samples is None else samples]
        values = self.column(name) if samples is None else self.column_values(name, samples)
        if isinstance(values, list):
            return np.fromiter(map(len, values), np.int64, len(values))
        return np.asarray(values, np.int64)

    def column_values(self, name: str, samples: npt.NDArray[np.int64]) -> npt.NDArray[Any] | list[Any]:
        """Returns ``key`` or ``label`` of some samples."""
        values = self.column(name)
        return [values[sample] for sample in samples.tolist()] if isinstance(values, list) else values[samples]

    def __repr__(self) -> str:
        opened = f", samples={len(self._listing)}" if self._pid and self._listing is not None else ""
        return f"ObjectDataset({self.url!r}{opened})"

    # -- for views and the loader ----------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> int:
        """63-bit hash that identifies the listing in loader states."""
        return self.listing.fingerprint

    @property
    def unit_bounds(self) -> npt.NDArray[np.int64]:
        """(len + 1,) int64; each object is a unit of one sample."""
        return np.arange(len(self) + 1)

    @property
    def mean_sample_bytes(self) -> float:
        """Mean size of the objects in bytes."""
        return self.listing.num_bytes / max(1, len(self))

    @property
    def unit_sizes(self) -> npt.NDArray[np.int64]:
        """(len,) int64, sizes of the objects in bytes."""
        return self.listing.sizes

    def store_digests(self, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Reads every object whose digest is unknown, and stores the digests in the listing's file.

        From then on, every read is checked against its digest, wherever the dataset is opened with this file. The
        objects are read through the cache, which they fill. After an interruption, call it again: it continues. With
        ``refresh=True``, objects with the same size and ETag keep their digests.

        Args:
            on_progress: Callback, called on the calling thread with the number of objects whose
                digest is known, and the number of all objects.

        Returns:
            Number of objects that were read.

        Raises:
            ConfigurationError: The listing has no file: neither ``listing`` nor ``cache_dir`` was given.
            DatasetChanged: An object was replaced or deleted after the listing.
            OSError: The file cannot be written.

        Example:
            >>> from concurrent_loader import ObjectDataset
            >>> with ObjectDataset("images", listing="images.listing") as dataset:
            ...     dataset.store_digests()
            ...     dataset.store_digests()
            6
            0
        """
        path = self._listing_file(self._cache)
        if path is None:
            raise ConfigurationError("digests are stored in the listing's file: pass listing= or cache_dir=")
        listing = self.listing
        digests = np.zeros(len(listing), np.uint64) if listing.digests is None else listing.digests.copy()
        # Nobody could tell the digest of an empty object from an unknown one, and its size says all.
        wanted = np.flatnonzero((digests == 0) & (listing.sizes > 0))
        num_read = 0

        async def read(sample: int) -> None:
            data = await self._cache.read_object(listing.entry(sample, self._store.url))
            digests[sample] = xxhash.xxh3_64_intdigest(data)

        def save() -> None:
            self._listing = replace(listing, digests=digests.copy())
            save_listing(path, self._listing, self._query)

        saved_s = monotonic()
        try:
            while num_read < len(wanted):
                part = wanted[num_read : num_read + _DIGESTS_AT_ONCE].tolist()
                self._loop.run(map_concurrently(read, part))
                num_read += len(part)
                if on_progress is not None:
                    on_progress(len(listing) - len(wanted) + num_read, len(listing))
                if monotonic() - saved_s > _SAVE_S:
                    save()
                    saved_s = monotonic()
        finally:
            save()
        return num_read

    async def read_samples(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several objects concurrently. Must be called on `loop`."""
        return await self._read_many(samples, columns)

    def make_source(self, selection: Selection | None, columns: Sequence[str]) -> ObjectSource:
        """Makes a source of objects for one iteration, with all samples or the selected ones."""
        self._ensure_open()
        engine = self._engine
        return ObjectSource(
            self._store.url,
            self.listing,
            self._labels if self._by_folder else None,
            self._cache,
            payload=self._column,
            selection=selection,
            with_payload=self._column in columns,
            in_flight=lambda: engine.limit,
        )

    async def _read_many(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        source = self.make_source(None, columns)
        row = np.zeros(1, np.int64)

        async def read(sample: int) -> dict[str, Any]:
            try:
                unit = await source.acquire(sample)
            except StorageError as error:
                error.locate(url=source.url(sample), sample=sample)
                raise
            values = {name: unit.values(name, row)[0] for name in columns}
            return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}

        return await map_concurrently(read, samples)

    # -- opening ---------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._listing is not None:
            state["_encoded_listing"] = encode_listing(self._listing, self._query)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        encoded = state.pop("_encoded_listing", None)
        super().__setstate__(state)
        self._make_schema()
        self._listing = None if encoded is None else decode_listing(encoded, self._query)

    def _make_schema(self) -> None:
        self._schema = Schema.parse(self._types)

    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        asked = {"at": engine.store.endpoint, "suffixes": self._suffixes, "pattern": self._pattern, "url": self.url}
        if self._on_error == "skip":
            asked["on_error"] = "skip"
        self._query = json.dumps(asked, sort_keys=True)
        # Another process, or a forked child, reuses the listing of this one.
        listing = self._listing if self._listing is not None else await self._find_listing(engine, cache)
        if not len(listing):
            raise NotFound(f"found no object {KeyFilter(self._suffixes, self._pattern)}", url=self.url)
        self._refresh = False
        self._classes, self._labels = (
            folder_labels(listing, self.url) if self._by_folder else ((), np.empty(0, np.int64))
        )
        self._columns = self._schema.names if self._wanted_columns is None else self._wanted_columns
        for name in self._columns:
            self._schema[name]
        self._listing = listing

    async def _find_listing(self, engine: FetchEngine, cache: ShardCache) -> Listing:
        path = self._listing_file(cache)
        kept = None
        if path is not None:
            try:
                kept = await asyncio.to_thread(load_listing, path, self._query)
            except (OSError, FormatError) as error:
                log.warning("the listing %s cannot be used, so the objects are listed again: %s", path, error)
            if kept is not None and not self._refresh:
                return kept
        problems: list[StorageError] = []
        seen = KeyFilter(self._suffixes, self._pattern)
        listing = await list_objects(engine, seen, problems)
        self._report_problems(problems)
        if seen.num_manifests and not len(listing):
            raise ConfigurationError("the URL has a dataset of shards: open it with ShardDataset", url=self.url)
        if kept is not None:
            listing = listing.with_digests_of(kept)
        if path is not None and len(listing):
            try:
                await asyncio.to_thread(partial(save_listing, path, listing, self._query))
            except OSError as error:
                log.warning("the listing cannot be stored in %s: %s", path, error)
        return listing

    def _report_problems(self, problems: list[StorageError]) -> None:
        if not problems:
            return
        names = ", ".join(printable(problem.key or "") for problem in problems[:_MAX_NAMED])
        more = f" and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        if self._on_error == "raise":
            error = problems[0]
            error.what += (
                f"; {len(problems)} in total: {names}{more}; rename them, or pass on_error='skip' to leave them out"
            )
            raise error
        log.warning("%d objects of %s cannot be read and are left out: %s%s", len(problems), self.url, names, more)

    def _listing_file(self, cache: ShardCache) -> Path | None:
        if self._listing_path is not None:
            return Path(self._listing_path).expanduser()
        if self.cache_dir is None or not isinstance(cache, DiskShardCache):
            return None  # no folder, or a folder that the cache does not trust
        name = xxhash.xxh3_128_hexdigest(self._query.encode(errors="surrogatepass"))
        return Path(self.cache_dir).expanduser() / f"{name}.listing"
