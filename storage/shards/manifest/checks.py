"""Checks the contents of a manifest, beyond the types of its fields, on every write and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.checked_url import check_url
from concurrent_loader.storage.errors import ConfigurationError, FormatError, SchemaError
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.format.transforms import MAX_UNIT_BYTES, check_transform
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardTable
from concurrent_loader.storage.shards.manifest.source_ranges import SourceRanges
from concurrent_loader.storage.stores.objects import check_key

__all__ = ["check_manifest"]

Counts = npt.NDArray[np.int64]


def check_manifest(manifest: Manifest, *, url: str | None = None) -> None:
    """Checks keys, sizes, counts and the order of bundles.

    Raises:
        FormatError: The manifest contradicts itself.
    """
    try:
        schema = Schema.parse(manifest.schema)
    except SchemaError as error:
        raise FormatError(f"the manifest's columns are invalid: {error}", url=url) from error
    if schema.to_dict() != manifest.schema:
        raise FormatError(
            "a column's type is not in its canonical form", url=url, expected=schema.to_dict(), got=manifest.schema
        )
    if (manifest.snapshot == 1) != (manifest.parent is None):
        raise FormatError("only snapshot 1 must have no parent", url=url, got=manifest.snapshot)
    unknown = manifest.statistics.keys() - manifest.schema.keys()
    if unknown:
        raise FormatError("there are statistics of an unknown column", url=url, column=min(unknown))
    _check_places(manifest, url)
    for part in manifest.parts:
        try:
            stored = Schema.parse(part.schema)
        except SchemaError as error:
            raise FormatError(f"the place of a column is invalid: {error}", url=url) from error
        _check_shards(part.table, stored, url)
        _check_bundles(part.bundles, manifest.num_stored_samples, stored, url)
    if manifest.deleted is not None and (last := int(manifest.deleted.ends[-1])) > manifest.num_stored_samples:
        raise FormatError("a deleted row does not exist", url=url, expected=manifest.num_stored_samples, got=last)


def _check_places(manifest: Manifest, url: str | None) -> None:
    places, sets = manifest.places, manifest.column_sets
    if not places:
        if sets:
            raise FormatError("column sets need places of the columns", url=url, got=len(sets))
        return
    if list(places) != list(manifest.schema):
        raise FormatError("each column needs one place", url=url, expected=list(manifest.schema), got=list(places))
    if len(set(places.values())) < len(places):
        raise FormatError("two columns have the same place", url=url)
    used = {place.part for place in places.values()}
    if used != set(range(1 + len(sets))):
        odd = min(used ^ set(range(1 + len(sets))))
        raise FormatError("a column is in a set that does not exist, or a set has no column", url=url, got=odd)
    for number, each in enumerate(sets, 1):
        if each.table.ranges is not None:
            raise FormatError("a column set cannot have virtual shards", url=url, got=number)
        if not np.array_equal(each.table.num_samples, manifest.table.num_samples):
            raise FormatError(
                "the shards of a column set are not aligned with those of the dataset: each must have as many samples",
                url=url, expected=len(manifest.table), got=f"set {number} of {len(each.table)} shards",
            )  # fmt: skip


def _check_shards(table: ShardTable, schema: Schema, url: str | None) -> None:
    for key in table.other_keys.values():
        _check_key(key, "shards/", url)
    if table.ranges is not None:
        _check_ranges(table, table.ranges, url)
    files = _Files(
        table.sizes,
        table.num_samples,
        table.tail_starts,
        np.where(_may_lack_digests(table), -(-table.sizes // CHUNK_BYTES), table.num_chunks),
        min_sample_bytes=sum(column.min_tail_bytes for column in schema),
        key=lambda at: table[at].key,
        url=url,
    )
    files.check()
    files.refuse(
        "payload_bytes do not fit in front of the tail", table.payload_bytes > table.tail_starts - HEADER_BYTES
    )


def _may_lack_digests(table: ShardTable) -> npt.NDArray[np.bool_]:
    """Returns which shards lack digests and may do so: the payload is a plain range of an object with an ETag."""
    missing: npt.NDArray[np.bool_] = table.num_chunks == 0
    if table.ranges is None or not missing.any():
        return np.zeros(len(table), np.bool_)
    pinned = np.array([*(each.etag is not None and not each.transform for each in table.ranges.files), False])
    missing &= pinned[table.ranges.rows[:, 0]]
    return missing


def _check_ranges(table: ShardTable, ranges: SourceRanges, url: str | None) -> None:
    for key in ranges.tail_keys:
        _check_key(key, "tails/", url)
    for each in ranges.files:
        _check_key(each.key, "", url)
        _check_source_url(each.url, url)
        if each.etag is not None and not (each.etag.isascii() and each.etag.isprintable()):  # it becomes a header
            raise FormatError("the ETag of adopted data is invalid", url=url, key=each.key)
        if each.transform:
            try:
                check_transform(each.transform)
            except FormatError as error:
                raise error.locate(url=url, key=each.key) from None
    if len(ranges.rows) != len(table):
        raise FormatError("each shard needs a row of its places", url=url, expected=len(table), got=len(ranges.rows))
    file, start, end, tail, offset = ranges.rows.T
    virtual = file >= 0
    sizes = np.array([*(each.size for each in ranges.files), 0], np.int64)
    plain = np.array([*(not each.transform for each in ranges.files), False])
    impossible = (file < -1) | (file >= len(ranges.files)) | (tail >= len(ranges.tail_keys)) | (virtual & (tail < 0))
    if impossible.any():
        raise FormatError("a virtual shard names an object that is not listed", url=url)
    length = end - start
    impossible = (start < 0) | (length < 0) | (end > sizes[file]) | (offset < 0)
    impossible |= plain[file] & (table.tail_starts != (HEADER_BYTES + length + 7) // 8 * 8)
    impossible |= ~plain[file] & (length > MAX_UNIT_BYTES)
    if (impossible & virtual).any():
        raise FormatError(
            "the places of a virtual shard are impossible", url=url, got=int((impossible & virtual).argmax())
        )


def _check_source_url(source: str, url: str | None) -> None:
    """Checks the URL of adopted data: it must be whole, without credentials, and without control characters.

    Raises:
        FormatError: The URL is invalid.
    """
    try:
        check_url(source)
    except ConfigurationError as error:
        raise FormatError(f"the URL of adopted data is invalid: {error.what}", url=url) from error


def _check_bundles(bundles: Sequence[BundleEntry], num_samples: int, schema: Schema, url: str | None) -> None:
    for bundle in bundles:
        _check_key(bundle.key, "columns/", url)
    files = _Files(
        sizes=np.array([bundle.size for bundle in bundles], np.int64),
        num_samples=np.array([bundle.num_samples for bundle in bundles], np.int64),
        tail_starts=np.array([bundle.tail_start for bundle in bundles], np.int64),
        num_chunks=np.array([len(bundle.chunk_digests) for bundle in bundles], np.int64),
        min_sample_bytes=max(1, sum(column.min_tail_bytes for column in schema.fixed)),
        key=lambda at: bundles[at].key,
        url=url,
    )
    files.check()
    covered = 0
    for bundle in bundles:
        if bundle.first_sample < covered:
            raise FormatError(
                "bundles overlap or are out of order", url=url, shard=bundle.key, sample=bundle.first_sample
            )
        if not bundle.num_samples:
            raise FormatError("a bundle has no samples", url=url, shard=bundle.key)
        covered = bundle.first_sample + bundle.num_samples
    if covered > num_samples:
        raise FormatError("a bundle goes beyond the last sample", url=url, expected=num_samples, got=covered)


def _check_key(key: str, folder: str, url: str | None) -> None:
    try:
        check_key(key)
    except ConfigurationError as error:
        raise FormatError(f"a key is invalid: {error.what}", url=url, shard=key) from error
    if not key.startswith(folder):
        raise FormatError(f"a key must begin with {folder}", url=url, shard=key)


@dataclass(frozen=True, slots=True)
class _Files:
    """The common fields of shards or bundles, as arrays, so that each rule is checked for all files at once."""

    sizes: Counts
    num_samples: Counts
    tail_starts: Counts
    num_chunks: Counts
    min_sample_bytes: int  # smallest number of bytes per sample in the tail
    key: Callable[[int], str]
    url: str | None

    def check(self) -> None:
        self.refuse(
            "tail_start is outside the file",
            (self.tail_starts < HEADER_BYTES) | (self.tail_starts > self.sizes - FOOTER_BYTES),
            got=self.tail_starts,
        )
        # Work and memory grow with the samples, so a file must not claim more samples than its tail can describe.
        most = (self.sizes - self.tail_starts - FOOTER_BYTES) // self.min_sample_bytes
        self.refuse(
            f"more samples than fit: each takes at least {self.min_sample_bytes} bytes behind tail_start",
            self.num_samples > most, expected=most, got=self.num_samples,
        )  # fmt: skip
        num_chunks = -(-self.sizes // CHUNK_BYTES)
        self.refuse(
            "each chunk needs one digest", self.num_chunks != num_chunks, expected=num_chunks, got=self.num_chunks
        )

    def refuse(
        self, what: str, broken: npt.NDArray[np.bool_], *, expected: Counts | None = None, got: Counts | None = None
    ) -> None:
        """Raises an error for the first file that breaks a rule."""
        if broken.any():
            at = int(broken.argmax())
            raise FormatError(
                what, url=self.url, shard=self.key(at),
                expected=None if expected is None else int(expected[at]), got=None if got is None else int(got[at]),
            )  # fmt: skip
