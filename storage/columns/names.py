"""Renames and drops columns: a change of the manifest alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.media import CLIP_INDEX_SUFFIX
from concurrent_loader.storage.shards.editing.commit_edit import commit_edit, open_to_edit
from concurrent_loader.storage.shards.manifest.column_changes import with_names, without_columns
from concurrent_loader.storage.shards.manifest.commit_tokens import check_token
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["drop_column", "rename_column"]


@hides_secrets
def rename_column(
    url: str | os.PathLike[str],
    name: str,
    new_name: str,
    *,
    token: str | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Renames a column in a new snapshot. No data is read or written, and older snapshots keep the old name.

    The index of a column of videos is renamed with it.

    Args:
        url: URL of the dataset.
        name: Name of the column.
        new_name: New name.
        token: Name of the commit. A second call with the same token changes nothing and returns the same snapshot.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.

    Returns:
        New snapshot.

    Raises:
        SchemaError: The column does not exist, or the new name is invalid or taken.
        StorageError: There is no dataset, or the store failed.

    Example:
        >>> from concurrent_loader import rename_column
        >>> rename_column("photos", "label", "class").schema
        {'image': 'jpeg', 'class': 'int64'}
    """
    check_token(token)

    def change(newest: Manifest) -> Manifest:
        return with_names(newest, {old: new_name + old.removeprefix(name) for old in _with_index(newest, name)})

    return _change(url, client, storage_options, token, change)


@hides_secrets
def drop_column(
    url: str | os.PathLike[str],
    name: str,
    *,
    token: str | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Drops a column in a new snapshot. Older snapshots keep it, and its values stay in the files.

    The index of a column of videos is dropped with it. Dropping a column that was added later also leaves out its
    files. The values of any other column stay in the dataset's shards, where no reader returns them: they are fetched
    together with the other columns of a shard.

    Args:
        url: URL of the dataset.
        name: Name of the column.
        token: Name of the commit. A second call with the same token changes nothing and returns the same snapshot.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.

    Returns:
        New snapshot.

    Raises:
        SchemaError: The column does not exist, or it is the last one in the dataset's own shards.
        StorageError: There is no dataset, or the store failed.

    Example:
        >>> from concurrent_loader import drop_column
        >>> drop_column("photos", "label").schema
        {'image': 'jpeg'}
    """
    check_token(token)
    return _change(
        url, client, storage_options, token, lambda newest: without_columns(newest, _with_index(newest, name))
    )


def _with_index(manifest: Manifest, name: str) -> list[str]:
    index = name + CLIP_INDEX_SUFFIX
    return [name, index] if index in manifest.schema else [name]


def _change(
    url: str | os.PathLike[str],
    client: str,
    storage_options: Mapping[str, Any] | None,
    token: str | None,
    change: Callable[[Manifest], Manifest],
) -> Manifest:
    async def make(newest: Manifest) -> Manifest:
        return change(newest)

    with open_to_edit(url, client, storage_options) as opened:
        return opened.loop.run(commit_edit(opened.engine, make, token=token)).manifest
