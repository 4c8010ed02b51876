"""Raw objects in a bucket as a data set: no conversion, one GET each, the same loader."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.bucket_dataset import BucketDataset
from concurrent_loader.object_source import ObjectSource
from concurrent_loader.selection import Selection
from storage.cache import DiskShardCache, ShardCache
from storage.errors import ConfigurationError, FormatError, NotFound, SchemaError, StorageError
from storage.fetch import FetchEngine, HedgePolicy, InFlight, RetryPolicy
from storage.hidden_arguments import hides_secrets
from storage.listing import Listing, decode_listing, encode_listing, list_objects, load_listing, save_listing
from storage.map_concurrently import map_concurrently
from storage.printable import printable
from storage.shards.columns import ColumnKind, Schema
from storage.shards.snapshots import is_manifest_key
from storage.sizes import Size

__all__ = ["ObjectDataset"]

log = logging.getLogger(__name__)

_HEDGE = HedgePolicy()
_MAX_NAMED = 5  # objects that a message about left-out ones names
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif")


class ObjectDataset(BucketDataset):
    """All objects below a URL, each of them a sample, as they were when they were listed.

    The columns are the payload (``"image"`` by default), ``"key"`` (str) and, with ``labels="folder"``, ``"label"``
    (int64). Samples are in the order of the keys' bytes. Keys with a segment that begins with a dot are left out.

    Args:
        url: As for `ShardDataset`.
        column: The payload column's name.
        column_type: Its type: ``"image"``, ``"jpeg"``, ``"png"``, ``"webp"``, ``"avif"``, ``"gif"`` or
            ``"bytes"``.
        columns: The columns that samples and batches have; all by default. Without the payload nothing is fetched.
        labels: ``"folder"``: the first folder of a key is its class; ``metadata["classes"]["label"]`` has the names, in
            the order of their bytes.
        suffixes: How a key ends that counts, whatever the case; images' usual ones for images, all for ``"bytes"``.
        pattern: A key that counts also matches this: ``*`` and ``?`` match slashes, too.
        listing: Local file that keeps the listing, instead of one in ``cache_dir``. Without either, each opening lists.
        refresh: List again, and replace what was kept.
        on_error: What happens where an object's key cannot be read (a line break, bytes that are not UTF-8, ``//``, a
            link that leads nowhere) or a folder cannot be listed: ``"raise"`` an error that names it, or ``"skip"`` it
            with a warning.
        cache_dir: As for `ShardDataset`; objects are kept under their URL, key, ETag and size.
        cache_bytes: As for `ShardDataset`.
        cache_required: As for `ShardDataset`.
        client: As for `ShardDataset`.
        storage_options: As for `ShardDataset`.
        in_flight: As for `ShardDataset`.
        bytes_in_flight: As for `ShardDataset`.
        retry: As for `ShardDataset`.
        hedge: As for `ShardDataset`.

    Raises:
        NotFound: There is no such object.
        StorageError: It cannot be listed.

    An object that was replaced or deleted after it was listed is `storage.errors.DatasetChanged`, naming its key, when
    it is read.

    Thread-safety: All methods may be called from any thread.

    Processes: As for `ShardDataset`; the listing goes along in the pickle.
    """

    _LIVE = BucketDataset._LIVE | {"_classes", "_columns", "_labels", "_listing", "_schema"}

    @hides_secrets
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        column: str = "image",
        column_type: Literal["image", "jpeg", "png", "webp", "avif", "gif", "bytes"] = "image",
        columns: Sequence[str] | None = None,
        labels: Literal["folder"] | None = None,
        suffixes: Sequence[str] | None = None,
        pattern: str | None = None,
        listing: str | os.PathLike[str] | None = None,
        refresh: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
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
        if labels not in (None, "folder"):
            raise ConfigurationError("labels is 'folder' or None", got=labels)
        if on_error not in ("raise", "skip"):
            raise ConfigurationError("on_error is 'raise' or 'skip'", got=on_error)
        if suffixes is not None and (
            isinstance(suffixes, str) or not all(isinstance(suffix, str) for suffix in suffixes)
        ):
            raise ConfigurationError("suffixes is a list of endings", got=suffixes)
        if pattern is not None and not isinstance(pattern, str):
            raise ConfigurationError("pattern must be a str such as 'train/*.jpg'", got=pattern)
        self._column = column
        self._types = {column: column_type, "key": "str", **({"label": "int64"} if labels else {})}
        self._make_schema()
        self._wanted_columns = None if columns is None else tuple(columns)
        self._by_folder = labels == "folder"
        if suffixes is None and column_type != "bytes":
            suffixes = _IMAGE_SUFFIXES
        self._suffixes = None if suffixes is None else tuple(suffix.lower() for suffix in suffixes)
        self._pattern = pattern
        self._listing_path = None if listing is None else os.fspath(listing)
        self._refresh = refresh
        self._on_error = on_error
        self._listing: Listing | None = None
        self._question = ""  # what the listing is an answer to
        self._open()

    # -- what is in it ---------------------------------------------------------------------------------------------

    @property
    def listing(self) -> Listing:
        """Keys, sizes and ETags as they were listed."""
        self._ensure_open()
        assert self._listing is not None
        return self._listing

    @property
    def metadata(self) -> dict[str, Any]:
        """Class names, where labels come from folders."""
        self._ensure_open()
        return {"classes": {"label": list(self._classes)}} if self._by_folder else {}

    @property
    def schema(self) -> Schema:
        """All columns and their types."""
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that samples and batches have."""
        self._ensure_open()
        return self._columns

    def __len__(self) -> int:
        return len(self.listing)

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Returns ``key`` of all samples as a list, or ``label`` as an array (len,) int64.

        Raises:
            SchemaError: No such column, or the payload.
        """
        if self.schema[name].kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column is not read as a whole; read samples, or use a loader", column=name)
        listing = self.listing
        return listing.keys.tolist() if name == "key" else self._labels.copy()

    def column_of(self, name: str, samples: npt.NDArray[np.int64]) -> npt.NDArray[Any] | list[Any]:
        """Returns ``key`` or ``label`` of some samples."""
        values = self.column(name)
        return [values[sample] for sample in samples.tolist()] if isinstance(values, list) else values[samples]

    def __repr__(self) -> str:
        opened = f", samples={len(self._listing)}" if self._pid and self._listing is not None else ""
        return f"ObjectDataset({self.url!r}{opened})"

    # -- for views and the loader ----------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> int:
        """Names the listing in loader states."""
        return self.listing.fingerprint

    @property
    def unit_bounds(self) -> npt.NDArray[np.int64]:
        """(len + 1,): each object is a unit of one sample."""
        return np.arange(len(self) + 1)

    @property
    def mean_sample_bytes(self) -> float:
        """Mean size of the objects."""
        return self.listing.num_bytes / max(1, len(self))

    @property
    def unit_sizes(self) -> npt.NDArray[np.int64]:
        """(len,): the objects' sizes in bytes."""
        return self.listing.sizes

    async def reading(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several objects at once; for use on `loop`."""
        return await self._read_many(samples, columns)

    def source_of(self, selection: Selection | None, columns: Sequence[str]) -> ObjectSource:
        """Brings the objects, or those that are selected."""
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
        source = self.source_of(None, columns)
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
            state["_encoded_listing"] = encode_listing(self._listing, self._question)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        encoded = state.pop("_encoded_listing", None)
        super().__setstate__(state)
        self._make_schema()
        self._listing = None if encoded is None else decode_listing(encoded, self._question)

    def _make_schema(self) -> None:
        self._schema = Schema.parse(self._types)

    async def _read_contents(self, engine: FetchEngine, cache: ShardCache) -> None:
        asked = {"at": engine.store.endpoint, "suffixes": self._suffixes, "pattern": self._pattern, "url": self.url}
        if self._on_error == "skip":
            asked["on_error"] = "skip"
        self._question = json.dumps(asked, sort_keys=True)
        # Another process, or a forked child, goes on with what this one knew.
        listing = self._listing if self._listing is not None else await self._find_listing(engine, cache)
        if not len(listing):
            raise NotFound(f"no object here {self._wanted_in_words()}", url=self.url)
        self._refresh = False
        self._classes, self._labels = _by_folder(listing, self.url) if self._by_folder else ((), np.empty(0, np.int64))
        self._columns = self._schema.names if self._wanted_columns is None else self._wanted_columns
        for name in self._columns:
            self._schema[name]
        self._listing = listing

    async def _find_listing(self, engine: FetchEngine, cache: ShardCache) -> Listing:
        path = self._path_of_listing(cache)
        if path is not None and not self._refresh:
            try:
                kept = await asyncio.to_thread(load_listing, path, self._question)
            except (OSError, FormatError) as error:
                log.warning("the listing %s cannot be used, and is made anew: %s", path, error)
            else:
                if kept is not None:
                    return kept
        problems: list[StorageError] = []
        seen = _Seen(self._counts())
        listing = await list_objects(engine, seen, problems)
        self._judge(problems)
        if seen.num_manifests and not len(listing):
            raise ConfigurationError("a data set of shards lies here: open it with ShardDataset", url=self.url)
        if path is not None and len(listing):
            try:
                await asyncio.to_thread(partial(save_listing, path, listing, self._question))
            except OSError as error:
                log.warning("the listing cannot be kept in %s: %s", path, error)
        return listing

    def _judge(self, problems: list[StorageError]) -> None:
        if not problems:
            return
        names = ", ".join(printable(problem.key or "") for problem in problems[:_MAX_NAMED])
        more = f" and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        if self._on_error == "raise":
            error = problems[0]
            error.what += (
                f"; {len(problems)} such: {names}{more}; rename them, or pass on_error='skip' to leave them out"
            )
            raise error
        log.warning("left out of %s, %d that cannot be read: %s%s", self.url, len(problems), names, more)

    def _path_of_listing(self, cache: ShardCache) -> Path | None:
        if self._listing_path is not None:
            return Path(self._listing_path).expanduser()
        if self._cache_dir is None or not isinstance(cache, DiskShardCache):
            return None  # no folder, or one that the cache does not trust
        name = xxhash.xxh3_128_hexdigest(self._question.encode(errors="surrogatepass"))
        return Path(self._cache_dir).expanduser() / f"{name}.listing"

    def _wanted_in_words(self) -> str:
        """What is looked for, for an error."""
        ends = "" if self._suffixes is None else f"whose key ends with {', '.join(self._suffixes)} (see suffixes=)"
        matches = "" if self._pattern is None else f"whose key matches {self._pattern!r}"
        return " and ".join(filter(None, (ends, matches))) or "at all"

    def _counts(self) -> Callable[[str], bool]:
        pattern = None if self._pattern is None else re.compile(fnmatch.translate(self._pattern))

        def counts(key: str) -> bool:
            if self._suffixes is not None and not key.lower().endswith(self._suffixes):
                return False
            if pattern is not None and not pattern.match(key):
                return False
            return not key.startswith(".") and "/." not in key

        return counts


class _Seen:
    """Passes on which keys count, and notes whether manifests of shards are among all keys."""

    def __init__(self, counts: Callable[[str], bool]) -> None:
        self._counts = counts
        self.num_manifests = 0

    def __call__(self, key: str) -> bool:
        self.num_manifests += is_manifest_key(key)
        return self._counts(key)


def _by_folder(listing: Listing, url: str) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Numbers the first folders of all keys.

    Returns:
        The classes, and (n,) int64 labels.
    """
    found: dict[str, int] = {}
    numbers = np.empty(len(listing), np.int64)
    for at, key in enumerate(listing.keys.tolist()):
        folder, slash, _ = key.partition("/")
        if not slash:
            raise ConfigurationError(
                "an object lies in no class folder; leave labels out, or move it", url=url, key=key
            )
        numbers[at] = found.setdefault(folder, len(found))
    names = tuple(sorted(found, key=lambda name: name.encode()))
    rank = np.empty(len(names), np.int64)
    for place, name in enumerate(names):
        rank[found[name]] = place
    return names, rank[numbers]
