"""Compares two snapshots of a dataset by their manifests. No data is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["SnapshotDiff", "diff_snapshots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDiff:
    """The differences between two snapshots.

    Attributes:
        snapshots: Numbers of both snapshots.
        num_samples: Number of samples of each.
        added_samples: Samples in shards that only the second snapshot has.
        removed_samples: Samples in shards that only the first snapshot has.
        deleted_samples: Samples in shards of both that only the first snapshot has; negative if the first one has
            fewer of them.
        added_shards: Number of shards that only the second snapshot has.
        removed_shards: Number of shards that only the first snapshot has.
        common_shards: Number of shards that both have.
        added_bytes: Size of the added shards in bytes.
        removed_bytes: Size of the removed shards in bytes.
        is_append: Whether the first snapshot's samples are the beginning of the second's, with the same columns.
        added_columns: Types of the columns that only the second snapshot has, by name.
        removed_columns: Types of the columns that only the first snapshot has, by name.
        changed_columns: Old and new type of columns whose type differs, by name.
        changed_metadata: Keys of the metadata that were added, removed or changed, sorted.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import diff_snapshots, load_manifest, open_store
        >>> manifest = asyncio.run(load_manifest(open_store("photos")))
        >>> diff_snapshots(manifest, manifest).added_samples
        0
    """

    snapshots: tuple[int, int]
    num_samples: tuple[int, int]
    added_samples: int
    removed_samples: int
    deleted_samples: int
    added_shards: int
    removed_shards: int
    common_shards: int
    added_bytes: int
    removed_bytes: int
    is_append: bool
    added_columns: dict[str, str]
    removed_columns: dict[str, str]
    changed_columns: dict[str, tuple[str, str]]
    changed_metadata: tuple[str, ...]


def diff_snapshots(first: Manifest, second: Manifest) -> SnapshotDiff:
    """Compares two snapshots.

    Shards are compared by their digests, so a shard that was written again with other samples counts as removed and
    added.

    Args:
        first: Manifest to compare with.
        second: Manifest that is described.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import diff_snapshots, load_manifest, open_store
        >>> manifest = asyncio.run(load_manifest(open_store("photos")))
        >>> diff_snapshots(manifest, manifest).common_shards == len(manifest.shards)
        True
    """
    before, after = first.table.digests, second.table.digests
    common = Counter(before) & Counter(after)
    removed, added = _only_in(first, common), _only_in(second, common)
    rows = [LiveRows(manifest) for manifest in (first, second)]
    live = [np.diff(each.first_samples) for each in rows]
    added_samples, removed_samples = int(live[1][added].sum()), int(live[0][removed].sum())
    starts_alike = after[: len(before)] == before and np.array_equal(live[1][: len(before)], live[0])
    starts_alike = starts_alike and all(
        np.array_equal(rows[0].rows_of_shard(shard), rows[1].rows_of_shard(shard))
        for shard in np.flatnonzero(live[0] < first.table.num_samples).tolist()
    )
    names = first.metadata.keys() | second.metadata.keys()
    return SnapshotDiff(
        snapshots=(first.snapshot, second.snapshot),
        num_samples=(first.num_samples, second.num_samples),
        added_samples=added_samples,
        removed_samples=removed_samples,
        deleted_samples=first.num_samples - removed_samples + added_samples - second.num_samples,
        added_shards=len(added),
        removed_shards=len(removed),
        common_shards=common.total(),
        added_bytes=int(second.table.sizes[added].sum()),
        removed_bytes=int(first.table.sizes[removed].sum()),
        is_append=starts_alike and list(first.schema.items()) == list(second.schema.items()),
        added_columns={name: kind for name, kind in second.schema.items() if name not in first.schema},
        removed_columns={name: kind for name, kind in first.schema.items() if name not in second.schema},
        changed_columns={
            name: (first.schema[name], kind)
            for name, kind in second.schema.items()
            if first.schema.get(name, kind) != kind
        },
        changed_metadata=tuple(sorted(name for name in names if _value(first, name) != _value(second, name))),
    )


def _only_in(manifest: Manifest, common: Counter[str]) -> list[int]:
    """Returns the places of the shards that the other snapshot does not have."""
    left = Counter(common)
    places = []
    for place, digest in enumerate(manifest.table.digests):
        if left[digest]:
            left[digest] -= 1
        else:
            places.append(place)
    return places


def _value(manifest: Manifest, name: str) -> tuple[object, ...]:
    return (manifest.metadata[name],) if name in manifest.metadata else ()
