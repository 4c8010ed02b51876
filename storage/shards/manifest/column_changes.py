"""Makes the next snapshot of a dataset in which columns were added, renamed or dropped. Pure functions.

No shard changes, and neither do the samples and their order. So a loader's state of one snapshot fits the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.manifest import (
    SAME_SAMPLES_AS,
    ColumnPlace,
    ColumnSet,
    Manifest,
)
from concurrent_loader.storage.shards.manifest.statistics import Statistics

__all__ = ["with_columns", "with_names", "without_columns"]

_BY_COLUMN = ("classes", "encoded")  # keys of the metadata whose values have one entry per column


def with_columns(manifest: Manifest, schema: Mapping[str, str], added: ColumnSet, statistics: Statistics) -> Manifest:
    """Returns the next snapshot, with columns added behind the others.

    Args:
        manifest: Newest snapshot.
        schema: Types of the added columns.
        added: Their shards, aligned with those of the snapshot.
        statistics: Statistics of the added columns.

    Raises:
        SchemaError: A name is taken or invalid, a type is invalid, or there would be more than 256 columns.
    """
    check_new_names(manifest, list(schema))
    whole = Schema.parse({**manifest.schema, **schema}).to_dict()
    part = len(manifest.column_sets) + 1
    return _next(
        manifest,
        schema=whole,
        places={**_places(manifest), **{name: ColumnPlace(part, name) for name in schema}},
        column_sets=(*manifest.column_sets, added),
        statistics={**manifest.statistics, **statistics},
    )


def with_names(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    """Returns the next snapshot, with columns renamed. Names may be exchanged.

    Args:
        manifest: Newest snapshot.
        names: New name of each renamed column.

    Raises:
        SchemaError: A column does not exist, or a new name is invalid or taken.
    """
    _check_existing(manifest, list(names))
    check_new_names(manifest, list(names.values()), leaving=list(names))
    new = {name: names.get(name, name) for name in manifest.schema}
    Schema.parse({new[name]: kind for name, kind in manifest.schema.items()})
    return _next(
        manifest,
        schema={new[name]: kind for name, kind in manifest.schema.items()},
        places={new[name]: place for name, place in _places(manifest).items()},
        statistics={new[name]: facts for name, facts in manifest.statistics.items()},
        metadata=_by_column(manifest.metadata, lambda name: new.get(name, name)),
    )


def without_columns(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """Returns the next snapshot, without some columns. A column set without columns is left out.

    Args:
        manifest: Newest snapshot.
        names: Names of the columns to drop.

    Raises:
        SchemaError: A column does not exist, or no column would be left in the shards themselves.
    """
    _check_existing(manifest, names)
    places = {name: place for name, place in _places(manifest).items() if name not in names}
    used = {place.part for place in places.values()}
    if 0 not in used:
        raise SchemaError(
            "these are the last columns of the dataset's own shards, which every sample needs; write the other columns "
            "as a dataset of their own",
            got=list(names),
        )
    kept = [number for number in range(1 + len(manifest.column_sets)) if number in used]
    renumbered = {number: at for at, number in enumerate(kept)}
    return _next(
        manifest,
        schema={name: kind for name, kind in manifest.schema.items() if name in places},
        places={name: ColumnPlace(renumbered[place.part], place.name) for name, place in places.items()},
        column_sets=tuple(manifest.column_sets[number - 1] for number in kept if number),
        statistics={name: facts for name, facts in manifest.statistics.items() if name in places},
        metadata=_by_column(manifest.metadata, lambda name: None if name in names else name),
    )


def check_new_names(manifest: Manifest, names: Sequence[str], *, leaving: Sequence[str] = ()) -> None:
    """Checks that names are free.

    Args:
        manifest: Snapshot.
        names: New names.
        leaving: Names that columns give up.

    Raises:
        SchemaError: A name is that of a column, or occurs twice.
    """
    for at, name in enumerate(names):
        if (name in manifest.schema and name not in leaving) or name in names[:at]:
            raise SchemaError("the dataset has a column of this name already; drop or rename it first", column=name)


def _check_existing(manifest: Manifest, names: Sequence[str]) -> None:
    if not names:
        raise SchemaError("no column is named", expected=list(manifest.schema))
    for name in names:
        if name not in manifest.schema:
            raise SchemaError("no such column", column=str(name)[:80], expected=list(manifest.schema))


def _places(manifest: Manifest) -> dict[str, ColumnPlace]:
    return {name: manifest.place_of(name) for name in manifest.schema}


def _next(manifest: Manifest, **changes: Any) -> Manifest:
    snapshot = manifest.snapshot + 1
    same = {"digest": manifest.samples_digest, "snapshot": snapshot}
    metadata = {**changes.pop("metadata", manifest.metadata), SAME_SAMPLES_AS: same}
    return replace(
        manifest,
        snapshot=snapshot,
        parent=manifest.digest,
        metadata=metadata,
        **changes,
    )


def _by_column(metadata: Mapping[str, Any], rename: Callable[[str], str | None]) -> dict[str, Any]:
    """Returns metadata whose entries per column follow their columns; an entry for None is left out."""
    changed = dict(metadata)
    for key in _BY_COLUMN:
        entries = metadata.get(key)
        if isinstance(entries, dict):
            changed[key] = {new: each for name, each in entries.items() if (new := rename(name)) is not None}
    return changed
